"""Whatever would undo the protection without a word: each is now right, a warning or an error."""

from __future__ import annotations

import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from orthocl import AGEM, EWC, OGD, OGDPlus, attach
from orthocl.errors import TrainingError
from orthocl.methods import METHODS


def tasks(count=2, features=256, samples=60, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        TensorDataset(
            torch.randn(samples, features, generator=generator).to(dtype),
            torch.randint(3, (samples,), generator=generator),
        )
        for _ in range(count)
    ]


def network(features=256, width=64, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 3)).to(dtype)


def batches(data, size=3):
    return [tuple(t[start : start + size] for t in data.tensors) for start in range(0, len(data), size)]


def attached(momentum=0.0):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    return attach(OGD(memory_per_task=20), model, optimizer, seed=0)


def first_task(learner, data):
    with learner.learning(data):
        for x, y in batches(data):
            learner.optimizer.zero_grad()
            cross_entropy(learner.model(x), y).backward()
            learner.optimizer.step()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def clip_late(learner, data):
    for number, (x, y) in enumerate(batches(data)):
        learner.optimizer.zero_grad()
        cross_entropy(learner.model(x), y).backward()
        nn.utils.clip_grad_norm_(learner.model.parameters(), 0.1 if number > 6 else 1e9)
        learner.optimizer.step()
        yield


def skip_with_zeros_in_place(learner, data):
    for number, (x, y) in enumerate(batches(data)):
        learner.optimizer.zero_grad(set_to_none=False)
        cross_entropy(learner.model(x), y).backward()
        if number % 5 != 4:
            learner.optimizer.step()
            yield


def skip_with_late_zero_grad(learner, data):
    for number, (x, y) in enumerate(batches(data)):
        loss = cross_entropy(learner.model(x), y)
        learner.optimizer.zero_grad()
        loss.backward()
        if number % 5 != 4:
            learner.optimizer.step()
            yield


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("loop", [clip_late, skip_with_zeros_in_place, skip_with_late_zero_grad])
def test_weights_are_protected_at_every_step_whatever_happens_to_the_gradients(loop, momentum):
    learner, (one, two) = attached(momentum=momentum), tasks()
    first_task(learner, one)
    start = weights(learner.model)
    rows = learner.method.subspace.tangents.dense()
    with learner.learning(two):
        shares = []
        for _ in loop(learner, two):
            moved = weights(learner.model) - start
            shares.append(float((rows @ moved).abs().max() / (rows.norm() * moved.norm())))
        assert len(shares) > 10
        assert max(shares) < 1e-12


@pytest.mark.parametrize("kind", ["default", "foreach", "fused"])
def test_steps_of_another_optimizer_are_noticed_by_value(kind):
    learner, (one, two) = attached(), tasks()
    first_task(learner, one)
    other = torch.optim.AdamW(learner.model.parameters(), **({} if kind == "default" else {kind: True}))

    def train():
        with learner.learning(two):
            cross_entropy(learner.model(two.tensors[0]), two.tensors[1]).backward()
            other.step()

    with pytest.warns(
        UserWarning,
        match="not with the optimizer that ogd is attached to, so with the method at its end only",
    ):
        train()


def test_steps_of_another_optimizer_are_put_right_by_the_next_step_and_at_the_end():
    learner, (one, two) = attached(), tasks()
    first_task(learner, one)
    other = torch.optim.SGD(learner.model.parameters(), lr=0.05, fused=True)
    start = [p.detach().clone() for p in learner.parameters.values()]
    leaks = []
    with learner.learning(two):
        subspace = learner.method.subspace
        for number, (x, y) in enumerate(batches(two)):
            learner.model.zero_grad()
            cross_entropy(learner.model(x), y).backward()
            (other if number % 2 else learner.optimizer).step()
            moved = [p.detach() - s for p, s in zip(learner.parameters.values(), start, strict=True)]
            leaks.append(subspace.leak(moved))
        assert number % 2, "the last step is one of the other optimizer"
    assert max(leaks[::2]) < 1e-12
    assert min(leaks[1::2]) > 1e-4
    assert learner.method.watcher.report["leak"] < 1e-12


def test_rounding_of_weights_in_half_precision_is_noticed_by_the_leak():
    model, (one, two) = network(dtype=torch.bfloat16), tasks(dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="are kept in torch.bfloat16"):
        learner = attach(
            OGD(memory_per_task=20), model, torch.optim.SGD(model.parameters(), lr=0.002), seed=0
        )
    first_task(learner, one)
    with pytest.warns(
        UserWarning, match="of this task's change of the weights lies in the space that ogd .* half precision"
    ):
        first_task(learner, two)
    assert 0.005 < learner.method.watcher.report["leak"] < 0.3


def test_a_learning_rate_of_zero_beside_others_is_refused():
    """Projection moves every protected weight, those that should stand still too."""
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": model[2].parameters()}]
    learner, (one, _) = attach(OGD(memory_per_task=20), model, torch.optim.SGD(groups, lr=0.05)), tasks()

    def train():
        with learner.learning(one):
            learner.optimizer.step()

    with pytest.raises(TrainingError, match=r"'0.weight', have the learning rate 0 while others move"):
        train()


def test_a_task_without_steps_is_not_warned_of():
    learner, (one, two) = attached(), tasks()
    first_task(learner, one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with learner.learning(two):
            learner.model(two.tensors[0])


def test_every_reader_finds_the_weights_that_the_model_computes_with():
    """However it holds them: taken before or inside of the task, as parameters, data, a state or weak references."""
    learner, (one, two) = attached(momentum=0.9), tasks()
    first_task(learner, one)
    model = learner.model

    def readers():
        held = {"list": list(model.parameters()), "data": [p.data for p in model.parameters()]}
        held["state"] = list(model.state_dict().values())
        held["views"] = [p.detach().view(-1) for p in model.parameters()]
        weak = [weakref.ref(p) for p in model.parameters()]
        return [
            *(lambda held=held: held for held in held.values()),
            lambda: [reference() for reference in weak],
        ]

    found = readers()
    with learner.learning(two):
        found += readers()
        for number, (x, y) in enumerate(batches(two)):
            learner.optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            learner.optimizer.step()
            if number == 3:
                found += readers()
            expected = model(two.tensors[0])
            for read in found:
                shaped = [part.reshape(p.shape) for part, p in zip(read(), model.parameters(), strict=True)]
                named = dict(zip(dict(model.named_parameters()), shaped, strict=True))
                assert torch.equal(functional_call(model, named, two.tensors[0]), expected)
    assert len(found) == 15


def test_an_average_of_the_weights_is_protected():
    """The mean of protected weights is protected too, whoever takes it and when."""
    learner, (one, two) = attached(), tasks()
    first_task(learner, one)
    start = weights(learner.model)
    rows = learner.method.subspace.tangents.dense()
    averaged = AveragedModel(learner.model)
    with learner.learning(two):
        for number, (x, y) in enumerate(batches(two)):
            learner.optimizer.zero_grad()
            cross_entropy(learner.model(x), y).backward()
            learner.optimizer.step()
            if number % 4 == 3:
                averaged.update_parameters(learner.model)
    moved = weights(averaged.module) - start
    assert moved.norm() > 1e-3
    assert (rows @ moved).abs().max() < 1e-12 * rows.norm() * moved.norm()


def test_a_layer_frozen_inside_a_task_is_an_error():
    learner, (one, two) = attached(), tasks()
    first_task(learner, one)

    def train():
        with learner.learning(two):
            learner.model[0].requires_grad_(False)
            cross_entropy(learner.model(two.tensors[0]), two.tensors[1]).backward()
            learner.optimizer.step()

    with pytest.raises(TrainingError, match=r"'0.weight', were frozen inside a task"):
        train()


def test_a_layer_added_inside_a_task_is_said_to_be_unprotected():
    learner, (one, two) = attached(), tasks()
    first_task(learner, one)

    def train():
        with learner.learning(two):
            learner.model.append(nn.Linear(3, 3).double())
            learner.optimizer.add_param_group({"params": list(learner.model[3].parameters())})
            cross_entropy(learner.model(two.tensors[0]), two.tensors[1]).backward()
            learner.optimizer.step()

    with pytest.warns(
        UserWarning, match=r"2 trainable parameters, such as '3.weight', were added inside the task"
    ):
        train()


class Autocasting(nn.Module):
    """As accelerate and the Trainer make a model do with bf16."""

    def __init__(self, net):
        super().__init__()
        self.net, self.context = net, torch.autocast("cpu", dtype=torch.bfloat16)

    def forward(self, x):
        with self.context:
            return self.net(x).float()


@pytest.mark.parametrize("method", [OGD(memory_per_task=10), OGDPlus(memory_per_task=10), EWC(), AGEM()])
def test_autocast_inside_of_the_model(method):
    model = Autocasting(network(dtype=torch.float32))
    plain_model = network(dtype=torch.float32)
    learner = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.05), seed=0)
    other = attach(
        type(method)(**method.settings()),
        plain_model,
        torch.optim.SGD(plain_model.parameters(), lr=0.05),
        seed=0,
    )
    one, two = tasks(dtype=torch.float32)
    for each in (learner, other):  # no steps: the remembered tangents must be those of full precision
        with each.learning(one):
            pass
    if isinstance(method, OGD):
        mine, theirs = (each.method.subspace.tangents.dense() for each in (learner, other))
        torch.testing.assert_close(mine, theirs)
    with learner.learning(two):
        for x, y in batches(two, 10):
            learner.optimizer.zero_grad()
            (cross_entropy(model(x), y) + learner.penalty()).backward()
            learner.optimizer.step()
            assert not torch.is_autocast_enabled("cpu")
    assert model(two.tensors[0]).sub(model.net(two.tensors[0])).abs().max() > 0  # autocast is back
    assert learner.method.monitor(learner).get("leak", 0.0) < 1e-5


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"stable-sgd"}))
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_precision_between_tasks(name, dtype):
    model = network(features=8, width=6, dtype=torch.float32)
    small = {"memory_per_task": 4} if "memory_per_task" in METHODS[name]().settings() else {}
    learner = attach(METHODS[name](**small), model, torch.optim.SGD(model.parameters(), lr=0.05), seed=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number, data in enumerate(tasks(3, features=8, samples=12, dtype=torch.float32)):
            if number == 1:
                model.to(dtype)
            with learner.learning(data):
                x, y = data.tensors
                for _ in range(3):
                    learner.optimizer.zero_grad()
                    like = next(model.parameters()).dtype
                    (cross_entropy(model(x.to(like)), y) + learner.penalty()).backward()
                    learner.optimizer.step()
    assert weights(model).dtype == dtype
    assert weights(model).isfinite().all()
    half = [w for w in said if "rounding the weights after each step" in str(w.message)]
    assert len(half) == (1 if dtype == torch.bfloat16 and learner.method.projects else 0)
    if dtype == torch.float64 and name == "ogd":
        assert learner.method.watcher.report["leak"] < 1e-6
