from __future__ import annotations

import pytest
import torch

from orthocl.errors import DataError
from orthocl.theory.ridge import solve_ridge


def features(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("ridge", [0.0, 1e-9, 0.3])
@pytest.mark.parametrize("rank", [3, 8])
def test_ridge_against_an_eigendecomposition(ridge, rank):
    phi = features(8, rank)
    matrix, r = phi @ phi.T, features(8, 2, 5)
    found = solve_ridge(matrix, r, ridge, 1e-12 * float(matrix.diagonal().max()))
    assert torch.allclose(
        matrix @ found.in_range + ridge * found.coefficients, _seen(matrix, r, ridge), atol=1e-6
    )
    values, vectors = torch.linalg.eigh(matrix)
    scale = torch.where(values > 1e-9, 1 / (values + ridge), 0.0)
    expected = vectors @ (scale[:, None] * (vectors.T @ r))
    assert torch.allclose(matrix @ found.in_range, matrix @ expected, atol=1e-8)
    if ridge < 1e-6:
        assert torch.allclose(found.in_range, expected, atol=1e-7)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_what_cannot_be_fitted_is_counted_in_any_unit_of_the_targets(unit):
    """Of three directions the kernel has one: one more holds a part of the targets, one holds none."""
    matrix = torch.diag(torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64))
    residual = unit * torch.tensor([[1.0], [3.0], [0.0]], dtype=torch.float64)
    found = solve_ridge(matrix, residual, 0.0, 1e-12)
    assert found.lost == 1
    assert (found.in_range / unit).flatten().tolist() == pytest.approx([0.5, 0.0, 0.0])


def _seen(matrix, r, ridge):
    """(K + lam) a = r where there is a ridge; without one, the part of r in the range of K."""
    if ridge > 0:
        return r
    return matrix @ torch.linalg.pinv(matrix, rtol=1e-10) @ r


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_one_negative_eigenvalue_is_refused_in_any_unit_of_the_kernel(unit):
    """A twentieth of the largest is no rounding; a hundred-millionth is."""
    residual = torch.ones(3, 1, dtype=torch.float64)

    def solve(lowest: float):
        matrix = unit * torch.diag(torch.tensor([2.0, lowest, 1.0], dtype=torch.float64))
        return solve_ridge(matrix, residual, 0.0, 1e-12 * 2 * unit)

    for lowest in (-0.1, -1e-5):
        with pytest.raises(DataError, match="positive semi-definite"):
            solve(lowest)
    found = solve(-2e-8)
    assert (unit * found.in_range).flatten().tolist() == pytest.approx([0.5, 0.0, 1.0])
    assert found.lost == 1
    with pytest.raises(DataError, match="positive semi-definite"):
        solve_ridge(-unit * torch.eye(1, dtype=torch.float64), residual[:1], 0.0, 1e-12 * unit)


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_with_a_ridge_that_is_large_enough_nothing_is_cut_off(unit):
    """Two equal rows: sums of residuals are divided by 2 + lam, differences by lam."""
    matrix = unit * torch.ones(2, 2, dtype=torch.float64)
    residual = torch.tensor([[3.0], [1.0]], dtype=torch.float64)
    found = solve_ridge(matrix, residual, 0.01 * unit, 1e-12 * unit)
    expected = [2 / 2.01 + 1 / 0.01, 2 / 2.01 - 1 / 0.01]
    assert (unit * found.coefficients).flatten().tolist() == pytest.approx(expected, rel=1e-9)
    assert (unit * found.in_range).flatten().tolist() == pytest.approx(expected, rel=1e-9)
    assert found.lost == 0
    tiny = solve_ridge(matrix, residual, 1e-9 * unit, 1e-12 * unit)
    assert (unit * tiny.in_range).flatten().tolist() == pytest.approx([1.0, 1.0], rel=1e-6)
    assert tiny.lost == 1
