"""Blocks of sparse rows: embeddings, of which a sample touches a few rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from orthocl.tangents.blocks.dense import Block, Shape, accurate, slices
from orthocl.tangents.blocks.factored import Outer


class Rows(Block):
    """G_l[n] has values[n, l] in row words[n, l] of the weight, summed over l, and zeros elsewhere.

    Args:
        names: the embedding's weight.
        shapes: its shape, (words, width).
        words: the rows that each tangent touches, (m, positions); a row may occur twice.
        values: its values there, (m, positions, width).
    """

    kind = "rows"

    def __init__(self, names: tuple[str, ...], shapes: tuple[Shape, ...], words: Tensor, values: Tensor):
        self.names, self.shapes, self.words, self.values = names, shapes, words, values

    @property
    def rows(self) -> int:
        """Number of tangents."""
        return len(self.words)

    @property
    def numbers(self) -> int:
        """Numbers stored per tangent, a row's index counted as two."""
        return self.words.shape[1] * (self.values.shape[2] + 2)

    def tensors(self) -> dict[str, Tensor]:
        """Rows touched, and their values."""
        return {"words": self.words, "values": self.values}

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l."""
        values, words = self.values[rows].to(dtype or accurate(self.values.dtype)), self.words[rows]
        full = values.new_zeros(len(values), self.shapes[0][0], values.shape[2])
        return full.scatter_add_(1, words[..., None].expand_as(values), values).flatten(1)

    def _pieces(self) -> Iterator[slice]:
        return slices(self.rows, max(self.parameters, 1))

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g."""
        values = self.values.to(gradient[0].dtype)
        return (gradient[0].flatten(1)[self.words] * values).sum((1, 2))

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w."""
        full = weights.new_zeros(self.shapes[0][0], self.values.shape[2])
        weighted = self.values.to(weights.dtype) * weights[:, None, None]
        full.index_add_(0, self.words.flatten(), weighted.flatten(0, 1))
        return [full.view(self.shapes[0])]

    def gram(self, other: Block) -> Tensor:
        """Sums over the words that two tangents share."""
        if isinstance(other, Outer):
            return self._gram_of_outer(other)
        if not isinstance(other, Rows):
            return super().gram(other)
        result = self.values.new_zeros(self.rows, other.rows, dtype=torch.float64)
        mine, theirs = self._by_word(), other._by_word()
        for word, (places, values) in mine.items():
            if word in theirs:
                others, right = theirs[word]
                products = values @ right.t()
                index = (places[:, None].expand_as(products), others[None].expand_as(products))
                result.index_put_(index, products, accumulate=True)
        return result

    def _gram_of_outer(self, other: Outer) -> Tensor:
        """For each word touched: the other's derivative there x (values . its input)."""
        result = self.values.new_zeros(self.rows, other.rows, dtype=torch.float64)
        positions = self.words.shape[1]
        for theirs in slices(other.rows, sum(other.width) * other.positions * 16):
            left, right = (part[:, 0] for part in other.sides(theirs, torch.float64))
            count = len(left)
            for mine in slices(self.rows, positions * count * other.positions):
                words, values = self.words[mine], self.values[mine].double()
                products = values.flatten(0, 1) @ left.flatten(0, 1).t()
                products *= right.flatten(0, 1).t()[words.flatten()]
                result[mine, theirs] = products.view(-1, positions, count, other.positions).sum((1, 3))
        return result

    def products(self, other: Outer) -> Tensor:
        """The inner product of each tangent with one of another layer's use of the weight, in float64."""
        found = [self.values.new_zeros(0, dtype=torch.float64)]
        for rows in slices(self.rows, other.positions * (sum(other.width) + self.words.shape[1])):
            left, right = (part[:, 0] for part in other.sides(rows, torch.float64))
            words = self.words[rows][:, None].expand(-1, other.positions, -1)
            pairs = left @ self.values[rows].double().mT
            found.append((pairs * right.gather(2, words)).sum((1, 2)))
        return torch.cat(found)

    def squares(self) -> Tensor:
        """Squared norms of the rows: pairs of positions that touch the same row."""
        positions = self.words.shape[1]
        found = [self.values.new_zeros(0, dtype=torch.float64)]
        for rows in slices(self.rows, 2 * positions**2):
            words, values = self.words[rows], self.values[rows].double()
            found.append(((values @ values.mT) * (words[:, :, None] == words[:, None])).sum((1, 2)))
        return torch.cat(found)

    def _by_word(self) -> dict[int, tuple[Tensor, Tensor]]:
        """For each word the tangents that touch it, and their values in float64."""
        order = torch.argsort(self.words.flatten(), stable=True)
        found, counts = torch.unique_consecutive(self.words.flatten()[order], return_counts=True)
        sizes: list[int] = counts.tolist()
        values = torch.split(self.values.flatten(0, 1)[order].double(), sizes)
        places = torch.split(order // self.words.shape[1], sizes)
        return dict(zip(found.tolist(), zip(places, values, strict=True), strict=True))

    def select(self, rows: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.names, self.shapes, self.words[rows], self.values[rows])

    def to(self, dtype: torch.dtype) -> Rows:
        """Rounded values."""
        return Rows(self.names, self.shapes, self.words, self.values.to(dtype))
