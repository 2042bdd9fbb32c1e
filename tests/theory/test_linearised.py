from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.errors import SettingsError
from orthocl.nets import MLP
from orthocl.theory import (
    EmpiricalNTK,
    Overlay,
    WideMLP,
    contraction,
    descend,
    forgetting_drift,
    linearise,
    overlay,
    solve_stream,
)


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MLP((4,), hidden=(6, 6), outputs=2).double()


@pytest.fixture
def x():
    return torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_first_order_expansion(model, x):
    linear = linearise(model)
    assert torch.equal(linear(x), model(x))
    direction = [
        torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype)
        for p in model.parameters()
    ]
    with torch.no_grad():
        for displacement, part in zip(linear.parameters(), direction, strict=True):
            displacement.copy_(part)
    step = 1e-6
    moved = MLP((4,), hidden=(6, 6), outputs=2).double()
    moved.load_state_dict(model.state_dict())
    with torch.no_grad():
        for p, part in zip(moved.parameters(), direction, strict=True):
            p.add_(step * part)
    slope = (moved(x) - model(x)) / step
    assert torch.allclose(linear(x) - model(x), slope, atol=1e-4)


def test_its_tangents_are_those_of_the_network_and_never_move(model, x):
    linear = linearise(model)
    before = EmpiricalNTK(model, "all").gram(x)
    assert torch.allclose(EmpiricalNTK(linear, "all").gram(x), before, atol=1e-12)
    with torch.no_grad():
        for p in linear.parameters():
            p.add_(torch.ones_like(p))
    assert torch.allclose(EmpiricalNTK(linear, "all").gram(x), before, atol=1e-12)


def test_training_it_does_not_touch_the_network(model, x):
    linear = linearise(model)
    weights = [p.clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    linear(x).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert not torch.allclose(linear(x), model(x))
    assert linear.float()(x.float()).dtype == torch.float32
    assert next(model.parameters()).dtype == torch.float64
    with pytest.raises(SettingsError, match="nothing to linearise"):
        linearise(nn.ReLU())


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
def test_descent_on_the_linearised_network_reaches_the_closed_form(model, x, rule):
    """All logits, several tasks, real autograd and the tangents' own projection."""
    generator = torch.Generator().manual_seed(2)
    tasks = [(x + k, torch.randn(7, 2, generator=generator, dtype=torch.float64)) for k in range(3)]
    solution = solve_stream(EmpiricalNTK(model, "all"), tasks, rule=rule, ridge=2.0)
    linear = linearise(model)
    rates = [contraction(solution, t, 0.9 * solution.max_learning_rate(t)) for t in (1, 2, 3)]
    steps = int(30 / (1 - max(rates)))
    assert steps < 2000
    outputs = []
    descend(
        linear,
        tasks,
        rule=rule,
        ridge=2.0,
        steps=steps,
        after_task=lambda _: outputs.append(linear(x).detach()),
    )
    for after in (1, 2, 3):
        assert torch.allclose(outputs[after - 1], solution.predict(x, after=after), atol=1e-8)
    if rule == "ogd":
        assert max(drift.remembered for drift in forgetting_drift(solution)) < 1e-10


def test_trained_networks_approach_the_closed_form_as_they_widen(x):
    generator = torch.Generator().manual_seed(0)
    y = torch.where(torch.rand(7, generator=generator) < 0.5, 1.0, -1.0).double()
    found = overlay(
        [(x, y), (x + 0.5, -y)],
        x - 0.3,
        widths=(32, 256, 2048),
        rule="ogd",
        ridge=0.5,
        steps=300,
        bias_variance=0.1,
    )
    errors = [one.error for one in found]
    assert errors[0] > 1.5 * errors[1] > 1.5 * 1.5 * errors[2]
    kernels = [one.kernel_error for one in found]
    assert kernels[0] > kernels[1] > kernels[2]
    assert kernels[0] < 1  # relative to the limit, whatever the size of the inputs
    larger = overlay([(30 * x, y)], x, widths=(32,), steps=1, bias_variance=0.0)[0].kernel_error
    same = overlay([(x, y)], x, widths=(32,), steps=1, bias_variance=0.0)[0].kernel_error
    assert larger == pytest.approx(same)
    assert found[-1].infinite_error < found[0].infinite_error


def test_wide_network_mistakes():
    with pytest.raises(SettingsError, match="at least one"):
        WideMLP(3, width=0)


def test_errors_of_an_overlay_by_hand():
    trained, predicted, infinite = torch.tensor([[[1.0, 2.0]], [[1.0, 5.0]], [[4.0, 2.0]]])
    one = Overlay(8, trained, predicted, infinite, kernel_error=0.5)
    assert one.error == pytest.approx((9 / 2) ** 0.5)
    assert one.infinite_error == pytest.approx((9 / 2) ** 0.5)
    assert Overlay(8, trained, trained, infinite, 0.5).error == 0.0
