"""EWC's Fisher at positions: the class with which the likelihood is taken."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from orthocl.methods import EWC
from orthocl.methods.ewc import _log_likelihood_of_positions
from orthocl.training import attach

OUTPUTS = torch.tensor(
    [[[10.0, 0.0, 0.0], [40.0, 35.0, 0.0]]], dtype=torch.float64
)  # one sample, two positions


@pytest.mark.parametrize("classes_second", [False, True])
@pytest.mark.parametrize("fisher", ["predicted", "sampled"])
def test_the_class_of_a_position_is_drawn_from_its_own_logits(fisher, classes_second):
    """Position 1 predicts class 0, position 2 has no target; the labels themselves are not used."""
    targets = torch.tensor([[2, -100]])
    outputs = OUTPUTS.movedim(-1, 1) if classes_second else OUTPUTS
    found = _log_likelihood_of_positions(outputs, targets, fisher, torch.Generator().manual_seed(0))
    assert float(found) == pytest.approx(-math.log1p(2 * math.exp(-10)), rel=1e-9)


def test_the_label_is_used_where_that_is_asked_for():
    found = _log_likelihood_of_positions(
        OUTPUTS, torch.tensor([[1, 1]]), "label", torch.Generator().manual_seed(0)
    )
    first = -10 - math.log1p(2 * math.exp(-10))
    second = -5 - math.log(1 + math.exp(-5) + math.exp(-40))
    assert float(found) == pytest.approx(first + second, rel=1e-9)


def test_classes_are_drawn_as_often_as_their_probability():
    logits = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64).expand(1, 4000, 2)
    found = _log_likelihood_of_positions(
        logits, torch.zeros(1, 4000, dtype=torch.long), "sampled", torch.Generator().manual_seed(0)
    )
    often = (float(found) - 4000 * math.log(0.25)) / math.log(3.0)  # how often class 1 was drawn
    assert often == pytest.approx(3000, abs=110)


@pytest.mark.parametrize("fisher", ["label", "sampled"])
def test_the_fisher_of_a_regression_by_hand(fisher):
    """f = x / 2 with unit noise: the gradient is (y - f) x with labels, and noise x without: E x^2 for any targets."""
    inputs = torch.full((4000, 1), 2.0, dtype=torch.float64)
    targets = torch.full((4000, 1), 7.0, dtype=torch.float64)
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.constant_(model.weight, 0.5)
    learner = attach(
        EWC(fisher=fisher),
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
    )
    with learner.learning(TensorDataset(inputs, targets)):
        pass
    (importance,) = learner.method.importance
    if fisher == "label":
        assert float(importance) == pytest.approx(12.0**2)
    else:
        assert float(importance) == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_online_form_fades_what_was_important(decay, make, data, learn):
    """With weights that do not move, the second task's importance is decay times the first's plus its own."""
    alone = make(EWC(online=True, decay=1.0), lr=0.0)
    learn(alone, data[1])
    learner = make(EWC(online=True, decay=decay), lr=0.0)
    learn(learner, data[0])
    first = [part.clone() for part in learner.method.importance]
    learn(learner, data[1])
    for now, then, own in zip(learner.method.importance, first, alone.method.importance, strict=True):
        torch.testing.assert_close(now, decay * then + own)
