"""The memory's kernel, factored as it grows: what is left of a kernel after projecting a memory out.

Paper: the effective kernel kappa_tau of Theorem 1 (`thm:conv`) for OGD.

Derivation. With the rows Phi_Z of the memorised tangents, the projector on their span is
Phi_Z^T (Phi_Z Phi_Z^T)^+ Phi_Z, so phi(x)^T P phi(z) = k(x, z) - k(x, Z) k(Z, Z)^+ k(Z, z): a Schur
complement, without a single tangent. Z holds only linearly independent points, so k(Z, Z) = L L^T and
kappa(x, z) = k(x, z) - V(x)^T V(z) with V(x) = L^-1 k(Z, x). A point whose kappa(x, x) is below
tolerance * scale lies in the span already and is dropped: its output can then still move, by at most
sqrt(tolerance * scale) times the length of the step. The pseudo-inverse of k(Z, Z) is never formed: it loses
the no-forgetting property at the square root of the condition number at which this form keeps it.
"""

from __future__ import annotations

import torch
from torch import Tensor


class MemoryFactor:
    """The growing pivoted Cholesky factor of k(Z, Z), in block rows.

    Block row j holds [B_j, G_j]: its new points against all earlier ones, and their own lower triangle.
    """

    def __init__(self) -> None:
        self.blocks: list[tuple[Tensor, Tensor]] = []
        self.ranks: list[int] = [0]

    @property
    def rank(self) -> int:
        """How many linearly independent points are in memory."""
        return self.ranks[-1]

    def whiten(self, cross: Tensor, blocks: int | None = None) -> Tensor:
        """V = L^-1 k(Z, X) from k(Z, X), for the first `blocks` block rows (all by default)."""
        count = len(self.blocks) if blocks is None else blocks
        whitened = cross.new_empty(self.ranks[count], cross.shape[1])
        for j in range(count):
            before, after = self.ranks[j], self.ranks[j + 1]
            left, corner = self.blocks[j]
            rest = torch.addmm(cross[before:after], left, whitened[:before], alpha=-1)
            whitened[before:after] = torch.linalg.solve_triangular(corner, rest, upper=False)
        return whitened

    def unwhiten(self, vector: Tensor) -> Tensor:
        """L^-T v: weights on the memorised points whose combination of tangents is v in whitened form."""
        solved = vector.clone()
        for j in reversed(range(len(self.blocks))):
            before, after = self.ranks[j], self.ranks[j + 1]
            left, corner = self.blocks[j]
            own = torch.linalg.solve_triangular(corner.T, solved[before:after], upper=True)
            solved[before:after] = own
            solved[:before] -= left.T @ own
        return solved

    def append(self, effective: Tensor, whitened: Tensor, cutoff: float) -> Tensor:
        """Add points by their effective kernel matrix and their V; returns which were kept, in order."""
        kept, corner = pivoted_cholesky(effective, cutoff)
        if len(kept):
            self.blocks.append((whitened[:, kept].T.contiguous(), corner))
            self.ranks.append(self.rank + len(kept))
        return kept


def pivoted_cholesky(matrix: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """Rows of a positive semi-definite matrix that are independent beyond `cutoff`, and their factor.

    Returns `kept` and lower triangular G with matrix[kept][:, kept] = G G^T. The plain factorisation is tried
    first: when every pivot stays above the cutoff, nothing is to be dropped and the order may stay.

    >>> kept, factor = pivoted_cholesky(torch.ones(3, 3, dtype=torch.float64), cutoff=1e-12)
    >>> kept.tolist(), factor.tolist()
    ([0], [[1.0]])
    """
    size = len(matrix)
    factor, info = torch.linalg.cholesky_ex(matrix)
    if size and int(info) == 0 and float(factor.diagonal().min()) ** 2 > cutoff:
        return torch.arange(size), factor
    rest = matrix.diagonal().clone()
    columns = matrix.new_zeros(size, size)
    order: list[int] = []
    while len(order) < size:
        pivot = int(rest.argmax())
        if float(rest[pivot]) <= cutoff:
            break
        done = len(order)
        column = matrix[:, pivot] - columns[:, :done] @ columns[pivot, :done]
        column = column / rest[pivot].sqrt()
        columns[:, done] = column
        rest = rest - column.square()
        order.append(pivot)
        rest[order] = -torch.inf
    kept = torch.tensor(order, dtype=torch.long)
    return kept, columns[kept, : len(order)].tril()
