"""Networks trained by descent next to their closed forms: both sides once more, with nothing but autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from orthocl.errors import TrainingError
from orthocl.theory.infinite_width import InfiniteWidthNTK
from orthocl.theory.ntk_mlp import WideMLP, descend
from orthocl.theory.overlay import overlay

RIDGE = 0.3


def tasks() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    return [(each[:, :3], each[:, 3]) for each in draw]


def gradients(model: torch.nn.Module, x: Tensor) -> Tensor:
    rows = []
    for value in model(x).flatten():
        parts = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


def reference(model: torch.nn.Module, rule: str, steps: int, rate: float | None) -> list[Tensor]:
    """Weights after each task: descent on sum (f - y)^2 + ridge |w - w_start|^2, off the span of earlier gradients."""
    found, kept = [], None
    for x, y in tasks():
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        rows = gradients(model, x)
        own = 0.9 / (float(torch.linalg.eigvalsh(rows @ rows.T)[-1]) + RIDGE) if rate is None else rate
        for _ in range(steps):
            now = torch.nn.utils.parameters_to_vector(model.parameters())
            value = (model(x).flatten() - y).square().sum() + RIDGE * (now - start).square().sum()
            parts = torch.autograd.grad(value, list(model.parameters()))
            step = torch.cat([part.flatten() for part in parts])
            if kept is not None:
                step = step - kept.T @ torch.linalg.lstsq(kept.T, step[:, None]).solution[:, 0]
            torch.nn.utils.vector_to_parameters(now.detach() - own * step, model.parameters())
        if rule == "ogd":
            kept = gradients(model, x)
        found.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone())
    return found


@pytest.mark.parametrize("rule", ["sgd", "ogd"])
@pytest.mark.parametrize("rate", [None, 0.01])
def test_descent_is_plain_descent(rule, rate):
    model, other = (WideMLP(3, 6, 1, 1, 2.0, 0.1, 0) for _ in range(2))
    found = []
    descend(
        model,
        tasks(),
        rule=rule,
        ridge=RIDGE,
        steps=5,
        learning_rate=rate,
        after_task=lambda task: found.append(
            torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        ),
    )
    expected = reference(other, rule, 5, rate)
    assert len(found) == 2
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-11)


def test_descent_that_diverges_is_told():
    with pytest.raises(TrainingError, match="no longer finite"):
        descend(WideMLP(3, 6, 1, 1, 2.0, 0.1, 0), tasks(), ridge=RIDGE, steps=200, learning_rate=10.0)


def test_the_parts_of_an_overlay():
    """Of one width: outputs after each task, and how far the kernel of explicit gradients is from the limit."""
    seen = []
    probes = tasks()[0][0].flip(0)
    settings = {"rule": "ogd", "ridge": RIDGE, "steps": 5, "bias_variance": 0.1}
    (found,) = overlay(tasks(), probes, widths=[6], progress=lambda *each: seen.append(each), **settings)
    assert seen == [(6, 1), (6, 2)]
    model = WideMLP(3, 6, 1, 1, 2.0, 0.1, 0)
    x = tasks()[0][0]
    rows = gradients(model, x)
    limit = InfiniteWidthNTK(1, 2.0, 0.1).gram(x)
    assert found.kernel_error == pytest.approx(float((rows @ rows.T - limit).norm() / limit.norm()))
    for number, weights in enumerate(reference(model, "ogd", 5, None)):
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        torch.testing.assert_close(found.trained[number].flatten(), model(probes).detach().flatten())
    apart = (found.trained - found.predicted).square().mean().sqrt()
    assert found.error == pytest.approx(float(apart))
    assert found.infinite_error == pytest.approx(
        float((found.trained - found.infinite).square().mean() ** 0.5)
    )
