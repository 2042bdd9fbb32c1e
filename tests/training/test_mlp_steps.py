from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from orthocl.methods import make_method
from orthocl.nets import MLP
from orthocl.streams import make
from orthocl.tangents import Adapter
from orthocl.training import Observer, TrainSettings, attach, train
from orthocl.training.loop import Member, train_members, why_not_together
from orthocl.training.mlp_steps import MLPStepper
from orthocl.training.quick_conditions import linear_layers

SETTINGS = TrainSettings(epochs=3, batch_size=13, learning_rate=0.05, evaluate_every=7)


@pytest.fixture(scope="module")
def stream():
    return make("permuted-mnist-mini", tasks=3, train_size=60, test_size=40)


def make_member(
    stream, method="ogd", seed=0, *, hidden=(20, 15), dtype=torch.float32, observers=(), **settings
):
    torch.manual_seed(seed)
    model = MLP(stream.input_shape, hidden, 10).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=SETTINGS.learning_rate)
    learner = attach(make_method(method, settings), model, optimizer, seed=seed, batch_norm="keep")
    return Member(learner, stream, seed, observers=observers)


def by_autograd(member):
    return train(
        member.learner,
        member.stream,
        SETTINGS,
        seed=member.seed,
        progress=member.progress,
        observers=member.observers,
        quick=False,
    )


def assert_equal(member, other):
    assert (member.progress.losses, member.progress.curves) == (other.progress.losses, other.progress.curves)
    assert member.progress.accuracies == other.progress.accuracies
    assert member.progress.memorised == other.progress.memorised
    assert member.progress.monitors == other.progress.monitors
    assert all(map(torch.equal, member.learner.model.parameters(), other.learner.model.parameters()))


@pytest.mark.parametrize("method", ["ogd", "ogd+", "pca-ogd"])
@pytest.mark.parametrize("variant", ["gtl", "ave", "all"])
@pytest.mark.parametrize("engine", ["adapter", "project"])
def test_steps_are_those_of_autograd_to_the_bit(stream, method, variant, engine):
    written, other = (
        make_member(stream, method, variant=variant, engine=engine, memory_per_task=12) for _ in range(2)
    )
    assert why_not_together([written]) is None
    train_members([written], SETTINGS)
    by_autograd(other)
    assert_equal(written, other)
    assert written.progress.seconds["remember"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"input_cache": 0},
        {"storage": "bfloat16"},
        {"storage": "float64"},
        {"dtype": torch.float64},
        {"memory_per_task": 0},
        {"hidden": (130,), "memory_per_task": 60},
    ],
)
def test_with_other_settings(stream, settings):
    written, other = (make_member(stream, **settings) for _ in range(2))
    train_members([written], SETTINGS)
    by_autograd(other)
    assert_equal(written, other)


def test_several_networks_with_adapters_of_their_own(stream):
    together, single = (
        [make_member(stream, "ogd+", seed, engine="adapter", memory_per_task=10) for seed in range(3)]
        for _ in range(2)
    )
    train_members(together, SETTINGS)
    for member, other in zip(together, single, strict=True):
        by_autograd(other)
        assert_equal(member, other)


class Meddler(Observer):
    """Takes the adapter off in the middle of a task, as a failed check does, or loads weights."""

    def __init__(self, deed):
        self.deed = deed

    def on_step(self, learner, progress, loss):
        if (progress.task, progress.step) == (2, 6):
            self.deed(learner)


@pytest.mark.parametrize(
    "deed",
    [
        lambda learner: learner.method.remove_adapter(learner),
        lambda learner: learner.model.load_state_dict(learner.model.state_dict()),
        lambda learner: learner.merge(),
    ],
)
def test_what_happens_to_the_adapter_in_a_task_is_noticed(stream, deed):
    written, other = (
        make_member(stream, engine="auto", memory_per_task=12, observers=[Meddler(deed)]) for _ in range(2)
    )
    train_members([written], SETTINGS)
    by_autograd(other)
    assert_equal(written, other)


def test_the_adapter_is_really_used(stream, monkeypatch):
    taken = []
    step = Adapter.step
    monkeypatch.setattr(Adapter, "step", lambda *arguments: (taken.append(1), step(*arguments))[1])
    train_members([make_member(stream, engine="adapter", memory_per_task=12)], SETTINGS)
    assert len(taken) == 2 * 3 * 5  # two tasks, three epochs, five batches


def test_training_by_hand(stream):
    """A step in the open: gradients are autograd's, and the loss is the one before the step."""
    member = make_member(stream, "sgd")
    model = copy.deepcopy(member.learner.model)
    inputs, targets = stream.task(1).train.samples()
    index = torch.arange(10)
    with member.learner.learning(stream.task(1)):
        steps = MLPStepper([member.learner], [(inputs, targets)])
        (loss,) = steps.backward([index])
        steps.step()
    expected = nn.functional.cross_entropy(model(inputs[:10]), targets[:10])
    expected.backward()
    assert loss == expected.item()
    for parameter, own in zip(model.parameters(), member.learner.model.parameters(), strict=True):
        assert torch.equal(own.grad, parameter.grad)
        assert torch.equal(own, parameter.detach().add(parameter.grad, alpha=-SETTINGS.learning_rate))


def test_which_networks_are_perceptrons():
    assert len(linear_layers(MLP((4,), (3, 3), 2))) == 3
    assert len(linear_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))) == 2
    assert linear_layers(MLP((4,), (3, 3), 2, dropout=0.1)) is None
    assert linear_layers(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))) is None
    assert linear_layers(nn.Sequential(nn.Linear(2, 3, bias=False))) is None
    assert linear_layers(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))) is None
    frozen = copy.deepcopy(MLP((4,), (3, 3), 2))
    frozen[1].weight.requires_grad_(False)
    assert linear_layers(frozen) is None
    assert linear_layers(nn.Linear(2, 2)) is None
    assert linear_layers(MLP((4,), (3, 3))) is None  # ends with a ReLU
