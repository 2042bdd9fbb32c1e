"""How one layer's share of m tangents is stored: dense, factored, as maps and patches, sparse or compressed.

A tangent is the gradient of one remembered output. For a linear layer z = W a + b it is the outer product
d (x) [a, 1] with d = d output / d z. Written with G_l for the m x p_l matrix of a layer's tangents, every
block offers the products that projection needs, G_l g, G_l^T w and G_l H_l^T, and none of them forms
G_l unless it is stored that way:

    dense      rows of G_l                  m p_l numbers
    factored   A (m x i) and D (m x o)      m (i + o) numbers,   G_l[n] = D[n] (x) [A[n], 1]
    patches    input maps and D (m x L x o) G_l[n] = sum over the L positions of D[n, l] (x) [patch(n, l), 1]
    rows       the L rows of an embedding that a sample touches, and their values (m x L x width)
    compressed bases U (i x k), V (o x r) and cores C (m x r x k), G_l[n] = V C[n] U^T
    summed     rows and outer products of one weight: an embedding that is the output layer too

Rows that share an input (one sample, several remembered logits) share its A row: `source` says which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["dense", "factored", "patches", "rows", "compressed", "summed"]
Shape = tuple[int, ...]
# Their products with blocks of other kinds are their own matter.
NEVER_DENSE = ("compressed", "summed")
# Temporary tensors of the products below stay under this many numbers.
WORKSPACE = 1 << 23
# Rows of a symmetric product that are computed together.
SYMMETRIC_BLOCK = 256


def accurate(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: the storage type, or float32 for 16-bit storage."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def slices(rows: int, numbers_per_row: int) -> Iterator[slice]:
    """Ranges of rows that fit in the workspace."""
    step = max(1, WORKSPACE // max(1, numbers_per_row))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def inner_products(left: Tensor, right: Tensor) -> Tensor:
    """The matrix left right^T, accumulated in float64 whatever the factors are stored in."""
    total = left.new_zeros(len(left), len(right), dtype=torch.float64)
    blocks = [slice(s, s + SYMMETRIC_BLOCK) for s in range(0, len(left), SYMMETRIC_BLOCK)]
    for columns in slices(left.shape[1], max(len(left), len(right))):
        first = left[:, columns].double()
        if right is left:  # only what is on and below the diagonal
            for rows in blocks:
                total[rows, : rows.stop].addmm_(first[rows], first[: rows.stop].t())
        else:
            total.addmm_(first, right[:, columns].double().t())
    for rows in blocks if right is left else []:
        total[: rows.start, rows] = total[rows, : rows.start].t()
    return total


class Block(ABC):
    """The share of some parameters in m tangents. `shapes` are the shapes of the parameters in `names`."""

    kind: Kind
    names: tuple[str, ...]
    shapes: tuple[Shape, ...]

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of tangents m."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything stored, by name."""

    @abstractmethod
    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l as explicit vectors, by default in the storage type (bfloat16: in float32)."""

    @abstractmethod
    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g in the gradient's type, for one gradient tensor per parameter."""

    @abstractmethod
    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w in the type of the weights, one tensor per parameter."""

    @abstractmethod
    def select(self, rows: Tensor) -> Block:
        """The block of some of the rows."""

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Block:
        """The block with its factors rounded to another type."""

    def add_combination(self, weights: Tensor, targets: Sequence[Tensor], scale: float = 1.0) -> None:
        """Add scale x G_l^T w to the parameters in place."""
        for target, change in zip(targets, self.combine(weights), strict=True):
            target.add_(change, alpha=scale)

    @property
    def parameters(self) -> int:
        """Number of protected weights p_l."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    @property
    def shared_bytes(self) -> int:
        """Bytes that do not depend on the number of rows."""
        return 0

    def gram(self, other: Block) -> Tensor:
        """G_l H_l^T in float64. Here: from explicit rows, a few at a time."""
        rows = other.kind == "rows" and self.kind in ("factored", "patches")
        if rows or (other.kind in NEVER_DENSE and self.kind not in NEVER_DENSE):
            return other.gram(self).t()  # which forms no explicit rows
        result = next(iter(self.tensors().values())).new_zeros(self.rows, other.rows, dtype=torch.float64)
        for mine in slices(self.rows, self.parameters):
            left = self.dense(mine, torch.float64)
            for theirs in slices(other.rows, self.parameters):
                if other is self and theirs.start < mine.start:
                    result[mine, theirs] = result[theirs, mine].t()
                else:
                    result[mine, theirs] = left @ other.dense(theirs, torch.float64).t()
        return result

    def squares(self) -> Tensor:
        """Squared norms of the rows, in float64."""
        found = [self.dense(rows).double().square().sum(1) for rows in self._pieces()]
        return torch.cat(found) if found else self.dense().new_zeros(0, dtype=torch.float64)

    def split(self) -> list[Dense]:
        """The same rows as one dense block per parameter."""
        pieces = torch.split(self.dense(), [prod(shape) for shape in self.shapes], dim=1)
        return [
            Dense((name,), (shape,), piece.contiguous())
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        ]

    def densified(self) -> Dense:
        """The same rows as one dense block, made a few at a time."""
        pieces = [self.dense(rows) for rows in self._pieces()]
        return Dense(self.names, self.shapes, torch.cat(pieces))

    def _pieces(self) -> Iterator[slice]:
        """Ranges of rows whose temporary tensors fit in the workspace."""
        return slices(self.rows, self.parameters)

    def meta(self) -> dict[str, object]:
        """What a state dict needs besides the tensors, as JSON values."""
        return {"kind": self.kind, "names": list(self.names), "shapes": [list(s) for s in self.shapes]}


class Dense(Block):
    """Explicit rows of G_l."""

    kind = "dense"

    def __init__(self, names: tuple[str, ...], shapes: tuple[Shape, ...], vectors: Tensor):
        self.names, self.shapes, self.vectors = names, shapes, vectors

    @property
    def rows(self) -> int:
        """Number of tangents."""
        return len(self.vectors)

    def tensors(self) -> dict[str, Tensor]:
        """The rows."""
        return {"vectors": self.vectors}

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """The rows."""
        return self.vectors[rows].to(dtype or accurate(self.vectors.dtype))

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g."""
        vector = (
            gradient[0].reshape(-1) if len(gradient) == 1 else torch.cat([g.reshape(-1) for g in gradient])
        )
        if self.vectors.dtype == vector.dtype:
            return self.vectors @ vector
        parts = [self.vectors[rows].to(vector.dtype) @ vector for rows in slices(self.rows, self.parameters)]
        return torch.cat(parts)

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w."""
        vector = weights.new_zeros(self.parameters)
        for rows in slices(self.rows, self.parameters):
            vector.addmv_(self.vectors[rows].to(weights.dtype).t(), weights[rows])
        return self.from_coordinates(vector)

    def coordinate_rows(self) -> Tensor:
        """The coordinates of each tangent: its weights."""
        return self.vectors

    def coordinates(self, gradient: Sequence[Tensor]) -> list[Tensor]:
        """The coordinates of a gradient, as flat pieces."""
        return [part.reshape(-1) for part in gradient]

    def from_coordinates(self, flat: Tensor) -> list[Tensor]:
        """The gradient with these coordinates."""
        pieces = torch.split(flat, [prod(shape) for shape in self.shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def select(self, rows: Tensor) -> Dense:
        """Some of the rows."""
        return Dense(self.names, self.shapes, self.vectors[rows])

    def to(self, dtype: torch.dtype) -> Dense:
        """Rounded rows."""
        return Dense(self.names, self.shapes, self.vectors.to(dtype))
