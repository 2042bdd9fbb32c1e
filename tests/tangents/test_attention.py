"""Attention that is computed again is compared with what the layer gave, in any units."""

from __future__ import annotations

import pytest
import torch

from orthocl.tangents.attention import same, watch_projections


@pytest.mark.parametrize("mask", [None, "one for all", "one for each head"])
@pytest.mark.parametrize("itself", [True, False])
@pytest.mark.parametrize(("width", "heads"), [(6, 1), (6, 2), (8, 2), (16, 1)])
def test_heads_of_any_width_are_computed_again(width, heads, itself, mask):
    """What the layer gives by itself is found again, so its projections are reported."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(width, heads, batch_first=True).double().eval()
    query, other = torch.randn(2, 3, 4, width, dtype=torch.float64)
    key = query if itself else other
    shape = {None: (0,), "one for all": (4, 4), "one for each head": (3 * heads, 4, 4)}[mask]
    hidden = None if mask is None else torch.randn(shape, dtype=torch.float64)
    expected = module(query, key, key, attn_mask=hidden)[0]
    uses = []
    end = watch_projections(module, uses.append)
    torch.testing.assert_close(module(query, key, key, attn_mask=hidden)[0], expected)
    end()
    assert len(uses) == (1 if itself else 3)


@pytest.mark.parametrize("settings", [{}, {"average_attn_weights": False}, {"need_weights": False}])
def test_the_weights_of_the_heads_are_returned_as_asked_for(settings):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(6, 2, batch_first=True).double().eval()
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    expected = module(x, x, x, **settings)[1]
    end = watch_projections(module, lambda use: None)
    found = module(x, x, x, **settings)[1]
    end()
    assert (found is None) == (expected is None)
    if expected is not None:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_agreement_is_relative(scale):
    expected = scale * torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert same(expected.clone(), expected)
    assert same(expected * (1 + 1e-14), expected)
    assert not same(expected * 1.01, expected)
    assert not same(expected[:3], expected[:3].T)
    assert same(torch.zeros(2, 2), torch.zeros(2, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_to_a_hundredth(dtype):
    expected = torch.full((4, 5), 3.0, dtype=dtype)
    assert same(expected * 1.005, expected)
    assert not same(expected * 1.05, expected)


def watched(module, *inputs, **settings):
    """What a watched attention returns, and the uses of its projections that were reported."""
    uses = []
    end = watch_projections(module, uses.append)
    torch.manual_seed(1)
    found = module(*inputs, **settings)
    end()
    return found, uses


def test_attention_that_cannot_be_computed_again_keeps_its_own_outputs():
    """Without a batch axis, with settings by position, and with dropout: nothing is reported."""
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True).double()
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    for training, inputs in ((False, (x[0],) * 3), (False, (x, x, x, None, False)), (True, (x, x, x))):
        module.train(training)
        found, uses = watched(module, *inputs)
        torch.manual_seed(1)
        module(*inputs)  # a watched attention is first computed as it is
        expected = module(*inputs)
        assert uses == []
        torch.testing.assert_close(found[0], expected[0])
        assert (found[1] is None) == (expected[1] is None)
