"""Growing: tangents of a model that has got more outputs or more layers since they were taken.

An output that existed before does not depend on a row that is added to the last layer's weights (or to an embedding),
so its tangent has zeros there. A new layer was not there when the tangents were taken: zeros as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn

from orthocl.tangents import layers
from orthocl.tangents.blocks import Block, Compressed, Dense, Factored, Outer, Patches, Rows, Shape, Summed
from orthocl.tangents.recording import recorded_layers
from orthocl.tangents.subspace import Subspace
from orthocl.tangents.tangents import Tangents


def has_grown(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether a shape is another one with no fewer entries along its first axis.

    >>> has_grown((10, 5), (12, 5)), has_grown((10, 5), (12, 6))
    (True, False)
    """
    return len(old) == len(new) and tuple(old[1:]) == tuple(new[1:]) and tuple(old[:1]) <= tuple(new[:1])


def padded(old: Tensor, shape: Sequence[int], axis: int = 0) -> Tensor:
    """A tensor with zeros added at the end of its axes from `axis` on, up to a shape of these.

    >>> padded(torch.ones(1, 2), (2, 2))
    tensor([[1., 1.],
            [0., 0.]])
    """
    grown = old.new_zeros(*old.shape[:axis], *shape)
    grown[tuple(slice(0, size) for size in old.shape)] = old
    return grown


def grown_tangents(tangents: Tangents, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Tangents:
    """Tangents of the grown parameters, with zeros for all that is new.

    Args:
        tangents: of the parameters as they were.
        model: the grown model.
        parameters: its protected parameters, by the same names and further ones, longer along their first axis.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    blocks = [_grown(block, tuple(shapes[name] for name in block.names)) for block in tangents.blocks]
    new = {name: p for name, p in parameters.items() if name not in tangents.names}
    like = next(iter(tangents.blocks[0].tensors().values()))
    rows = torch.zeros(tangents.rows, device=like.device, dtype=next(iter(parameters.values())).dtype)
    for layer in recorded_layers(model, new):
        zero = layers.silent(
            layer.module, layer.names, rows
        )  # in almost no memory, and named as it will be collected
        if zero is not None:
            blocks.append(zero)
    covered = {name for block in blocks for name in block.names}
    blocks += [
        Dense((name,), (shapes[name],), rows.new_zeros(len(rows), prod(shapes[name])))
        for name in new
        if name not in covered
    ]
    return Tangents(list(shapes), list(shapes.values()), blocks, tangents.errors)


def grow_subspace(subspace: Subspace, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Protect the same tangents in the space of the grown parameters: inner products, and so the rest, stay."""
    subspace.grow(parameters, lambda tangents: grown_tangents(tangents, model, parameters))


def _grown(block: Block, shapes: tuple[Shape, ...]) -> Block:
    if shapes == block.shapes:
        return block
    more = shapes[0][0] - block.shapes[0][0]
    wider = nn.functional.pad
    if isinstance(block, Factored):
        return Factored(block.names, shapes, block.inputs, wider(block.deltas, (0, more)), block.source)
    if isinstance(block, Patches) and block.groups == 1:
        deltas = wider(block.deltas, (0, more))
        return Patches(block.names, shapes, block.inputs, deltas, block.source, block.unfold)
    if isinstance(block, Rows):
        return Rows(block.names, shapes, block.words, block.values)
    if isinstance(block, Summed):
        touched, outer = (_grown(part, shapes) for part in block.parts)
        if isinstance(touched, Rows) and isinstance(outer, Outer):
            return Summed(touched, outer)
    if isinstance(block, Compressed) and len(block.output_basis) == 1:
        outputs = wider(block.output_basis, (0, 0, 0, more))
        return Compressed(block.names, shapes, block.input_basis, outputs, block.cores)
    vectors = block.dense().split([prod(shape) for shape in block.shapes], dim=1)
    parts = [
        padded(part.unflatten(1, old), new, axis=1).flatten(1)
        for part, old, new in zip(vectors, block.shapes, shapes, strict=True)
    ]
    return Dense(block.names, shapes, torch.cat(parts, 1))
