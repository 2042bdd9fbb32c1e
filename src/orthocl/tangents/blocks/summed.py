"""Sums of blocks: an embedding that is the output layer too, whose uses have nothing in common but the weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.tangents.blocks.dense import Block
from orthocl.tangents.blocks.factored import Outer
from orthocl.tangents.blocks.rows import Rows


class Summed(Block):
    """G_l[n] = rows[n] + outer[n]: the rows of a weight that a sample touches, and the outer products of a layer.

    Args:
        rows: its use as an embedding.
        outer: its use as a linear layer, without bias.

    >>> from orthocl.tangents.blocks import Factored
    >>> touched = Rows(("w",), ((3, 2),), torch.tensor([[2]]), torch.tensor([[[1.0, 1.0]]]))
    >>> product = Factored(("w",), ((3, 2),), torch.tensor([[5.0, 0.0]]), torch.tensor([[1.0, 0.0, 1.0]]))
    >>> Summed(touched, product).dense().view(3, 2)
    tensor([[5., 0.],
            [0., 0.],
            [6., 1.]])
    """

    kind = "summed"

    def __init__(self, rows: Rows, outer: Outer):
        self.names, self.shapes = rows.names, rows.shapes
        self.parts: tuple[Rows, Outer] = (rows, outer)

    @property
    def rows(self) -> int:
        """Number of tangents."""
        return self.parts[0].rows

    def tensors(self) -> dict[str, Tensor]:
        """Those of both parts."""
        return {name: tensor for part in self.parts for name, tensor in part.tensors().items()}

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l."""
        touched, outer = self.parts
        return touched.dense(rows, dtype).add_(outer.dense(rows, dtype))

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g."""
        touched, outer = self.parts
        return touched.coefficients(gradient) + outer.coefficients(gradient)

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w."""
        touched, outer = self.parts
        change = outer.combine(weights)
        touched.add_combination(weights, change)
        return change

    def add_combination(self, weights: Tensor, targets: Sequence[Tensor], scale: float = 1.0) -> None:
        """Add scale x G_l^T w to the parameters in place."""
        for part in self.parts:
            part.add_combination(weights, targets, scale)

    def squares(self) -> Tensor:
        """Squared norms of the rows."""
        touched, outer = self.parts
        return touched.squares() + outer.squares() + 2 * touched.products(outer)

    def gram(self, other: Block) -> Tensor:
        """The inner products of all pairs of parts."""
        touched, outer = self.parts
        if not isinstance(other, Summed):
            return touched.gram(other) + outer.gram(other)
        theirs, others = other.parts
        mixed = touched.gram(others)
        total = touched.gram(theirs) + outer.gram(others) + mixed
        return total + (mixed if other is self else theirs.gram(outer)).t()

    def select(self, rows: Tensor) -> Summed:
        """Some of the rows."""
        touched, outer = self.parts
        return Summed(touched.select(rows), outer.select(rows))

    def to(self, dtype: torch.dtype) -> Summed:
        """Both parts rounded."""
        touched, outer = self.parts
        return Summed(touched.to(dtype), outer.to(dtype))

    def meta(self) -> dict[str, object]:
        """What a state dict needs besides the tensors, as JSON values."""
        return {**super().meta(), "parts": [part.meta() for part in self.parts]}
