"""A survey: which blocks a model's tangents will be, from shapes alone.

A copy of the model without numbers (on torch's meta device) is sent one sample, so that nothing is computed and no
memory is needed, whatever its size. The collection is the real one, without the check of its rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log10

import torch
from torch import Tensor, nn

from orthocl.nets.inputs import Batch, Inputs, Targets, each_tensor
from orthocl.nets.modes import evaluating
from orthocl.nets.outputs import read_outputs
from orthocl.tangents import layers
from orthocl.tangents.blocks import Block, Compressed, Dense, Patches
from orthocl.tangents.collect import Collector, recording
from orthocl.tangents.compress import Compression
from orthocl.tangents.recording import Recorded
from orthocl.tangents.remembering import Remembering

# Cores as a share of dense tangents against log10 of the energy left out: round numbers chosen by eye within the range
# seen on a ResNet-18, a ViT and a LeNet (0.1 to 3 %, 2 to 6 %, 4 to 13 %). Good to a factor of a few.
CORE_SHARES = {-2.0: 0.01, -3.0: 0.045, -4.0: 0.12}


@dataclass(frozen=True)
class Survey:
    """What one sample's tangents will be.

    Args:
        blocks: without numbers.
        last: weights whose rows have one output each; None if the blocks have numbers, which tell.
        explicit: parameters that are differentiated sample by sample -> bytes of one tangent.
    """

    blocks: list[Block]
    last: set[str] | None
    explicit: dict[str, int]


def without_numbers(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device; the model itself is not touched and its memory not copied.

    >>> without_numbers(nn.Linear(3, 2)).weight.is_meta
    True
    """
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().to("meta")
    return copy.deepcopy(model, memo)


def survey(
    model: nn.Module,
    example_input: Inputs,
    parameters: Mapping[str, nn.Parameter],
    remember: Remembering,
    rules: Compression,
    targets: Targets | None = None,
) -> Survey:
    """What one sample's tangents will be.

    Args:
        model: the network.
        example_input: a batch; its first sample's shape is used.
        parameters: the protected parameters by name.
        remember: what is remembered of a sample.
        rules: how much is kept; sizes of bases are estimated (`estimated_core`).
        targets: of the batch, where what is remembered depends on their shape.
    """
    empty = without_numbers(model)
    named = dict(empty.named_parameters())
    protected = {name: named[name] for name in parameters}
    for parameter in protected.values():
        parameter.requires_grad_(True)
    collector = Collector(empty, protected, remember)
    x = _one_sample(example_input)
    y = None if targets is None else _one_sample(targets)
    with evaluating(empty), torch.enable_grad():
        recorded, outputs, remembered = _looked_through(collector, x, y)
        final = [
            layer
            for layer in recorded
            if "weight" in layer.names and any(use.returned is outputs for use in layer.uses)
        ]
        for layer in final:
            layer.single = True
        found = collector.sums(recorded, remembered)
        used = torch.autograd.grad(remembered.sum(), list(protected.values()), allow_unused=True)
    reached = {name for name, part in zip(protected, used, strict=True) if part is not None}
    called = {name for layer in recorded if layer.calls for name in layer.names.values()}
    # A weight that was used although its layer was not called will be differentiated sample by sample.
    found = [block for block in found if all(name in called or name not in reached for name in block.names)]
    last = {layer.names["weight"] for layer in final if remember.variant in ("gtl", "ave")}
    covered = {name for block in found for name in block.names}
    explicit = {name: p.numel() * p.element_size() for name, p in protected.items() if name not in covered}
    rest: list[Block] = [
        Dense((name,), (tuple(p.shape),), p.new_zeros(remembered.numel(), p.numel(), device="meta"))
        for name, p in protected.items()
        if name in explicit
    ]
    blocks = [_kept(block, remembered.numel(), rules) for block in found] + rest
    return Survey(blocks, last, explicit)


def _looked_through(
    collector: Collector, x: Inputs, y: Targets | None
) -> tuple[list[Recorded], Tensor | dict[str, Tensor], Tensor]:
    """Layers, outputs and what is remembered of them, as the collection will find them."""
    recorded, remember = collector.layers(), collector.remember
    try:
        with recording(recorded, 1):
            outputs = read_outputs(collector.model, x, y, remember.outputs)
        remembered = remember.of(outputs, remember.stand_in(outputs) if y is None else y)
    except Exception:  # as in the collection
        if not any(layer.expanded for layer in recorded):
            raise
        collector.expands -= 1
        return _looked_through(collector, x, y)
    return recorded, outputs, remembered


def _one_sample(batch: Batch) -> Batch:
    return each_tensor(batch, lambda part: part[:1].to("meta"))


def _kept(block: Block, logits: int, rules: Compression) -> Block:
    if not rules.exact and isinstance(block, Patches):
        shape = layers.layer_shape(block)
        k, r = estimated_core(shape.inputs, shape.outputs, shape.positions * rules.rows, rules.energy)
        if shape.choose(logits, rules.rows, (k, r), rules.batch_size) == "compressed":
            like = block.deltas
            return Compressed(
                block.names,
                block.shapes,
                like.new_zeros(block.groups, shape.inputs, k),
                like.new_zeros(block.groups, shape.outputs, r),
                like.new_zeros(block.rows, block.groups, r, k + block.bias),
            )
    return layers.represented(block, logits)


def estimated_core(inputs: int, outputs: int, most: int, energy: float) -> tuple[int, int]:
    """How many directions of a layer's inputs and output derivatives a share of energy will take: an estimate.

    Args:
        inputs: inputs of one position.
        outputs: outputs of one position.
        most: positions of all tangents together, which no basis can exceed.
        energy: share kept.

    >>> estimated_core(1000, 500, 10**6, 0.99)
    (100, 50)
    """
    level = log10(max(1 - energy, 1e-8))
    points = sorted(CORE_SHARES.items())
    if level >= points[-1][0]:
        share = points[-1][1]
    else:
        (x0, y0), (x1, y1) = points[0], points[1]
        for left, right in pairwise(points):
            if left[0] <= level <= right[0]:
                (x0, y0), (x1, y1) = left, right
        share = 10 ** (log10(y0) + (level - x0) * (log10(y1) - log10(y0)) / (x1 - x0))
    side = min(1.0, share) ** 0.5
    return min(ceil(side * inputs), inputs, most), min(ceil(side * outputs), outputs, most)
