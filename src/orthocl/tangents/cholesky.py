"""A Cholesky factor that grows: rows join a few at a time, dependent ones are rejected."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Rows per panel of the stored triangle: at 64 the storage is within 64 / m of a packed triangle.
PANEL = 64
# Columns eliminated between two updates of the rest of the matrix.
BLOCK = 64
# Squared distance, as a share of the largest squared norm, above which rows need no pivoting.
WELL_CONDITIONED = 1e-8
# Roundings of K that a squared distance must exceed to count.
ROUNDINGS = 16.0


class GrowingCholesky:
    """L with L L^T = K in float64, as panels of rows: each panel holds rows start..end up to column end.

    Growing never copies existing rows, and the storage is half of a square matrix.

    >>> factor = GrowingCholesky()
    >>> gram = torch.tensor([[4.0, 2.0], [2.0, 5.0]], dtype=torch.float64)
    >>> factor.extend(torch.zeros(0, 2), gram, scale=5.0, tolerance=1e-12).tolist()
    [0, 1]
    >>> factor.solve(torch.tensor([8.0, 12.0], dtype=torch.float64))
    tensor([1., 2.], dtype=torch.float64)
    """

    def __init__(self, panels: Sequence[Tensor] = ()):
        self.panels: list[Tensor] = list(panels)

    @property
    def size(self) -> int:
        """Number of rows."""
        return self.panels[-1].shape[1] if self.panels else 0

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return sum(panel.numel() * panel.element_size() for panel in self.panels)

    def lower(self) -> Tensor:
        """L as one square matrix."""
        if not self.panels:
            return torch.zeros(0, 0, dtype=torch.float64)
        full = self.panels[0].new_zeros(self.size, self.size)
        for panel in self.panels:
            end = panel.shape[1]
            full[end - len(panel) : end, :end] = panel
        return full

    def solve_lower(self, right: Tensor) -> Tensor:
        """L^-1 B for B of shape (size, n)."""
        solved = torch.empty_like(right)
        for panel in self.panels:
            end = panel.shape[1]
            start = end - len(panel)
            rest = torch.addmm(right[start:end], panel[:, :start], solved[:start], alpha=-1)
            solved[start:end] = torch.linalg.solve_triangular(panel[:, start:], rest, upper=False)
        return solved

    def solve_upper(self, right: Tensor) -> Tensor:
        """L^-T B for B of shape (size, n)."""
        solved = right.clone()
        for panel in reversed(self.panels):
            end = panel.shape[1]
            start = end - len(panel)
            solved[start:end] = torch.linalg.solve_triangular(
                panel[:, start:].t(), solved[start:end], upper=True
            )
            solved[:start].addmm_(panel[:, :start].t(), solved[start:end], alpha=-1)
        return solved

    def solve(self, right: Tensor) -> Tensor:
        """K^-1 c for a vector c."""
        return self.solve_upper(self.solve_lower(right[:, None]))[:, 0]

    def extend(self, cross: Tensor, gram: Tensor, scale: float, tolerance: float) -> Tensor:
        """Join new rows and return the indices of those that were kept, in the order of the new rows of L.

        A row is rejected if its squared distance from the span of the others is at most tolerance x
        scale: it adds no direction, only rounding noise divided by almost nothing. Its distance is the
        difference of its norm and that of K^-1-weighted rows, x^T K x with x = K^-1 c; where the present rows
        are almost dependent, x is large and the rounding of K, eps x scale x ||x||^2, hides the distance:
        a distance no larger than that counts as zero, too.

        Args:
            cross: inner products of the present rows with the new ones, (size, n).
            gram: inner products of the new rows, (n, n).
            scale: the largest squared norm of all rows.
            tolerance: share of the scale below which a squared distance counts as zero.
        """
        projected = self.solve_lower(cross) if self.size else gram.new_zeros(0, len(gram))
        return self.join(projected, gram - projected.t() @ projected, scale, tolerance)

    def join(self, projected: Tensor, rest: Tensor, scale: float, tolerance: float) -> Tensor:
        """`extend` for callers that already have L^-1 B and the remainder of the new inner products."""
        threshold = torch.full_like(rest.diagonal(), tolerance * scale)
        if self.size:
            hidden = self.solve_upper(projected).square().sum(0)
            threshold = threshold.maximum(ROUNDINGS * torch.finfo(torch.float64).eps * scale * hidden)
        kept, factor = independent_rows(rest, threshold, max(WELL_CONDITIONED, tolerance) * scale)
        self._append(torch.cat([projected[:, kept].t(), factor], 1))
        return kept

    def leading(self, size: int) -> GrowingCholesky:
        """The factor as it was when it had `size` rows; nothing is copied."""
        return GrowingCholesky([panel for panel in self.panels if panel.shape[1] <= size])

    def _append(self, rows: Tensor) -> None:
        before = rows.shape[1] - len(rows)
        for start in range(0, len(rows), PANEL):
            end = min(start + PANEL, len(rows))
            self.panels.append(rows[start:end, : before + end].clone())


def independent_rows(matrix: Tensor, threshold: Tensor, clear: float) -> tuple[Tensor, Tensor]:
    """Rows whose remaining diagonal exceeds their threshold, and L with L L^T = matrix[rows][:, rows].

    Without pivoting, only rows far from dependent can be recognised as independent: the plain factor is taken when
    every squared pivot is above `clear` too.

    >>> rows, factor = independent_rows(torch.ones(3, 3), torch.full((3,), 1e-6), clear=1e-6)
    >>> rows.tolist(), factor.tolist()
    ([0], [[1.0]])
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if (
        len(matrix)
        and int(failed) == 0
        and bool((factor.diagonal().square() > threshold.clamp(min=clear)).all())
    ):
        return torch.arange(len(matrix), device=matrix.device), factor
    return pivoted_cholesky(matrix, threshold)


def pivoted_cholesky(matrix: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Pivots and L with L L^T = matrix[pivots][:, pivots], largest remaining diagonal first.

    Stops when no remaining diagonal exceeds its row's threshold. Blocked as LAPACK's pstrf: the matrix is
    updated once per block of columns, by one matrix product.
    """
    rest = (matrix + matrix.t()) / 2
    size = len(rest)
    factor = rest.new_zeros(size, size)
    free = torch.ones(size, dtype=torch.bool, device=rest.device)
    residual = rest.diagonal().clone()
    pivots: list[int] = []
    done = False
    while not done and len(pivots) < size:
        start = len(pivots)
        while len(pivots) < min(start + BLOCK, size):
            pivot = int(torch.where(free & (residual > threshold), residual, -torch.inf).argmax())
            done = not bool(free[pivot] & (residual[pivot] > threshold[pivot]))
            if done:
                break
            value = float(residual[pivot])
            here = slice(start, len(pivots))
            column = rest[:, pivot] - factor[:, here] @ factor[pivot, here]
            column = torch.where(free, column / value**0.5, 0.0)
            factor[:, len(pivots)] = column
            residual -= column.square()
            free[pivot] = False
            pivots.append(pivot)
        here = slice(start, len(pivots))
        rest -= factor[:, here] @ factor[:, here].t()
        residual = rest.diagonal().clone()
    order = torch.tensor(pivots, dtype=torch.long, device=rest.device)
    return order, factor[order][:, : len(pivots)].tril()
