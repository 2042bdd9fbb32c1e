"""Blocks of outer products: one per row (factored) or one per position (patches)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from orthocl.tangents.blocks import Block, Dense, Shape, accurate, inner_products, slices


@dataclass(frozen=True)
class Unfold:
    """How a convolution cuts patches out of its (already padded) input map."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def __call__(self, maps: Tensor) -> Tensor:
        """(n, channels, height, width) -> (n, positions, channels * kernel height * kernel width)."""
        return functional.unfold(maps, self.kernel, self.dilation, self.padding, self.stride).transpose(1, 2)

    def to_json(self) -> list[list[int]]:
        """As nested lists, for a state dict."""
        return [list(part) for part in (self.kernel, self.stride, self.padding, self.dilation)]

    @staticmethod
    def from_json(parts: Sequence[Sequence[int]]) -> Unfold:
        """The inverse of `to_json`."""
        kernel, stride, padding, dilation = ((int(part[0]), int(part[1])) for part in parts)
        return Unfold(kernel, stride, padding, dilation)


class Outer(Block):
    """What factored and patches blocks share: inputs, output derivatives, and which row uses which input."""

    inputs: Tensor
    deltas: Tensor
    source: Tensor | None

    @property
    def bias(self) -> bool:
        """Whether the layer's bias is protected too (the constant 1 beside the input)."""
        return len(self.names) == 2

    @property
    def rows(self) -> int:
        """Number of tangents."""
        return len(self.deltas)

    def tensors(self) -> dict[str, Tensor]:
        """Inputs, output derivatives and, where inputs are shared, the row of each."""
        found = {"inputs": self.inputs, "deltas": self.deltas}
        return found if self.source is None else {**found, "source": self.source}

    def rows_of_inputs(self, rows: slice | Tensor) -> Tensor:
        """The inputs of some rows."""
        return self.inputs[rows if self.source is None else self.source[rows]]

    def _selected(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.source is None:
            return self.inputs[rows], self.deltas[rows], None
        used, source = torch.unique(self.source[rows], return_inverse=True)
        return self.inputs[used], self.deltas[rows], source


class Factored(Outer):
    """One outer product per row: G_l[n] = deltas[n] (x) [inputs[source[n]], 1]."""

    kind = "factored"

    def __init__(
        self,
        names: tuple[str, ...],
        shapes: tuple[Shape, ...],
        inputs: Tensor,
        deltas: Tensor,
        source: Tensor | None = None,
    ):
        self.names, self.shapes = names, shapes
        self.inputs, self.deltas, self.source = inputs, deltas, source

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l."""
        dtype = dtype or accurate(self.deltas.dtype)
        deltas = self.deltas[rows].to(dtype)
        weight = (deltas[:, :, None] * self.rows_of_inputs(rows)[:, None, :].to(dtype)).flatten(1)
        return torch.cat([weight, deltas], 1) if self.bias else weight

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g: for row n, d . (g_W a + g_b)."""
        dtype = gradient[0].dtype
        inputs = self.inputs.to(dtype).t()
        images = torch.addmm(gradient[1][:, None], gradient[0], inputs) if self.bias else gradient[0] @ inputs
        if self.source is not None:
            images = images[:, self.source]
        return images.mul_(self.deltas.t().to(dtype)).sum(0)

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w: (w D)^T A and D^T w."""
        weighted = self.deltas.to(weights.dtype) * weights[:, None]
        bias = [weighted.sum(0)] if self.bias else []
        if self.source is not None:
            grouped = weighted.new_zeros(len(self.inputs), weighted.shape[1])
            weighted = grouped.index_add_(0, self.source, weighted)
        return [weighted.t() @ self.inputs.to(weights.dtype), *bias]

    def add_combination(self, weights: Tensor, targets: Sequence[Tensor], scale: float = 1.0) -> None:
        """Add scale x G_l^T w to the parameters in place, without a temporary of their size."""
        if self.source is not None or self.deltas.dtype != targets[0].dtype:
            super().add_combination(weights, targets, scale)
            return
        deltas = self.deltas.t()
        targets[0].addmm_(deltas * weights, self.inputs, alpha=scale)
        if self.bias:
            targets[1].addmv_(deltas, weights, alpha=scale)

    def by_columns(self) -> Factored:
        """The same block with the output derivatives one column after another: quicker where they are few."""
        deltas = self.deltas.t().contiguous().t()
        return Factored(self.names, self.shapes, self.inputs, deltas, self.source)

    def gram(self, other: Block) -> Tensor:
        """(D D'^T) * (A A'^T + 1), elementwise."""
        if not isinstance(other, Factored):
            return super().gram(other)
        inputs = inner_products(self.inputs, other.inputs)
        if self.bias:
            inputs += 1
        if self.source is not None:
            inputs = inputs[self.source]
        if other.source is not None:
            inputs = inputs[:, other.source]
        return inputs.mul_(inner_products(self.deltas, other.deltas))

    def select(self, rows: Tensor) -> Factored:
        """Some of the rows."""
        return Factored(self.names, self.shapes, *self._selected(rows))

    def to(self, dtype: torch.dtype) -> Factored:
        """Rounded factors."""
        return Factored(self.names, self.shapes, self.inputs.to(dtype), self.deltas.to(dtype), self.source)


class Patches(Outer):
    """Several positions per row: G_l[n] = sum over l of deltas[n, l] (x) [patch l of inputs[source[n]], 1].

    `inputs` are (n, positions, i) for a linear layer; with `unfold` they are the input maps of a
    convolution, k^2 times smaller than the patches, which are cut out when a product needs them.
    """

    kind = "patches"

    def __init__(
        self,
        names: tuple[str, ...],
        shapes: tuple[Shape, ...],
        inputs: Tensor,
        deltas: Tensor,
        source: Tensor | None = None,
        unfold: Unfold | None = None,
    ):
        self.names, self.shapes = names, shapes
        self.inputs, self.deltas, self.source, self.unfold = inputs, deltas, source, unfold

    @property
    def positions(self) -> int:
        """Number of positions L."""
        return self.deltas.shape[1]

    @property
    def width(self) -> tuple[int, int]:
        """Input numbers i and output numbers o of one position."""
        return prod(self.shapes[0][1:]), self.shapes[0][0]

    def patches(self, rows: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The patches of some rows, (rows, positions, i)."""
        inputs = self.rows_of_inputs(rows).to(dtype)
        return inputs if self.unfold is None else self.unfold(inputs)

    def _pieces(self) -> Iterator[slice]:
        return slices(self.rows, self.positions * sum(self.width))

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l."""
        dtype = dtype or accurate(self.deltas.dtype)
        deltas = self.deltas[rows].to(dtype)
        weight = (deltas.transpose(1, 2) @ self.patches(rows, dtype)).flatten(1)
        return torch.cat([weight, deltas.sum(1)], 1) if self.bias else weight

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g."""
        dtype, (inputs, outputs) = gradient[0].dtype, self.width
        weight = gradient[0].reshape(outputs, inputs).t()
        parts = []
        for rows in self._pieces():
            images = self.patches(rows, dtype) @ weight
            if self.bias:
                images += gradient[1]
            parts.append((images * self.deltas[rows].to(dtype)).sum((1, 2)))
        return torch.cat(parts)

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w."""
        dtype, (inputs, outputs) = weights.dtype, self.width
        weight, bias = weights.new_zeros(outputs, inputs), weights.new_zeros(outputs)
        for rows in self._pieces():
            weighted = self.deltas[rows].to(dtype) * weights[rows, None, None]
            weight.addmm_(weighted.flatten(0, 1).t(), self.patches(rows, dtype).flatten(0, 1))
            bias += weighted.sum((0, 1))
        return [weight.view(self.shapes[0]), *([bias] if self.bias else [])]

    def gram(self, other: Block) -> Tensor:
        """From pairs of positions when L L' (i + o) < i o, else from explicit rows."""
        inputs, outputs = self.width
        if (
            not isinstance(other, Patches)
            or self.positions * other.positions * (inputs + outputs) >= inputs * outputs
        ):
            return super().gram(other)
        result = self.deltas.new_zeros(self.rows, other.rows, dtype=torch.float64)
        per_row = self.positions * max(inputs + outputs, other.positions)
        for theirs in slices(other.rows, per_row * 16):
            right = other.patches(theirs, torch.float64)
            right_deltas = other.deltas[theirs].double()
            for mine in slices(self.rows, per_row * len(right)):
                pairs = torch.einsum("nli,mki->nmlk", self.patches(mine, torch.float64), right)
                if self.bias:
                    pairs += 1
                pairs *= torch.einsum("nlo,mko->nmlk", self.deltas[mine].double(), right_deltas)
                result[mine, theirs] = pairs.sum((2, 3))
        return result

    def select(self, rows: Tensor) -> Patches:
        """Some of the rows."""
        return Patches(self.names, self.shapes, *self._selected(rows), self.unfold)

    def to(self, dtype: torch.dtype) -> Patches:
        """Rounded maps and derivatives."""
        inputs, deltas = self.inputs.to(dtype), self.deltas.to(dtype)
        return Patches(self.names, self.shapes, inputs, deltas, self.source, self.unfold)

    def meta(self) -> dict[str, object]:
        """What a state dict needs besides the tensors, as JSON values."""
        return {**super().meta(), "unfold": None if self.unfold is None else self.unfold.to_json()}


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
