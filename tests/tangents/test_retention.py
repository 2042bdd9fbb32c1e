"""The terms of a change, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from orthocl.errors import DataError
from orthocl.nets import MLP, MultiHead
from orthocl.tangents.retention import Comparison, Path, Probe, compare


def test_terms_of_a_change_by_hand():
    """g(s) = 10 + 2 s + 3 s^2 + 4 s^3 at five points, and statistics that moved the start by 5."""
    shares = torch.linspace(0, 1, 5, dtype=torch.float64)
    slopes = (2 + 6 * shares + 12 * shares**2)[:, None, None]
    before, start, after = (torch.full((1, 1), value, dtype=torch.float64) for value in (10.0, 15.0, 24.0))
    change = Comparison(before, after, start, slopes).change()
    trapezoid = (2 / 2 + 4.25 + 8 + 13.25 + 20 / 2) / 4
    assert change.measured == pytest.approx(1.4)
    assert change.first_order == pytest.approx(0.2)
    assert change.statistics == pytest.approx(0.5)
    assert change.curvature == pytest.approx((20 - 13.25) * 4 / 2 / 10)  # the steepest interval
    assert change.remainder == pytest.approx(abs(9 - trapezoid) / 10)
    assert change.total == pytest.approx(
        change.first_order + change.curvature + change.remainder + change.statistics
    )
    assert change.total > change.measured


def test_the_slopes_of_a_product_of_weights_are_exact():
    """f(x) = w_2 w_1 x from (1, 2) to (4, 6): 2, 24; slopes 3 w_2 + 4 w_1 = 10 at first, 34 at last."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
    names = ["0.weight", "1.weight"]
    before, after = (
        dict(zip(names, torch.tensor(pair, dtype=torch.float64)[:, None, None], strict=True))
        for pair in ([1.0, 2.0], [4.0, 6.0])
    )
    path = Path.between(model, before, after)
    assert path.length == pytest.approx(5.0)
    found = compare(model, path, Probe("one", torch.ones(1, 1, dtype=torch.float64)))
    assert (float(found.before), float(found.after)) == pytest.approx((2.0, 24.0))
    assert (float(found.slopes[0]), float(found.slopes[-1])) == pytest.approx((10.0, 34.0))
    change = found.change()
    assert (change.first_order, change.curvature) == pytest.approx((5.0, 6.0))
    assert change.remainder == pytest.approx(0.0, abs=1e-12)  # the trapezoid is exact for a parabola
    assert change.total == pytest.approx(change.measured) == 11.0


def test_more_samples_than_a_batch_and_wrong_ones():
    probe = Probe("many", torch.arange(300.0)[:, None], torch.arange(300))
    pieces = list(probe.batches())
    assert torch.equal(torch.cat([inputs for inputs, _ in pieces]), probe.inputs)
    assert torch.equal(torch.cat([targets for _, targets in pieces]), probe.targets)
    with pytest.raises(DataError, match="300 inputs but 299 targets"):
        Probe("many", torch.zeros(300, 1), torch.zeros(299))
    with pytest.raises(DataError, match="empty"):
        Probe("none", torch.zeros(0, 1))


def test_a_change_of_outputs_that_were_zero_is_not_a_number_by_accident():
    zero = torch.zeros(1, 1, dtype=torch.float64)
    change = Comparison(zero, zero, zero, torch.zeros(3, 1, 1, dtype=torch.float64)).change()
    assert change.total == change.measured == 0.0
    assert math.isfinite(change.curvature)


def test_slopes_are_taken_on_the_way_and_at_both_ends():
    """f = w^3 from 1 to 3: slopes 2 x 3 w^2 at equal distances, more of them until little is left."""

    class Cube(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x):
            return x * self.w**3

    one, three = ({"w": torch.full((1,), value, dtype=torch.float64)} for value in (1.0, 3.0))
    model = Cube()
    found = compare(model, Path.between(model, one, three), Probe("x", torch.ones(1, 1, dtype=torch.float64)))
    shares = torch.linspace(0, 1, len(found.slopes), dtype=torch.float64)
    torch.testing.assert_close(found.slopes.flatten(), 6 * (1 + 2 * shares) ** 2)
    change = found.change()
    assert change.measured == pytest.approx(26.0)
    assert change.remainder <= 0.01 * change.total


def test_statistics_that_moved_are_a_term_of_their_own():
    """A mean that goes from 0 to 3 takes 3 from each output; one that stays, and a count, are no part of the path."""
    model = nn.BatchNorm1d(2, eps=0.0, affine=False).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = {**before, "running_mean": torch.tensor([3.0, 0.0], dtype=torch.float64)}
    after["num_batches_tracked"] = before["num_batches_tracked"] + 1
    path = Path.between(model, before, after)
    assert (set(path.start), set(path.buffers_before), path.length) == (set(), {"running_mean"}, 0.0)
    assert torch.equal(path.buffers_before["running_mean"], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(path.buffers_after["running_mean"], after["running_mean"])
    probe = Probe("one", torch.tensor([[6.0, 8.0]], dtype=torch.float64))
    change = compare(model, path, probe).change()
    assert (change.measured, change.statistics, change.total) == pytest.approx((0.3, 0.3, 0.3))
    assert (change.first_order, change.curvature, change.remainder) == pytest.approx((0.0, 0.0, 0.0))


@pytest.mark.parametrize(("head", "selected", "used"), [("a", "b", "a"), ("b", "a", "b"), (None, "b", "b")])
def test_outputs_are_those_of_the_head_of_the_probe(head, selected, used):
    torch.manual_seed(0)
    model = MultiHead(MLP((4,), (5,)), {"a": 2, "b": 3}).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    model.select(used)
    expected = model(x).detach()
    model.select(selected)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = {name: 1.1 * value for name, value in before.items()}
    found = compare(model, Path.between(model, before, after), Probe("some", x, head=head))
    torch.testing.assert_close(found.before, expected)
    assert model.selected == selected


def test_outputs_of_a_model_without_heads_are_compared():
    model = nn.Linear(2, 1, bias=False).double()
    before = {"weight": torch.tensor([[1.0, 2.0]], dtype=torch.float64)}
    after = {"weight": torch.tensor([[2.0, 2.0]], dtype=torch.float64)}
    found = compare(model, Path.between(model, before, after), Probe("one", torch.ones(1, 2).double()))
    assert (float(found.before), float(found.after)) == pytest.approx((3.0, 4.0))
