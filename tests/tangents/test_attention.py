"""Attention that is computed again is compared with what the layer gave, in any units."""

from __future__ import annotations

import pytest
import torch

from orthocl.tangents.attention import _same


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_agreement_is_relative(scale):
    expected = scale * torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert _same(expected.clone(), expected)
    assert _same(expected * (1 + 1e-14), expected)
    assert not _same(expected * 1.01, expected)
    assert not _same(expected[:3], expected[:3].T)
    assert _same(torch.zeros(2, 2), torch.zeros(2, 2))
