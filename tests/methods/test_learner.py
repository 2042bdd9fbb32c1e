"""A penalty that a step left out is said, once, and only where there is one."""

from __future__ import annotations

import warnings

import pytest

from orthocl.methods import EWC


def steps(learner, split, penalised, count=2):
    with learner.learning(split):
        for _ in range(count):
            inputs, targets = split.samples()
            learner.optimizer.zero_grad()
            loss = learner.loss(learner.model(inputs), targets)
            (loss + learner.penalty() if penalised else loss).backward()
            learner.optimizer.step()


def test_the_first_task_has_no_penalty_to_leave_out(make, data):
    learner = make(EWC())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(learner, data[0], penalised=False)
        steps(learner, data[1], penalised=True)
    with pytest.warns(UserWarning, match="works through a penalty") as found:
        steps(learner, data[2], penalised=False)
    assert len([each for each in found if "penalty" in str(each.message)]) == 1
