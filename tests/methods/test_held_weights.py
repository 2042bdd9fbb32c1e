"""Weights that something besides the model and its optimizer holds, and reads while a task is learnt."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from orthocl import OGD, attach
from orthocl.methods.held_weights import held_elsewhere


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def plain(held, inputs):
    """What a list of the parameters computes."""
    return (torch.tanh(inputs @ held[0].t() + held[1]) @ held[2].t() + held[3]).detach()


def wide_tasks():
    generator = torch.Generator().manual_seed(0)
    return [
        TensorDataset(torch.randn(40, 256, generator=generator), torch.randint(3, (40,), generator=generator))
        for _ in range(2)
    ]


def wide_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 3))


def outputs_after_steps(learner, data, count=3):
    """Take steps; after each the outputs of the model."""
    for _ in range(count):
        learner.optimizer.zero_grad()
        cross_entropy(learner.model(data.tensors[0]), data.tensors[1]).backward()
        learner.optimizer.step()
        yield learner.model(data.tensors[0]).detach()


def test_weights_can_be_read_in_the_middle_of_a_task():
    """`learner.merge()`: parameters that somebody holds are then what the model computes with."""
    model, (first, second) = wide_network(), wide_tasks()
    learner = attach(
        OGD(memory_per_task=20, engine="adapter"), model, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    with learner.learning(first):
        assert len(list(outputs_after_steps(learner, first))) == 3
    held = list(model.parameters())
    context = learner.learning(second)
    with pytest.warns(UserWarning, match=r"learner\.merge\(\)"):
        context.__enter__()
    with contextlib.ExitStack() as stack:
        stack.push(context)
        *_, expected = outputs_after_steps(learner, second)
        assert learner.method.adapter is not None
        assert float((plain(held, second.tensors[0]) - expected).abs().max()) > 1e-4
        learner.merge()
        torch.testing.assert_close(plain(held, second.tensors[0]), expected, rtol=1e-4, atol=1e-5)


class Average:
    """An average of weights as many libraries make it, with the parameters or weak references to them."""

    def __init__(self, parameters, weak):
        self.parameters = [weakref.ref(p) if weak else p for p in parameters]

    def read(self):
        return [p() if isinstance(p, weakref.ref) else p for p in self.parameters]


@pytest.mark.parametrize("made", ["before", "inside", "later"])
@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_that_somebody_holds_are_complete(made, weak, momentum):
    """An average over a list of parameters reads, after every step, what the model computes with."""
    ends = []
    for engine in ("auto", "project"):
        model, (first, second) = wide_network(), wide_tasks()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        learner = attach(OGD(memory_per_task=20, engine=engine), model, optimizer, seed=3)
        with learner.learning(first):
            assert len(list(outputs_after_steps(learner, first))) == 3
        average = Average(model.parameters(), weak) if made == "before" else None
        with learner.learning(second):
            average = Average(model.parameters(), weak) if made == "inside" else average
            for number, expected in enumerate(outputs_after_steps(learner, second, 6)):
                if number == 2 and average is None:
                    assert (learner.method.adapter is not None) == (engine == "auto")
                    average = Average(model.parameters(), weak)
                if average is not None:
                    found = plain(average.read(), second.tensors[0])
                    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
            assert learner.method.adapter is None
        ends.append(weights(model))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-6)


def test_nobody_holds_weights_who_only_trains_a_model():
    """What belongs to the model, the optimizer, a schedule or a function that has ended does not count."""
    model, (first, second) = wide_network(), wide_tasks()
    learner = attach(OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.1))
    schedule = torch.optim.lr_scheduler.StepLR(learner.optimizer, 1, 0.9)
    used = []
    for data in (first, second):
        with learner.learning(data):
            for _ in outputs_after_steps(learner, data):
                schedule.step()
                assert sum(float(p.detach().norm()) for p in model.parameters()) > 0  # read, and not kept
            used.append(learner.method.adapter is not None)
    assert used == [False, True]


@pytest.mark.parametrize("steps_before", [0, 12])
def test_a_variable_of_a_function_is_complete(steps_before):
    """A single parameter in a local variable, taken at any time, is what the model computes with."""
    model, (first, second) = wide_network(), wide_tasks()
    learner = attach(OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with learner.learning(first):
        assert len(list(outputs_after_steps(learner, first))) == 3
    with learner.learning(second):
        assert len(list(outputs_after_steps(learner, second, steps_before))) == steps_before
        assert learner.method.adapter is not None
        weight, bias = model[0].weight, model[0].bias
        for _ in outputs_after_steps(learner, second):
            torch.testing.assert_close(
                weight @ second.tensors[0].t() + bias[:, None], model[0](second.tensors[0]).t()
            )
        assert learner.method.adapter is None


def test_a_variable_of_another_thread_is_complete():
    model, (first, second) = wide_network(), wide_tasks()
    learner = attach(OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.1))
    taken, done = threading.Event(), threading.Event()

    def watch():
        weight = model[0].weight
        taken.set()
        done.wait(60)
        return weight

    with learner.learning(first):
        assert len(list(outputs_after_steps(learner, first))) == 3
    thread = threading.Thread(target=watch)
    with learner.learning(second):
        assert learner.method.adapter is not None
        thread.start()
        taken.wait(60)
        assert len(list(outputs_after_steps(learner, second, 1))) == 1
        assert learner.method.adapter is None
        done.set()
    thread.join()


def test_a_list_made_after_many_reads_is_complete():
    """However often the weights have been read before in the task."""
    model, (first, second) = wide_network(), wide_tasks()
    learner = attach(OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with learner.learning(first):
        assert len(list(outputs_after_steps(learner, first))) == 3
    with learner.learning(second):
        for number, _ in enumerate(outputs_after_steps(learner, second, 60)):
            if number % 5 == 0:
                assert sum(float(p.detach().norm()) for p in model.parameters()) > 0
        assert learner.method.adapter is not None
        average = Average(model.parameters(), weak=False)
        for expected in outputs_after_steps(learner, second):
            torch.testing.assert_close(
                plain(average.read(), second.tensors[0]), expected, rtol=1e-4, atol=1e-5
            )
        assert learner.method.adapter is None


@pytest.mark.skipif(
    sys.gettrace() is not None, reason="a tracer (coverage, a debugger) keeps variables itself"
)
def test_looking_for_variables_keeps_none_of_them():
    """What a running function lets go of after the look is freed: no copy of its variables stays."""

    class Thing:
        pass

    model = wide_network()
    learner = attach(OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.1))
    thing = Thing()
    gone = weakref.ref(thing)
    assert not held_elsewhere(learner)
    del thing
    assert gone() is None


def test_looking_from_a_debugger_keeps_its_variables():
    """A step that is taken at the prompt of a debugger, whose function goes on with the variables it had."""
    model = wide_network()
    learner = attach(OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.1))
    looked = []

    def debugged():
        first = 1
        second = 2
        return first + second

    def debugger(frame, event, _):
        if frame.f_code is debugged.__code__ and event == "line":
            looked.append(held_elsewhere(learner))
        return debugger

    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        found = debugged()
    finally:
        sys.settrace(before)
    assert (found, looked) == (3, [False] * 3)
