"""Stable SGD: the rate of each task, and what it says when somebody else sets it."""

from __future__ import annotations

import warnings

import pytest
import torch

from orthocl.errors import SettingsError, UnsupportedError
from orthocl.methods import StableSGD
from orthocl.training import attach


def test_each_task_has_its_rate_and_nothing_is_said(make, data):
    learner = make(StableSGD(decay=0.5, dropout=None), lr=0.8)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for split in data:
            with learner.learning(split):
                rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == [0.8, 0.4, 0.2]
    assert learner.optimizer.param_groups[0]["lr"] == 0.8


@pytest.mark.parametrize("task", [1, 2, 3])
def test_a_rate_that_somebody_else_changed_is_said(make, data, task):
    learner = make(StableSGD(decay=0.5, dropout=None), lr=0.8)
    for split in data[: task - 1]:
        with learner.learning(split):
            pass
    with pytest.warns(UserWarning, match="changed the learning rate"), learner.learning(data[task - 1]):
        learner.optimizer.param_groups[0]["lr"] *= 0.9


def test_dropout_is_set_for_the_task_and_put_back(make, net, data):
    learner = make(StableSGD(dropout=0.25))
    with learner.learning(data[0]):
        assert net[2].p == 0.25
    assert net[2].p == 0.0


def test_rates_of_dropout_at_the_edge(net):
    plain = torch.nn.Linear(4, 3).double()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    attach(StableSGD(dropout=0.0), plain, optimizer).detach()  # no layer is needed for none
    with pytest.raises(UnsupportedError, match="no dropout layers"):
        attach(StableSGD(dropout=0.5), plain, optimizer)
    with pytest.raises(SettingsError, match="dropout"):
        attach(StableSGD(dropout=1.0), net, torch.optim.SGD(net.parameters(), lr=0.1))
