from __future__ import annotations

from dataclasses import replace

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from orthocl.errors import TrainingError
from orthocl.methods import EWC, SGD
from orthocl.nets import MLP, LeNet
from orthocl.streams import make
from orthocl.training import Observer, TrainSettings, attach, train
from orthocl.training.checkpoint import load_checkpoint, save_checkpoint
from orthocl.training.loop import Member, train_members, why_not_together

SETTINGS = TrainSettings(epochs=2, batch_size=13, learning_rate=0.05)


def make_stream(seed=0, tasks=2):
    return make("permuted-mnist-mini", tasks=tasks, seed=seed, train_size=60, test_size=40)


def make_member(seed, *, stream=None, method=None, net=None, observers=(), **optimizer):
    torch.manual_seed(seed)
    stream = stream or make_stream()
    model = net or MLP(stream.input_shape, (20, 15), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=SETTINGS.learning_rate, **optimizer)
    learner = attach(method or SGD(), model, optimizer, seed=seed, batch_norm="keep")
    return Member(learner, stream, seed, observers=observers)


def alone(member, settings=SETTINGS):
    return train(
        member.learner,
        member.stream,
        settings,
        seed=member.seed,
        progress=member.progress,
        observers=member.observers,
        quick=False,
    )


def weights(member):
    return list(member.learner.model.parameters())


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("evaluate_every", [None, 4])
def test_together_is_as_alone(count, evaluate_every):
    settings = replace(SETTINGS, evaluate_every=evaluate_every)
    together, single = ([make_member(seed) for seed in range(count)] for _ in range(2))
    assert why_not_together(together) is None
    found = train_members(together, settings)
    for member, other, progress in zip(together, single, found, strict=True):
        expected = alone(other, settings)
        for own, theirs in zip(weights(member), weights(other), strict=True):
            assert torch.equal(own, theirs)
        assert progress.accuracies == expected.accuracies
        assert progress.curves == expected.curves
        assert (progress.task, progress.step) == (3, 0)
        assert progress.losses == expected.losses
        assert progress.seconds["train"] > 0


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    hidden=st.lists(st.integers(2, 130), min_size=1, max_size=3),
    batch_size=st.integers(1, 64),
    samples=st.integers(1, 150),
    count=st.integers(1, 5),
)
def test_for_any_shape_the_bits_are_those_of_runs_made_alone(hidden, batch_size, samples, count):
    stream = make("permuted-mnist-mini", tasks=1, train_size=samples, test_size=10)
    settings = TrainSettings(epochs=3, batch_size=batch_size, learning_rate=0.05)

    def members():
        nets = []
        for seed in range(count):
            torch.manual_seed(seed)
            nets.append(make_member(seed, stream=stream, net=MLP(stream.input_shape, hidden, 10)))
        return nets

    together, single = members(), members()
    assert why_not_together(together) is None
    for progress, other in zip(train_members(together, settings), single, strict=True):
        assert progress.losses == alone(other, settings).losses
    for member, other in zip(together, single, strict=True):
        assert all(map(torch.equal, weights(member), weights(other)))


def test_no_warning_that_another_optimizer_trained(recwarn):
    train_members([make_member(0)], SETTINGS)
    assert not list(recwarn)


def test_streams_of_their_own():
    streams = [make_stream(seed) for seed in (1, 2)]
    together = [make_member(seed, stream=stream) for seed, stream in enumerate(streams)]
    single = [make_member(seed, stream=stream) for seed, stream in enumerate(streams)]
    found = train_members(together, SETTINGS)
    assert [p.accuracies for p in found] == [alone(member).accuracies for member in single]


def test_networks_have_weights_of_their_own_afterwards():
    members = [make_member(seed) for seed in range(2)]
    train_members(members, SETTINGS)
    storages = [p.untyped_storage() for member in members for p in weights(member)]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    assert sum(s.nbytes() for s in storages) == sum(4 * p.numel() for m in members for p in weights(m))


class StopAt(Observer):
    """Writes a checkpoint at a step and stops there."""

    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_step(self, learner, progress, loss):
        if (progress.task, progress.step) == self.step:
            save_checkpoint(self.path, learner, progress)
            raise TrainingError("stopped")


def test_all_observers_see_the_step_of_an_error_and_each_goes_on_alone_or_together(tmp_path):
    expected = [alone(make_member(seed)).accuracies for seed in range(3)]
    members = [make_member(seed, observers=[StopAt(tmp_path / str(seed), (2, 3))]) for seed in range(3)]
    with pytest.raises(TrainingError, match="stopped"):
        train_members(members, SETTINGS)
    resumed = [make_member(seed) for seed in range(3)]
    for seed, member in enumerate(resumed):
        member.progress = load_checkpoint(tmp_path / str(seed), member.learner, member.stream)
        assert (member.progress.task, member.progress.step) == (2, 3)
    assert alone(resumed[0]).accuracies == expected[0]
    assert [p.accuracies for p in train_members(resumed[1:], SETTINGS)] == expected[1:]


def test_a_loss_that_is_no_number_stops_all():
    members = [make_member(seed) for seed in range(2)]
    with torch.no_grad():
        weights(members[1])[0].fill_(float("nan"))
    before = [p.clone() for p in weights(members[0])]
    with pytest.raises(TrainingError, match="the loss became nan"):
        train_members(members, SETTINGS)
    assert all(map(torch.equal, before, weights(members[0])))


def with_position(member):
    member.progress.step = 5
    return member


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda: make_member(1, method=EWC()), "method 'ewc' does not declare"),
        (lambda: make_member(1, momentum=0.9), "exist only for plain SGD"),
        (lambda: make_member(1, weight_decay=1e-3), "exist only for plain SGD"),
        (lambda: make_member(1, net=LeNet((1, 32, 32), 20, 10)), "multilayer perceptrons"),
        (lambda: make_member(1, net=MLP((1, 32, 32), (20, 16), 10)), "different shapes"),
        (lambda: make_member(1, net=MLP((1, 32, 32), (1, 15), 10)), "a single unit"),
        (lambda: make_member(1, stream=make_stream(tasks=3)), "different sizes"),
        (lambda: with_position(make_member(1)), "different steps"),
    ],
)
def test_why_not(other, reason):
    assert reason in why_not_together([make_member(0), other()])
