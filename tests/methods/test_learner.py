"""What a learner does around a step: penalties, batch statistics, and the displacement that it keeps protected."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from orthocl.errors import SettingsError, UnsupportedError
from orthocl.methods import EWC, METHODS, OGD, SGD, SGP, AdapterOGD, Method, OGDPlus
from orthocl.streams import TensorSplit
from orthocl.training import attach


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
    (said,) = [each for each in found if "penalty" in str(each.message)]
    assert said.filename == __file__


@pytest.mark.parametrize("policy", ["freeze", "keep"])
def test_batch_statistics_move_in_the_first_task_only_or_in_all(policy, data):
    """With a learning rate of zero nothing else moves; afterwards the layer trains as ever."""
    norm = nn.BatchNorm1d(4).double()
    net = nn.Sequential(norm, nn.Linear(4, 3).double())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    learner = attach(OGD(memory_per_task=4), net, optimizer, batch_norm=policy)
    moved = []
    for split in data[:3]:
        before = norm.running_mean.clone()
        steps(learner, split, penalised=False)
        moved.append(not torch.equal(before, norm.running_mean))
    assert moved == [True, policy == "keep", policy == "keep"]
    before = norm.running_mean.clone()
    net(data[0].samples()[0])
    assert not torch.equal(before, norm.running_mean)


def test_a_certificate_sees_statistics_that_moved(data):
    net = nn.Sequential(nn.BatchNorm1d(4).double(), nn.Linear(4, 3).double())
    learner = attach(
        OGD(memory_per_task=4), net, torch.optim.SGD(net.parameters(), lr=0.0), batch_norm="keep"
    )
    for split in data[:2]:
        steps(learner, split, penalised=False)
    found = learner.certificate({"first": data[0].samples()})
    assert found.probes[-1].change.measured > 0


@pytest.mark.parametrize(("targets", "kind"), [(torch.float64, "regression"), (torch.long, "classification")])
def test_numbers_are_regression_and_labels_are_classes(make, data, targets, kind):
    learner = make(SGD())
    inputs, labels = data[0].samples()
    with learner.learning(TensorDataset(inputs, labels.to(targets))):
        assert learner.current_task.kind == kind


class Nudge(Method):
    """Adds one to every gradient, in place."""

    name = "nudge"

    def transform(self, learner, gradient):
        torch._foreach_add_(list(gradient), 1.0)
        return gradient


def test_a_method_may_work_in_place_on_weights_without_a_gradient(data):
    """One layer is not used: its gradient is None, and what the method makes of it counts."""
    net = nn.ModuleDict({"used": nn.Linear(4, 3, bias=False), "unused": nn.Linear(1, 1, bias=False)}).double()
    start = net["unused"].weight.detach().clone()
    learner = attach(Nudge(), net, torch.optim.SGD(net.parameters(), lr=0.25))
    with learner.learning(data[0]):
        inputs, targets = data[0].samples()
        learner.loss(net["used"](inputs), targets).backward()
        learner.optimizer.step()
    torch.testing.assert_close(net["unused"].weight.detach(), start - 0.25)


class _Fourier(nn.Module):
    """A layer with complex weights, which takes real inputs."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.cfloat))
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(torch.fft.irfft(torch.fft.rfft(x) @ self.weight, n=4))


class _Pixels(nn.Module):
    """A frozen base in bfloat16 under float32 adapters: it takes pixels in bfloat16 alone."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 5).bfloat16().requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        return self.out((self.base(x) + self.up(self.down(x.float())).bfloat16()).tanh().float())


@pytest.mark.parametrize(
    ("model", "given", "expected"),
    [
        (_Fourier(), torch.float32, torch.float32),
        (_Pixels(), torch.bfloat16, torch.bfloat16),
        (nn.Linear(4, 3), torch.float64, torch.float32),
        (nn.Linear(4, 3).double(), torch.float32, torch.float64),
        (nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(12, 3)), torch.int32, torch.int32),
    ],
)
def test_inputs_are_converted_only_where_the_model_does_not_take_them(model, given, expected):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = attach(SGD(), model, optimizer).to_model(torch.ones(2, 4, dtype=given))
    assert inputs.dtype == expected
    assert model(inputs).shape == (2, 3)


@pytest.mark.parametrize("name", ["ogd", "ogd+", "a-gem", "ewc", "mas", "si"])
def test_complex_weights_are_refused_where_gradients_are_compared(name):
    model = _Fourier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedError, match="complex weights such as 'weight'"):
        attach(METHODS[name](), model, optimizer)
    attach(METHODS[name](), model, optimizer, protect=["out"])


# ---- the displacement and its constraint ------------------------------------------------------------------------


def flat(parts) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def outputs_of(net, split) -> Tensor:
    """The Jacobian of the samples' own logits by the weights, row by row."""
    inputs, targets = split.samples()
    rows = [
        flat(torch.autograd.grad(net(x[None])[0, y], list(net.parameters())))
        for x, y in zip(inputs, targets, strict=True)
    ]
    return torch.stack(rows)


def outside_of(rows: Tensor, vector: Tensor) -> Tensor:
    """Slow and obvious: an orthonormal basis of explicit gradients, and the vector minus its projection."""
    if not len(rows):
        return vector
    _, values, basis = torch.linalg.svd(rows, full_matrices=False)
    basis = basis[values > 1e-9 * values[0]]
    return vector - basis.t() @ (basis @ vector)


def put(tensors, vector: Tensor) -> None:
    with torch.no_grad():
        for one, part in zip(tensors, vector.split([t.numel() for t in tensors]), strict=True):
            one.copy_(part.view_as(one))


def two_layers(seed=2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def convolutions() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    ).double()


def sgd(**settings):
    return lambda parameters: torch.optim.SGD(parameters, lr=0.02, **settings)


def groups(parameters):
    return torch.optim.SGD([{"params": [p], "lr": 0.02 / (1 + n)} for n, p in enumerate(parameters)], lr=0.02)


# name: optimizer, weight decay, norm that gradients are clipped to, what the slow reference projects
RUNS = {
    "sgd": (sgd(), 0.0, None, "gradient"),
    "momentum": (sgd(momentum=0.9), 0.0, None, "gradient"),
    "nesterov": (sgd(momentum=0.8, nesterov=True), 0.0, None, "gradient"),
    "dampening": (sgd(momentum=0.7, dampening=0.5), 0.0, None, "gradient"),
    "decay": (sgd(momentum=0.5), 0.1, None, "gradient"),
    "clipped": (sgd(momentum=0.5), 0.0, 0.3, "gradient"),
    "rates": (groups, 0.0, None, "update"),
    "adam": (lambda p: torch.optim.Adam(p, lr=0.003), 0.0, None, "update"),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.003, weight_decay=0.1), 0.0, None, "update"),
}


def train(net, optimizer, split, clip, before=lambda: None, after=lambda: None, steps=70):
    for step in range(steps):
        inputs, targets = split.samples(torch.arange(4 * step, 4 * step + 4) % len(split))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), targets).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        before()
        optimizer.step()
        after()


def reference(make_net, run, data, again=False):
    """Explicit projection of gradients (weight decay included) or of updates; the latter leaves the optimizer alone.

    Args:
        make_net: makes the network.
        run: one of `RUNS`.
        data: the tasks.
        again: whether the gradients of all tasks are taken again at the end of each.
    """
    make, decay, clip, what = run
    net = make_net()
    own = list(net.parameters())
    optimizer = make(own)
    rows = torch.zeros(0, sum(p.numel() for p in own), dtype=torch.float64)
    for number, split in enumerate(data, 1):
        at = [flat(own)]

        def project_gradient(rows=rows):
            gradient = flat([p.grad for p in own]) + decay * flat(own)
            put([p.grad for p in own], outside_of(rows, gradient))

        def project_update(rows=rows, at=at):
            put(own, at[0] + outside_of(rows, flat(own) - at[0]))
            at[0] = flat(own)

        if what == "gradient":
            left = [state["momentum_buffer"] for state in optimizer.state.values()]  # by earlier tasks
            if left and left[0] is not None:
                put(left, outside_of(rows, flat(left)))
            train(net, optimizer, split, clip, before=project_gradient)
        else:
            train(net, optimizer, split, clip, after=project_update)
        seen = data[:number] if again else [split]
        rows = torch.cat([rows[: 0 if again else None], *(outputs_of(net, each) for each in seen)])
    return flat(own)


@pytest.mark.parametrize("make_net", [two_layers, convolutions])
@pytest.mark.parametrize("name", RUNS)
def test_the_trajectory_is_that_of_explicit_projection(make_net, name, data):
    """Over 210 steps of three tasks, momentum of earlier tasks included."""
    make, decay, clip, _ = RUNS[name]
    net = make_net()
    start = flat(net.parameters())
    optimizer = make(net.parameters())
    for group in optimizer.param_groups:
        group["weight_decay"] += decay
    learner = attach(OGD(memory_per_task=12), net, optimizer)
    for split in data:
        with learner.learning(split):
            train(net, optimizer, split, clip)
    expected = reference(make_net, RUNS[name], data)
    assert float((expected - start).norm()) > 0.1
    assert float((flat(net.parameters()) - expected).norm() / (expected - start).norm()) < 1e-9


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_where_directions_change_from_task_to_task_updates_are_projected(name, data):
    """OGD+ that replaces its gradients: momentum along directions that have become free acts again."""
    make, decay, clip, _ = RUNS[name]
    net = two_layers()
    start = flat(net.parameters())
    optimizer = make(net.parameters())
    learner = attach(OGDPlus(memory_per_task=12, refresh="replace"), net, optimizer)
    for split in data:
        with learner.learning(split):
            train(net, optimizer, split, clip)
    expected = reference(two_layers, (make, decay, clip, "update"), data, again=True)
    assert float((flat(net.parameters()) - expected).norm() / (expected - start).norm()) < 1e-9


def test_a_soft_method_acts_once_on_every_step(data):
    """SGP keeps a share of each step: of each step of SGD the scaled gradient, of each of Adam the scaled update."""
    for optimizer_of in (RUNS["sgd"][0], RUNS["adam"][0]):
        net = two_layers()
        optimizer = optimizer_of(net.parameters())
        learner = attach(SGP(memory_per_task=12, threshold=0.8, alpha=2.0), net, optimizer)
        with learner.learning(data[0]):
            train(net, optimizer, data[0], None)
        twin, state = copy.deepcopy(net), copy.deepcopy(optimizer.state_dict())
        other = optimizer_of(twin.parameters())
        other.load_state_dict(state)
        maps = []
        for weight, basis in learner.method.inputs.bases.items():
            share = torch.diag(1 - learner.method.importance[weight][0])
            whole = torch.linalg.qr(basis[0], mode="complete")[0][:, basis.shape[2] :]
            maps.append(basis[0] @ share @ basis[0].t() + whole @ whole.t())
        layers = [twin[0], twin[2]]
        at = [torch.cat([layer.weight, layer.bias[:, None]], 1).detach().clone() for layer in layers]

        def scale(layers=layers, maps=maps, at=at):
            with torch.no_grad():
                for number, (layer, scaled) in enumerate(zip(layers, maps, strict=True)):
                    now = torch.cat([layer.weight, layer.bias[:, None]], 1)
                    at[number] = at[number] + (now - at[number]) @ scaled
                    layer.weight.copy_(at[number][:, :-1])
                    layer.bias.copy_(at[number][:, -1])

        start = flat(net.parameters())
        with learner.learning(data[1]):
            train(net, optimizer, data[1], None)
        train(twin, other, data[1], None, after=scale)
        expected = flat(twin.parameters())
        assert float((flat(net.parameters()) - expected).norm() / (expected - start).norm()) < 1e-9


def protected(learner, split):
    """A first task on `split`, its gradients row by row, and the weights at its end."""
    with learner.learning(split):
        train(learner.model, learner.optimizer, split, None, steps=5)
    return outputs_of(learner.model, split), flat(learner.model.parameters())


def leak(rows, learner, start):
    """Share of the displacement that lies in the span of some rows."""
    moved = flat(learner.model.parameters()) - start
    return float((moved - outside_of(rows, moved)).norm() / moved.norm())


def add_noise(model):
    with torch.no_grad():
        for p in model.parameters():
            p.data.add_(0.1 * torch.randn_like(p))


def load_other_weights(model):
    model.load_state_dict(two_layers(seed=5).state_dict())


@pytest.mark.parametrize("change", [add_noise, load_other_weights])
@pytest.mark.parametrize("restored", ["by the next step", "on request", "at the end of the task"])
def test_weights_that_were_changed_past_the_optimizer_satisfy_the_constraint_again(change, restored, data):
    net = two_layers()
    learner = attach(OGD(memory_per_task=12), net, sgd(momentum=0.9)(net.parameters()))
    rows, start = protected(learner, data[0])
    with learner.learning(data[1]):
        train(net, learner.optimizer, data[1], None, steps=4)
        change(net)
        assert leak(rows, learner, start) > 0.1
        if restored == "by the next step":
            train(net, learner.optimizer, data[1], None, steps=1)
        elif restored == "on request":
            learner.restore_constraint()
        if restored != "at the end of the task":
            assert leak(rows, learner, start) < 1e-12
    assert leak(rows, learner, start) < 1e-12
    learner.restore_constraint()  # outside of a task there is none


def test_every_third_step(data):
    """The constraint holds at every third step and at the end of the task, not in between."""
    net = two_layers()
    learner = attach(OGD(memory_per_task=12), net, sgd()(net.parameters()), every=3)
    rows, start = protected(learner, data[0])
    found = []
    with learner.learning(data[1]):
        for _ in range(8):
            train(net, learner.optimizer, data[1], None, steps=1)
            found.append(leak(rows, learner, start) < 1e-12)
    assert found == [False, False, True] * 2 + [False, False]
    assert leak(rows, learner, start) < 1e-12


def test_methods_that_act_on_each_step_or_change_within_a_task_do_not_skip_steps():
    net = two_layers()
    for method in (SGP(), AdapterOGD()):
        with pytest.raises(UnsupportedError, match=f"every=2 .* not for {method.name}: leave it at 1"):
            attach(method, net, sgd()(net.parameters()), every=2)
    for every in (0, 1.5):
        with pytest.raises(SettingsError, match="every must be"):
            attach(OGD(), net, sgd()(net.parameters()), every=every)


@pytest.mark.parametrize("condition", [1e4, 1e8, 1e12])
def test_samples_that_are_almost_the_same_are_protected_over_many_steps(condition):
    """Pairs of remembered samples apart by the root of the condition: finite, and no leak beyond rounding."""
    torch.manual_seed(0)
    inputs = torch.randn(6, 8)
    inputs = torch.cat([inputs, inputs + condition**-0.5 * torch.randn(6, 8)])
    split = TensorSplit(inputs, torch.arange(12) % 3)
    net = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    learner = attach(OGD(memory_per_task=12), net, optimizer)
    rows, start = protected(learner, split)
    with learner.learning(split):
        subspace = learner.method.subspace
        other = TensorSplit(torch.randn(12, 8), split.targets)
        train(net, optimizer, other, None, steps=2000)
    moved = flat(net.parameters()) - start
    assert moved.isfinite().all()
    assert moved.norm() > 0.1
    assert float((rows @ moved).norm() / (rows.norm() * moved.norm())) < 2e-6
    assert subspace.rank >= 6
