"""Blocks of several kinds: joining their rows, and reading them back from a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from orthocl.tangents.blocks.compressed import Compressed, join_compressed
from orthocl.tangents.blocks.dense import Block, Dense
from orthocl.tangents.blocks.factored import Factored, Outer
from orthocl.tangents.blocks.patches import Patches, Unfold
from orthocl.tangents.blocks.rows import Rows
from orthocl.tangents.blocks.summed import Summed


def join(blocks: Sequence[Block]) -> Block:
    """One block with the rows of several, in order; blocks of different kinds are joined as dense rows."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    if all(isinstance(b, Factored) for b in blocks):
        inputs, deltas, source = _joined([b for b in blocks if isinstance(b, Outer)])
        return Factored(first.names, first.shapes, inputs, deltas, source)
    if isinstance(first, Patches):
        patches = _same_positions([b for b in blocks if isinstance(b, Patches)])
        if len(patches) == len(blocks) and len({_sizes(b) for b in patches}) == 1:
            inputs, deltas, source = _joined(patches)
            return Patches(first.names, first.shapes, inputs, deltas, source, first.unfold, first.groups)
    if all(isinstance(b, Dense) for b in blocks):
        return Dense(
            first.names, first.shapes, torch.cat([b.vectors for b in blocks if isinstance(b, Dense)])
        )
    if all(isinstance(b, Compressed) for b in blocks):
        return join_compressed([b for b in blocks if isinstance(b, Compressed)])
    if isinstance(first, Rows) and all(isinstance(b, Rows) for b in blocks):
        return _joined_rows([b for b in blocks if isinstance(b, Rows)])
    summed = [b for b in blocks if isinstance(b, Summed)]
    if len(summed) == len(blocks):
        both = join([b.parts[0] for b in summed]), join([b.parts[1] for b in summed])
        if isinstance(both[0], Rows) and isinstance(both[1], Outer):
            return Summed(both[0], both[1])
    return Dense(first.names, first.shapes, torch.cat([b.dense() for b in blocks]))


def _sizes(block: Patches) -> tuple[object, ...]:
    return block.unfold, block.groups, *block.inputs.shape[1:]


def _same_positions(blocks: Sequence[Patches]) -> list[Patches]:
    """Layers on sequences of different lengths: the shorter ones get positions without a derivative."""
    if any(b.unfold is not None for b in blocks):
        return list(blocks)
    most = max(b.positions for b in blocks)
    return [b if b.positions == most else b.padded(most) for b in blocks]


def _joined_rows(blocks: Sequence[Rows]) -> Rows:
    """Tangents that touch fewer rows than others are padded with zeros in row 0."""
    most = max(b.words.shape[1] for b in blocks)
    words, values = [], []
    for b in blocks:
        missing = most - b.words.shape[1]
        words.append(torch.nn.functional.pad(b.words, (0, missing)))
        values.append(torch.nn.functional.pad(b.values, (0, 0, 0, missing)))
    return Rows(blocks[0].names, blocks[0].shapes, torch.cat(words), torch.cat(values))


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


def added(blocks: Sequence[Block]) -> list[Block]:
    """Blocks, several of which may share a parameter (uses of one weight) -> their sums.

    A bias that only some of the uses have becomes a separate block.
    """
    owners: dict[str, int] = {}
    for block in blocks:
        for name in block.names:
            owners[name] = owners.get(name, 0) + 1
    found: list[Block] = []
    shared: dict[str, list[Block]] = {}
    for block in blocks:
        if all(owners[name] == 1 for name in block.names):
            found.append(block)
            continue
        for part in _for_each_name(block):
            shared.setdefault(part.names[0], []).append(part)
    return found + [_sum(uses) for uses in shared.values()]


def _for_each_name(block: Block) -> Sequence[Block]:
    if len(block.names) == 1:
        return [block]
    return block.without_bias() if isinstance(block, Patches) else block.split()


def _sum(uses: Sequence[Block]) -> Block:
    if len(uses) == 1:
        return uses[0]
    rows = [use for use in uses if isinstance(use, Rows)]
    sums = [use for use in uses if isinstance(use, Patches)]
    if len(rows) == len(uses):
        return _added_rows(rows)
    if len(rows) + len(sums) == len(uses) and len({use.groups for use in sums}) == 1:
        outer = sums[0] if len(sums) == 1 else Patches.added(sums)
        return Summed(_added_rows(rows), outer) if rows else outer
    total = uses[0].dense()
    for use in uses[1:]:
        total = total + use.dense()
    return Dense(uses[0].names, uses[0].shapes, total)


def _added_rows(uses: Sequence[Rows]) -> Rows:
    """All rows that several uses of an embedding touch."""
    words, values = torch.cat([use.words for use in uses], 1), torch.cat([use.values for use in uses], 1)
    return Rows(uses[0].names, uses[0].shapes, words, values)


def from_state(meta: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Block:
    """The block that `meta()` and `tensors()` describe."""
    names = tuple(str(name) for name in meta["names"])  # type: ignore[attr-defined]
    shapes = tuple(tuple(int(n) for n in shape) for shape in meta["shapes"])  # type: ignore[attr-defined]
    if meta["kind"] == "dense":
        return Dense(names, shapes, tensors["vectors"])
    if meta["kind"] == "rows":
        return Rows(names, shapes, tensors["words"], tensors["values"])
    if meta["kind"] == "compressed":
        return Compressed(names, shapes, tensors["input_basis"], tensors["output_basis"], tensors["cores"])
    if meta["kind"] == "summed":
        parts = [from_state(part, tensors) for part in meta["parts"]]  # type: ignore[attr-defined]
        return Summed(*parts)  # type: ignore[arg-type]
    inputs, deltas, source = tensors["inputs"], tensors["deltas"], tensors.get("source")
    if meta["kind"] == "factored":
        return Factored(names, shapes, inputs, deltas, source)
    unfold = meta.get("unfold")
    cut = None if unfold is None else Unfold.from_json(unfold)  # type: ignore[arg-type]
    return Patches(names, shapes, inputs, deltas, source, cut, int(str(meta.get("groups", 1))))
