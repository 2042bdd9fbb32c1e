"""The growing factor and the choice of independent rows, against projectors written out."""

from __future__ import annotations

import pytest
import torch

from orthocl.tangents.cholesky import GrowingCholesky, independent_rows


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
