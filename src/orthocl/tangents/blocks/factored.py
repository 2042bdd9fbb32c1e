"""Factored blocks: one outer product per row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.tangents.blocks.dense import Block, Shape, accurate, inner_products


class Outer(Block):
    """What factored and patches blocks share: inputs, output derivatives, and which row uses which input."""

    inputs: Tensor
    deltas: Tensor
    source: Tensor | None

    @property
    @abstractmethod
    def positions(self) -> int:
        """Number of positions L."""

    @property
    @abstractmethod
    def width(self) -> tuple[int, int]:
        """Input numbers i and output numbers o of one position (of one group)."""

    @abstractmethod
    def sides(self, rows: slice | Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs (rows, groups, positions, i) and derivatives (rows, groups, positions, o) of some rows."""

    @abstractmethod
    def select(self, rows: Tensor) -> Outer:
        """The block of some of the rows."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Outer:
        """The block with its factors rounded to another type."""

    @property
    def bias(self) -> bool:
        """Whether the layer's bias is protected too (the constant 1 next to the input)."""
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

    @property
    def positions(self) -> int:
        """One."""
        return 1

    @property
    def width(self) -> tuple[int, int]:
        """Inputs and outputs of the layer."""
        return self.inputs.shape[1], self.deltas.shape[1]

    def sides(self, rows: slice | Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs (rows, 1, 1, i) and derivatives (rows, 1, 1, o) of some rows."""
        inputs, deltas = self.rows_of_inputs(rows).to(dtype), self.deltas[rows].to(dtype)
        return inputs[:, None, None], deltas[:, None, None]

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l."""
        dtype = dtype or accurate(self.deltas.dtype)
        deltas = self.deltas[rows].to(dtype)
        weight = (deltas[:, :, None] * self.rows_of_inputs(rows)[:, None, :].to(dtype)).flatten(1)
        return torch.cat([weight, deltas], 1) if self.bias else weight

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g: for row n, d . (g_W a + g_b)."""
        dtype = gradient[0].dtype
        inputs, weight = self.inputs.to(dtype).t(), gradient[0].flatten(1)
        images = torch.addmm(gradient[1][:, None], weight, inputs) if self.bias else weight @ inputs
        if self.source is not None:
            images = images[:, self.source]
        return images.mul_(self.deltas.t().to(dtype)).sum(0)

    def coefficient(self, row: int, weight: Tensor, bias: Tensor | None) -> float:
        """One row of `coefficients`."""
        inputs = self.inputs[row if self.source is None else int(self.source[row])].to(weight.dtype)
        image = weight @ inputs if bias is None else torch.addmv(bias, weight, inputs)
        return float(self.deltas[row].to(weight.dtype).dot(image))

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w: (w D)^T A and D^T w."""
        weighted = self.deltas.to(weights.dtype) * weights[:, None]
        bias = [weighted.sum(0)] if self.bias else []
        if self.source is not None:
            grouped = weighted.new_zeros(len(self.inputs), weighted.shape[1])
            weighted = grouped.index_add_(0, self.source, weighted)
        return [(weighted.t() @ self.inputs.to(weights.dtype)).view(self.shapes[0]), *bias]

    def add_combination(self, weights: Tensor, targets: Sequence[Tensor], scale: float = 1.0) -> None:
        """Add scale x G_l^T w to the parameters in place, without a temporary of their size."""
        same_type = self.deltas.dtype == targets[0].dtype
        if self.source is not None or not same_type or not targets[0].is_contiguous():
            super().add_combination(weights, targets, scale)
            return
        deltas = self.deltas.t()
        targets[0].view(len(targets[0]), -1).addmm_(deltas * weights, self.inputs, alpha=scale)
        if self.bias:
            targets[1].addmv_(deltas, weights, alpha=scale)

    def squares(self) -> Tensor:
        """Squared norms of the rows: |d|^2 (|a|^2 + 1)."""
        inputs = self.inputs.double().square().sum(1) + self.bias
        return self.deltas.double().square().sum(1) * (inputs if self.source is None else inputs[self.source])

    def by_columns(self) -> Factored:
        """The same block with the output derivatives one column after another: faster where they are few."""
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
