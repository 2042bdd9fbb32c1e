"""The growing factor and the choice of independent rows, against projectors written out."""

from __future__ import annotations

import pytest
import torch

from orthocl.tangents import cholesky
from orthocl.tangents.cholesky import GrowingCholesky, independent_rows, pivoted_cholesky


def features(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("rows", "columns"), [(5, 9), (9, 5), (1, 1)])
def test_pivoted_cholesky(rows, columns):
    phi = features(rows, columns)
    matrix = phi @ phi.T
    scale = float(matrix.diagonal().max())
    kept, factor = independent_rows(matrix, torch.full((rows,), 1e-12 * scale), 1e-8 * scale)
    assert len(kept) == min(rows, columns)
    assert torch.allclose(factor @ factor.T, matrix[kept][:, kept], atol=1e-10)
    assert torch.equal(factor, factor.tril())
    # All other rows lie in the span of the kept ones.
    white = torch.linalg.solve_triangular(factor, matrix[kept], upper=False)
    assert (matrix - white.T @ white).abs().max() < 1e-9


def test_zero_matrix_keeps_nothing():
    kept, factor = independent_rows(torch.zeros(3, 3, dtype=torch.float64), torch.full((3,), 1e-12), 1e-8)
    assert len(kept) == 0
    assert factor.shape == (0, 0)


def test_growing_factor_equals_a_projector():
    pieces = [features(4, 20, 1), features(3, 20, 2), features(5, 20, 3)]
    pieces[1] = torch.cat([pieces[1], pieces[0][:2], pieces[1][:1] + pieces[0][:1]])  # dependent rows
    factor, memory = GrowingCholesky(), torch.zeros(0, 20, dtype=torch.float64)
    x = features(6, 20, 4)
    for piece in pieces:
        white = factor.solve_lower(memory @ piece.T)
        effective = piece @ piece.T - white.T @ white
        kept = factor.join(white, effective, 1.0, 1e-10)
        memory = torch.cat([memory, piece[kept]])
        v = factor.solve_lower(memory @ x.T)
        basis = torch.linalg.qr(memory.T)[0]
        projected = x - x @ basis @ basis.T
        assert torch.allclose(x @ x.T - v.T @ v, projected @ projected.T, atol=1e-11)
        # solve_upper gives the weights of the projection on the memory's rows
        weights = factor.solve_upper(v)
        assert torch.allclose((memory.T @ weights).T, x - projected, atol=1e-10)
    assert factor.size == 12
    first = factor.leading(4)
    assert first.size == 4
    assert torch.allclose(first.lower() @ first.lower().T, memory[:4] @ memory[:4].T)


@pytest.mark.parametrize("block", [1, 2, 3, 64])
@pytest.mark.parametrize("panel", [2, 64])
def test_blocks_of_columns_and_panels_of_rows_change_nothing(block, panel, monkeypatch):
    """Nine rows in five dimensions, eliminated a few columns at a time, stored a few rows at a time."""
    monkeypatch.setattr(cholesky, "BLOCK", block)
    monkeypatch.setattr(cholesky, "PANEL", panel)
    phi = features(9, 5)
    matrix = phi @ phi.T
    kept, factor = pivoted_cholesky(matrix, torch.full((9,), 1e-10, dtype=torch.float64))
    assert len(kept) == len(set(kept.tolist())) == 5
    torch.testing.assert_close(factor @ factor.T, matrix[kept][:, kept])
    assert kept[0] == matrix.diagonal().argmax()
    growing = GrowingCholesky()
    rows = features(7, 20, 1)
    growing.extend(torch.zeros(0, 4, dtype=torch.float64), rows[:4] @ rows[:4].T, 1.0, 1e-12)
    growing.extend(rows[:4] @ rows[4:].T, rows[4:] @ rows[4:].T, 1.0, 1e-12)
    assert growing.size == 7
    assert growing.nbytes == 8 * sum(panel.numel() for panel in growing.panels)
    torch.testing.assert_close(growing.lower() @ growing.lower().T, rows @ rows.T)
    right = features(7, 1, 3)[:, 0]
    torch.testing.assert_close(growing.solve(right), torch.linalg.solve(rows @ rows.T, right))
