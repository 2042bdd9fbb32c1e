"""Blocks of maps and patches: one outer product per position of a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from orthocl.tangents.blocks.dense import Block, Shape, accurate, slices
from orthocl.tangents.blocks.factored import Outer


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
