"""Blocks of maps and patches: one outer product per position of a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from orthocl.tangents.blocks.dense import Block, Dense, Shape, accurate, slices
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
    convolution, k^2 times smaller than the patches, which are cut out when a product needs them. A convolution
    with groups is one such sum per group, of its share of the channels.
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
        groups: int = 1,
    ):
        self.names, self.shapes = names, shapes
        self.inputs, self.deltas, self.source, self.unfold = inputs, deltas, source, unfold
        self.groups = groups

    @property
    def positions(self) -> int:
        """Number of positions L."""
        return self.deltas.shape[1]

    @property
    def width(self) -> tuple[int, int]:
        """Input numbers i and output numbers o of one position (of one group)."""
        return prod(self.shapes[0][1:]), self.shapes[0][0] // self.groups

    def patches(self, rows: slice | Tensor, dtype: torch.dtype) -> Tensor:
        """The patches of some rows, (rows, positions, i), those of all groups side by side."""
        inputs = self.rows_of_inputs(rows).to(dtype)
        return inputs if self.unfold is None else self.unfold(inputs)

    def sides(self, rows: slice | Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Patches (rows, groups, positions, i) and derivatives (rows, groups, positions, o) of some rows."""
        patches, deltas = self.patches(rows, dtype), self.deltas[rows].to(dtype)
        parts = [torch.unflatten(part, 2, (self.groups, -1)).transpose(1, 2) for part in (patches, deltas)]
        return parts[0], parts[1]

    def _pieces(self) -> Iterator[slice]:
        return slices(self.rows, self.positions * sum(self.width) * self.groups)

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l."""
        dtype = dtype or accurate(self.deltas.dtype)
        deltas = self.deltas[rows].to(dtype)
        if self.groups == 1:
            weight = (deltas.transpose(1, 2) @ self.patches(rows, dtype)).flatten(1)
        else:
            inputs, outputs = self.sides(rows, dtype)
            weight = (outputs.transpose(2, 3) @ inputs).flatten(1)
        return torch.cat([weight, deltas.sum(1)], 1) if self.bias else weight

    def squares(self) -> Tensor:
        """Squared norms of the rows, from pairs of positions where those are few."""
        inputs, outputs = self.width
        found = []
        for rows in self._pieces():
            if self.positions * (inputs + outputs) >= inputs * outputs:
                found.append(self.dense(rows).double().square().sum(1))
                continue
            left, right = self.sides(rows, accurate(self.deltas.dtype))
            pairs = left @ left.transpose(2, 3)
            if self.bias:
                pairs += 1
            found.append((pairs * (right @ right.transpose(2, 3))).double().sum((1, 2, 3)))
        return torch.cat(found)

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g."""
        dtype, (inputs, outputs) = gradient[0].dtype, self.width
        weight = gradient[0].reshape(self.groups, outputs, inputs).transpose(1, 2)
        parts = []
        for rows in self._pieces():
            if self.groups == 1:
                images = self.patches(rows, dtype) @ weight[0]
            else:
                images = (self.sides(rows, dtype)[0] @ weight).transpose(1, 2).flatten(2)
            if self.bias:
                images += gradient[1]
            parts.append((images * self.deltas[rows].to(dtype)).sum((1, 2)))
        return torch.cat(parts)

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w."""
        dtype, (inputs, outputs) = weights.dtype, self.width
        found: list[Tensor] = []
        for rows in self._pieces():
            weighted = self.deltas[rows].to(dtype) * weights[rows, None, None]
            flat, patches = weighted.flatten(0, 1), self.patches(rows, dtype).flatten(0, 1)
            if self.groups == 1:
                parts = [flat.t() @ patches]
            else:
                grouped = torch.unflatten(flat, 1, (self.groups, outputs)).permute(1, 2, 0)
                parts = [grouped @ torch.unflatten(patches, 1, (self.groups, inputs)).transpose(0, 1)]
            if self.bias:
                parts.append(weighted.sum((0, 1)))
            found = [one + more for one, more in zip(found, parts, strict=True)] if found else parts
        if not found:
            return [weights.new_zeros(shape) for shape in self.shapes]
        return [part.reshape(shape) for part, shape in zip(found, self.shapes, strict=True)]

    def gram(self, other: Block) -> Tensor:
        """From pairs of positions when L L' (i + o) < i o, else from explicit rows."""
        inputs, outputs = self.width
        if (
            self.groups > 1
            or not isinstance(other, Patches)
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
        return Patches(self.names, self.shapes, *self._selected(rows), self.unfold, self.groups)

    def to(self, dtype: torch.dtype) -> Patches:
        """Rounded maps and derivatives."""
        inputs, deltas = self.inputs.to(dtype), self.deltas.to(dtype)
        return Patches(self.names, self.shapes, inputs, deltas, self.source, self.unfold, self.groups)

    def meta(self) -> dict[str, object]:
        """What a state dict needs besides the tensors, as JSON values."""
        unfold = None if self.unfold is None else self.unfold.to_json()
        return {**super().meta(), "unfold": unfold, "groups": self.groups}

    # ---- several uses of one weight

    def without_bias(self) -> list[Block]:
        """The weight's share and, separately, the bias's."""
        if not self.bias:
            return [self]
        parts = (self.inputs, self.deltas, self.source, self.unfold, self.groups)
        bias = Dense(self.names[1:], self.shapes[1:], self.deltas.sum(1))
        return [Patches(self.names[:1], self.shapes[:1], *parts), bias]

    def padded(self, positions: int) -> Patches:
        """The same sums with more positions, whose derivatives are zero (of a linear layer)."""
        missing = (0, 0, 0, positions - self.positions)
        inputs, deltas = functional.pad(self.inputs, missing), functional.pad(self.deltas, missing)
        return Patches(self.names, self.shapes, inputs, deltas, self.source, None, self.groups)

    @staticmethod
    def added(uses: Sequence[Patches]) -> Patches:
        """The sum of several uses of one weight (without biases): all their positions."""
        first = uses[0]
        inputs = [use.patches(slice(None), use.deltas.dtype) for use in uses]
        deltas = torch.cat([use.deltas for use in uses], 1)
        return Patches(first.names, first.shapes, torch.cat(inputs, 1), deltas, None, None, first.groups)
