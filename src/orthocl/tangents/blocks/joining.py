"""Blocks of several kinds: joining their rows, and reading them back from a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from orthocl.tangents.blocks.dense import Block, Dense
from orthocl.tangents.blocks.factored import Factored, Outer
from orthocl.tangents.blocks.patches import Patches, Unfold


def join(blocks: Sequence[Block]) -> Block:
    """One block with the rows of several, in order; blocks of different kinds are joined as dense rows."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if all(isinstance(b, Factored) for b in blocks):
        inputs, deltas, source = _joined([b for b in blocks if isinstance(b, Outer)])
        return Factored(first.names, first.shapes, inputs, deltas, source)
    if isinstance(first, Patches) and all(
        isinstance(b, Patches) and b.unfold == first.unfold and b.inputs.shape[1:] == first.inputs.shape[1:]
        for b in blocks
    ):
        inputs, deltas, source = _joined([b for b in blocks if isinstance(b, Outer)])
        return Patches(first.names, first.shapes, inputs, deltas, source, first.unfold)
    if all(isinstance(b, Dense) for b in blocks):
        return Dense(
            first.names, first.shapes, torch.cat([b.vectors for b in blocks if isinstance(b, Dense)])
        )
    return Dense(first.names, first.shapes, torch.cat([b.dense() for b in blocks]))


def _joined(blocks: Sequence[Outer]) -> tuple[Tensor, Tensor, Tensor | None]:
    inputs, deltas = torch.cat([b.inputs for b in blocks]), torch.cat([b.deltas for b in blocks])
    if all(b.source is None for b in blocks):
        return inputs, deltas, None
    starts = [0]
    for b in blocks:
        starts.append(starts[-1] + len(b.inputs))
    sources = [
        torch.arange(start, end, device=inputs.device) if b.source is None else b.source + start
        for b, (start, end) in zip(blocks, pairwise(starts), strict=True)
    ]
    return inputs, deltas, torch.cat(sources)


def from_state(meta: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Block:
    """The block that `meta()` and `tensors()` describe."""
    names = tuple(str(name) for name in meta["names"])  # type: ignore[attr-defined]
    shapes = tuple(tuple(int(n) for n in shape) for shape in meta["shapes"])  # type: ignore[attr-defined]
    if meta["kind"] == "dense":
        return Dense(names, shapes, tensors["vectors"])
    inputs, deltas, source = tensors["inputs"], tensors["deltas"], tensors.get("source")
    if meta["kind"] == "factored":
        return Factored(names, shapes, inputs, deltas, source)
    unfold = meta.get("unfold")
    cut = None if unfold is None else Unfold.from_json(unfold)  # type: ignore[arg-type]
    return Patches(names, shapes, inputs, deltas, source, cut)
