"""What a layer's basis promises to hold, also where its directions are found by projection."""

from __future__ import annotations

import torch

from orthocl.methods.layer_bases import LayerBases


def test_the_basis_holds_the_share_and_little_more():
    """More rows and columns than are decomposed exactly: the energy inside of the basis, and the least rank for it."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(1, 540, 530, generator=generator, dtype=torch.float64)
    rows = rows * torch.arange(1.0, 531.0, dtype=torch.float64) ** -1.2
    total, values = float(rows.square().sum()), torch.linalg.svdvals(rows[0]).square()
    for share in (0.9, 0.95, 0.98, 0.984, 0.986, 0.988, 0.99, 0.992, 0.994):
        bases = LayerBases()
        bases.grow(("weight",), rows, share)
        basis = bases.bases["weight"][0]
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64))
        assert float((rows[0] @ basis).square().sum()) >= share * total * (1 - 1e-9)
        least = int((values.cumsum(0) < share * total).sum()) + 1
        assert least <= basis.shape[1] <= 1.3 * least + 2


def test_what_the_new_directions_hold_is_returned():
    """Rows along the first two axes, then along the first three: 9 + 1, then only what is new, 4."""
    bases = LayerBases()
    axes = torch.eye(4, dtype=torch.float64)
    first = bases.grow(("weight", "bias"), torch.stack([3 * axes[0], axes[1]])[None], 1.0)
    assert first.tolist() == [[9.0, 1.0]]
    second = bases.grow(("weight", "bias"), torch.stack([5 * axes[0], 2 * axes[2]])[None], 1.0)
    assert second.tolist() == [[4.0]]
    assert bases.directions == 3
    assert bases.biases == {"weight": "bias"}
