"""One loop, two steppers: quick steps only where nothing can see the difference, and only after a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from orthocl.methods import EWC, OGD, SGD, Method
from orthocl.nets import MLP
from orthocl.streams import from_arrays
from orthocl.training import Observer, TrainSettings, attach, train
from orthocl.training.mlp_steps import MLPStepper
from orthocl.training.quick_conditions import why_not_quick

SETTINGS = TrainSettings(epochs=2, batch_size=5, learning_rate=0.05)


def make_stream(tasks=2, samples=20):
    generator = torch.Generator().manual_seed(1)

    def arrays():
        return torch.randn(samples, 6, generator=generator), torch.arange(samples) % 3

    return from_arrays([(*arrays(), *arrays()) for _ in range(tasks)], outputs=3)


def make_learner(method=None, model=None, **optimizer):
    torch.manual_seed(0)
    model = model or MLP((6,), (8, 7), 3)
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.05, **optimizer})
    return attach(method or SGD(), model, optimizer, seed=0)


def reason(learner, dtype=torch.float32):
    inputs, targets = make_stream().task(1).train.samples()
    return why_not_quick(learner, inputs.to(dtype), targets)


@pytest.fixture
def quick(monkeypatch):
    """Counts the quick steps that are taken."""
    taken = []
    step = MLPStepper.step
    monkeypatch.setattr(MLPStepper, "step", lambda self: (taken.append(1), step(self))[1])
    return taken


def test_the_loop_takes_quick_steps_where_it_may(quick):
    train(make_learner(), make_stream(), SETTINGS, seed=0)
    assert len(quick) == 2 * 2 * 4
    train(make_learner(), make_stream(), SETTINGS, seed=0, quick=False)
    train(make_learner(EWC()), make_stream(), SETTINGS, seed=0)
    assert len(quick) == 2 * 2 * 4


def forward_hook(learner, seen):
    learner.model[1].register_forward_hook(lambda *_: seen.append(1))


def forward_pre_hook(learner, seen):
    learner.model[1].register_forward_pre_hook(lambda *_: seen.append(1))


def hook_of_the_whole_model(learner, seen):
    learner.model.register_forward_hook(lambda *_: seen.append(1))


def backward_hook(learner, seen):
    learner.model[2].register_full_backward_hook(lambda *_: seen.append(1))


def tensor_hook(learner, seen):
    learner.model[1].weight.register_hook(lambda gradient: seen.append(1))


def accumulation_hook(learner, seen):
    learner.model[1].bias.register_post_accumulate_grad_hook(lambda _: seen.append(1))


def replaced_forward(learner, seen):
    forward = learner.model[2].forward
    learner.model[2].forward = lambda x: (seen.append(1), forward(x))[1]


def hook_on_the_optimizer(learner, seen):
    learner.optimizer.register_step_post_hook(lambda *_: seen.append(1))


def scheduler(learner, seen):
    torch.optim.lr_scheduler.StepLR(learner.optimizer, 1000)
    step = learner.optimizer.step
    learner.optimizer.step = lambda *a: (seen.append(1), step(*a))[1]


WATCHERS = [
    forward_hook,
    forward_pre_hook,
    hook_of_the_whole_model,
    backward_hook,
    tensor_hook,
    accumulation_hook,
    replaced_forward,
    hook_on_the_optimizer,
    scheduler,
]


@pytest.mark.parametrize("watch", WATCHERS)
@pytest.mark.parametrize("kind", [SGD, OGD])
def test_whoever_watches_sees_every_step(watch, kind, quick):
    learner, seen = make_learner(kind()), []
    watch(learner, seen)
    assert reason(learner)
    train(learner, make_stream(), SETTINGS, seed=0)
    assert len(seen) >= 2 * 2 * 4
    assert not quick
    silent = make_learner(kind())
    train(silent, make_stream(), SETTINGS, seed=0)
    for one, other in zip(learner.model.parameters(), silent.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_global_hooks_are_seen():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert "hooks on the model" in reason(make_learner())
    finally:
        handle.remove()
    assert reason(make_learner()) is None


class Late(Observer):
    """Puts a hook on the model in the middle of the first task."""

    def __init__(self):
        self.seen = []

    def on_step(self, learner, progress, loss):
        if (progress.task, progress.step) == (1, 3):
            learner.model[1].register_forward_hook(lambda *_: self.seen.append(torch.is_grad_enabled()))


def test_a_hook_that_comes_later_is_called_from_then_on(quick):
    late = Late()
    train(make_learner(), make_stream(), SETTINGS, seed=0, observers=[late])
    assert len(quick) == 3
    assert sum(late.seen) == 5 + 8  # training steps; evaluations have no gradients


@dataclass
class Hooked(Method):
    """A method that listens to the layers, as GPM's first implementations do."""

    name: ClassVar[str] = "hooked"
    projects: ClassVar[bool] = True
    quick_steps: ClassVar[bool] = True

    def begin_task(self, learner):
        self.seen = []
        self.handle = learner.model[1].register_forward_hook(lambda *_: self.seen.append(1))

    def end_task(self, learner):
        self.handle.remove()


def test_hooks_of_the_method_itself_are_called(quick):
    learner = make_learner(Hooked())
    train(learner, make_stream(), SETTINGS, seed=0)
    assert len(learner.method.seen) == 8
    assert not quick


class Silent(SGD):
    name: ClassVar[str] = "silent"


class Subclass(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


class MyMLP(MLP):
    pass


@pytest.mark.parametrize(
    ("learner", "words"),
    [
        (lambda: make_learner(Silent()), "does not declare"),
        (lambda: make_learner(EWC()), "does not declare"),
        (lambda: make_learner(momentum=0.9), "plain SGD"),
        (lambda: make_learner(weight_decay=0.1), "plain SGD"),
        (lambda: make_learner(lr=torch.tensor(0.1)), "is a tensor"),
        (
            lambda: make_learner(model=nn.Sequential(Subclass(6, 5), nn.ReLU(), nn.Linear(5, 3))),
            "perceptrons",
        ),
        (lambda: make_learner(model=MyMLP((6,), (5,), 3)), "perceptrons"),
        (lambda: make_learner(model=MLP((6,), (5,), 3, dropout=0.2)), "perceptrons"),
        (lambda: make_learner(model=MLP((6,), (1,), 3)), "single unit"),
        (lambda: make_learner(model=MLP((6,), (5,), 3).double()), "of the same type"),
        (lambda: make_learner(model=MLP((7,), (5,), 3)), "do not fit"),
    ],
)
def test_what_is_stepped_plainly(learner, words):
    assert words in reason(learner())


def test_shared_layers_own_losses_and_left_out_parameters_are_stepped_plainly():
    shared = nn.Linear(6, 6)
    assert "perceptrons" in reason(make_learner(model=nn.Sequential(shared, nn.ReLU(), shared)))
    model = MLP((6,), (8, 7), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = attach(SGD(), model, optimizer, loss=lambda z, y: nn.functional.cross_entropy(z, y) * 2)
    assert "cross-entropy" in reason(learner)
    model = MLP((6,), (8, 7), 3)
    some = torch.optim.SGD(list(model.parameters())[2:], lr=0.1)
    assert "other parameters" in reason(attach(SGD(), model, some, protect=["4", "7"]))
    learner = make_learner()
    learner.detach()
    assert "detached" in reason(learner)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "mode of torch" in reason(make_learner())


@pytest.mark.parametrize("kind", [SGD, OGD])
@pytest.mark.parametrize("wrong", ["gradient", "loss"])
def test_a_quick_step_that_differs_is_given_up_for_good(monkeypatch, quick, wrong, kind):
    backward, calls = MLPStepper.backward, []

    def off_by_a_bit(self, index):
        calls.append(1)
        losses = backward(self, index)
        bias = self.nets[0][0].d_bias
        if wrong == "loss":
            return [losses[0] * (1 + 1e-7)]
        bias.copy_(torch.nextafter(bias, torch.ones_like(bias)))
        return losses

    monkeypatch.setattr(MLPStepper, "backward", off_by_a_bit)
    learner = make_learner(kind(memory_per_task=4) if kind is OGD else kind())
    with pytest.warns(UserWarning, match="differ from autograd"):
        progress = train(learner, make_stream(), SETTINGS, seed=0)
    assert len(calls) == 1
    assert not quick
    other = make_learner(kind(memory_per_task=4) if kind is OGD else kind())
    expected = train(other, make_stream(), SETTINGS, seed=0, quick=False)
    assert progress.losses == expected.losses
    assert all(map(torch.equal, learner.model.parameters(), other.model.parameters()))


def test_the_comparison_is_made_in_every_task_and_leaves_no_trace(monkeypatch):
    """Also with a tangent adapter, which collects a gradient of its own in both passes."""
    compared = []
    agrees = MLPStepper.agrees
    monkeypatch.setattr(MLPStepper, "agrees", lambda self, g: (compared.append(len(g)), agrees(self, g))[1])
    learner, other = (make_learner(OGD(memory_per_task=4, engine="adapter")) for _ in range(2))
    progress = train(learner, make_stream(3), SETTINGS, seed=0)
    assert len(compared) == 3
    expected = train(other, make_stream(3), SETTINGS, seed=0, quick=False)
    assert (progress.losses, progress.monitors) == (expected.losses, expected.monitors)
    assert all(map(torch.equal, learner.model.parameters(), other.model.parameters()))
