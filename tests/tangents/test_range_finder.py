"""Leading directions: exact where rows are few, and by random projection within what may stay unresolved."""

from __future__ import annotations

import pytest
import torch

from orthocl.tangents import range_finder
from orthocl.tangents.range_finder import spectrum


def rows(count, width, decay=0.8, groups=2):
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(groups):
        left = torch.linalg.qr(
            torch.randn(count, min(count, width), generator=generator, dtype=torch.float64)
        )[0]
        right = torch.linalg.qr(
            torch.randn(width, min(count, width), generator=generator, dtype=torch.float64)
        )[0]
        values = decay ** torch.arange(min(count, width), dtype=torch.float64)
        found.append(left * values @ right.T)
    return torch.stack(found)


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (7, 7)])
def test_few_rows_are_decomposed_exactly(shape):
    given = rows(*shape)
    found = spectrum(given, 0.0)
    _, values, directions = torch.linalg.svd(given, full_matrices=False)
    assert found.unresolved == 0.0
    torch.testing.assert_close(found.values[:, : min(shape)], values.square())
    for group in range(2):
        overlap = (found.vectors[group].T @ directions[group].T).abs()
        torch.testing.assert_close(
            overlap.diagonal(), torch.ones(min(shape), dtype=torch.float64), atol=1e-6, rtol=0
        )


def test_rank_deficient_rows_have_no_energy_beyond_their_rank():
    given = rows(4, 9)
    given = torch.cat([given, given], 1)  # eight rows, four directions
    found = spectrum(given, 0.0)
    assert float(found.values[:, 4:].max()) < 1e-12
    assert float(found.values.sum()) == pytest.approx(float(given.square().sum()))
    assert bool(found.vectors.isfinite().all())


@pytest.mark.parametrize("allowed", [1e-2, 1e-6])
def test_projection_resolves_as_much_as_is_asked(allowed, monkeypatch):
    monkeypatch.setattr(range_finder, "FIRST_GUESS", 4)
    given = rows(60, 80, decay=0.5)
    found = spectrum(given, allowed, exact=10)
    kept = float(found.values.sum())
    total = float(given.square().sum())
    assert found.values.shape[1] < 60  # not everything was decomposed
    assert found.unresolved <= allowed
    assert total - kept == pytest.approx(found.unresolved, abs=1e-9)
    seen = given @ found.vectors
    assert float(seen.square().sum()) == pytest.approx(kept)
    more = spectrum(given, 0.0, exact=10)  # nothing may be left: all directions, exactly
    assert (more.values.shape[1], more.unresolved) == (60, 0.0)


def test_single_precision_serves_where_much_may_be_left_out():
    """Directions are orthonormal, and the energy that they are said to hold is what they hold."""
    exact = rows(90, 40)
    found = spectrum(exact.float(), 1e-2)
    assert found.vectors.dtype == torch.float32
    same = found.vectors.mT @ found.vectors - torch.eye(40)
    assert float(same.abs().max()) < 1e-5
    held = (exact @ found.vectors.double()).square().sum(1)
    torch.testing.assert_close(found.values, held, rtol=0, atol=1e-5)
    _, values, _ = torch.linalg.svd(exact)
    torch.testing.assert_close(found.values, values.square(), rtol=0, atol=1e-5)


def test_small_directions_are_found_where_nothing_may_be_left_out():
    """Values far below the rounding of the Gram matrix in single precision."""
    found = spectrum(rows(90, 40).float(), 0.0)
    expected = (0.8 ** torch.arange(40, dtype=torch.float64)).square()
    torch.testing.assert_close(found.values[0], expected, rtol=1e-2, atol=0)


def test_directions_that_are_rounding_hold_nothing():
    """Rank 2 of 40 rows, from the smaller Gram matrix: two directions, orthonormal, and zeros."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    right = torch.randn(2, 70, generator=generator, dtype=torch.float64)
    rows = left @ right
    found = spectrum(rows[None], 0.0)
    expected = torch.linalg.svdvals(rows)[:2].square()
    torch.testing.assert_close(found.values[0, :2], expected)
    assert float(found.values[0, 2:].abs().max()) == 0
    leading = found.vectors[0, :, :2]
    torch.testing.assert_close(leading.T @ leading, torch.eye(2, dtype=torch.float64))
