"""Every projecting method against slow references with dense matrices, under every kind of optimizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from orthocl import attach
from orthocl.errors import TrainingError, UnsupportedError
from orthocl.methods import (
    GPM,
    OGD,
    PCAOGD,
    SGD,
    SGP,
    AdamNSCL,
    AdapterOGD,
    KronOGD,
    Learner,
    Method,
    OGDPlus,
    ORFit,
    SketchOGD,
)
from orthocl.tangents import Tangents

STEPS = 200
ROUNDING = 1e-9


# ---- a small problem ------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()


@cache
def samples(task: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(9, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(4, (9,), generator=generator)


def batch(task: int, step: int) -> tuple[Tensor, Tensor]:
    rows = torch.arange(4 * step, 4 * step + 4) % 9
    x, y = samples(task)
    return x[rows], y[rows]


def flat(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([part.detach().reshape(-1) for part in parts])


def weights(model: nn.Module) -> Tensor:
    return flat(p for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def put(model: nn.Module, vector: Tensor) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    for p, part in zip(trained, vector.split([p.numel() for p in trained]), strict=True):
        p.copy_(part.view_as(p))


def backward(model: nn.Module, task: int, step: int, clip: float | None = None) -> None:
    x, y = batch(task, step)
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def share_inside(protected: Tensor, moved: Tensor) -> float:
    return float((protected @ moved).norm() / moved.norm())


# ---- what is protected, as dense matrices ---------------------------------------------------------------------


def tangents(model: nn.Module, x: Tensor, y: Tensor, variant: str = "gtl") -> Tensor:
    """The gradients of remembered outputs, one backward pass each."""
    trained = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for inputs, label in zip(x, y, strict=True):
        outputs = model(inputs[None])[0]
        for one in outputs if variant == "all" else [outputs[label]]:
            rows.append(flat(torch.autograd.grad(one, trained, retain_graph=True)))
    return torch.stack(rows)


def onto(rows: Tensor) -> Tensor:
    """The orthogonal projection onto the span of rows."""
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    basis = vectors[values > 1e-7 * values[0]]
    return basis.t() @ basis


def leading(rows: Tensor, count: int) -> Tensor:
    """Principal directions times singular values."""
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    return values[:count, None] * vectors[:count]


def extended(basis: Tensor, rows: Tensor, share: float) -> Tensor:
    """A basis (columns) with the fewest further directions that make it hold a share of the rows' energy."""
    left = rows - rows @ basis @ basis.t()
    _, values, vectors = torch.linalg.svd(left, full_matrices=False)
    missing = float(values.square().sum())
    count = 0
    while missing > (1 - share) * float(rows.square().sum()):
        missing -= float(values[count].square())
        count += 1
    return torch.cat([basis, vectors[:count].t()], 1)


class Space:
    """The span of the tangents of all tasks so far."""

    grows = True
    """Whether what is protected always contains what was protected before."""

    def __init__(self, variant: str = "gtl"):
        self.variant, self.rows = variant, torch.zeros(0, 92, dtype=torch.float64)

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        self.rows = torch.cat([self.rows, tangents(model, *samples(task), self.variant)])

    def matrix(self) -> Tensor:
        return onto(self.rows)


class Refreshed(Space):
    """All tasks' tangents at the present weights."""

    grows = False

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        self.rows = torch.cat([tangents(model, *samples(known)) for known in range(1, task + 1)])


class Principal(Space):
    """The leading principal directions of each task's tangents."""

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        self.rows = torch.cat([self.rows, leading(tangents(model, *samples(task)), 5)])


class PrincipalOfAll(Space):
    """The leading principal directions of what was kept and the new tangents."""

    grows = False

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        self.rows = leading(torch.cat([self.rows, tangents(model, *samples(task))]), 11)


class Sketch(Space):
    """A sum of random mixtures of each task's tangents."""

    grows = False

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        x, y = samples(task)
        order = torch.randperm(len(x), generator=draws)
        mixing = torch.randn(7, len(x), generator=draws, dtype=torch.float64)
        new = mixing @ tangents(model, x[order], y[order])
        self.rows = new if not len(self.rows) else self.rows + new


class Layers(Space):
    """[W, b] of each layer seen from the right, through its inputs [a, 1], and perhaps from the left."""

    def __init__(self) -> None:
        empty = partial(torch.zeros, dtype=torch.float64)
        self.inputs, self.outputs = [empty(7, 0), empty(9, 0)], [empty(8, 0), empty(4, 0)]

    def seen(self, model: nn.Module, task: int) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs with a 1, and derivatives of each sample's remembered output by the layers' outputs."""
        x, y = samples(task)
        first = model[0](x)
        hidden = torch.tanh(first)
        last = model[2](hidden)
        derivatives = torch.autograd.grad(last[torch.arange(len(x)), y].sum(), [first, last])
        inputs = [torch.cat([a.detach(), torch.ones(len(x), 1, dtype=a.dtype)], 1) for a in (x, hidden)]
        return inputs, list(derivatives)

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        inputs, derivatives = self.seen(model, task)
        self.inputs = [extended(b, rows, 0.9) for b, rows in zip(self.inputs, inputs, strict=True)]
        self.outputs = [extended(b, rows, 0.9) for b, rows in zip(self.outputs, derivatives, strict=True)]

    def sides(self, layer: int) -> tuple[Tensor, Tensor]:
        right = self.inputs[layer]
        return torch.eye(len(self.outputs[layer]), dtype=right.dtype), right @ right.t()

    def matrix(self) -> Tensor:
        found, places, start = torch.zeros(92, 92, dtype=torch.float64), torch.arange(92), 0
        for layer, (o, i) in enumerate([(8, 6), (4, 8)]):
            weight, bias = places[start : start + o * i], places[start + o * i : start + o * (i + 1)]
            own = torch.cat([weight.view(o, i), bias[:, None]], 1).flatten()
            found[own[:, None], own] = torch.kron(*self.sides(layer))
            start += o * (i + 1)
        return found


class BothSides(Layers):
    def sides(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.outputs[layer] @ self.outputs[layer].t(), super().sides(layer)[1]


class UsedInputs(Layers):
    """Eigenvectors of the inputs' covariance over all tasks, but for the smallest eigenvalues."""

    grows = False

    def __init__(self) -> None:
        super().__init__()
        self.all: list[list[Tensor]] = [[], []]

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        for layer, rows in enumerate(self.seen(model, task)[0]):
            self.all[layer].append(rows)
            known = torch.cat(self.all[layer])
            values, vectors = torch.linalg.eigh(known.t() @ known / len(known))
            self.inputs[layer] = vectors[:, values > 5.0 * max(float(values[0]), 1e-10 * float(values[-1]))]


class Scaled(Layers):
    """Directions with weights between 0 and 1: not a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = [torch.zeros(0, dtype=torch.float64) for _ in range(2)]

    def extend(self, model: nn.Module, task: int, draws: torch.Generator) -> None:
        super().extend(model, task, draws)
        for layer, rows in enumerate(self.seen(model, task)[0]):
            values = (rows @ self.inputs[layer]).norm(dim=0)
            new = 4.0 * values / (3.0 * values + values.max())
            new[: len(self.shares[layer])] += self.shares[layer]
            self.shares[layer] = new.clamp(max=1.0)

    def sides(self, layer: int) -> tuple[Tensor, Tensor]:
        left, basis = super().sides(layer)[0], self.inputs[layer]
        return left, basis @ self.shares[layer].diag() @ basis.t()


METHODS: dict[str, tuple[Callable[[], Method], Callable[[], Space]]] = {
    "ogd": (lambda: OGD(memory_per_task=9), Space),
    "ogd, all outputs": (lambda: OGD(memory_per_task=9, variant="all"), partial(Space, "all")),
    "ogd+": (lambda: OGDPlus(memory_per_task=9), Refreshed),
    "pca-ogd": (lambda: PCAOGD(memory_per_task=9, components=5), Principal),
    "sketch-ogd": (lambda: SketchOGD(memory_per_task=9, sketch=7), Sketch),
    "orfit": (lambda: ORFit(memory_per_task=9, components=11), PrincipalOfAll),
    "gpm": (lambda: GPM(memory_per_task=9, threshold=0.9), Layers),
    "kron-ogd": (lambda: KronOGD(memory_per_task=9, threshold=0.9), BothSides),
    "adam-nscl": (lambda: AdamNSCL(memory_per_task=9, ratio=5.0), UsedInputs),
}
SOFT = {"sgp": (lambda: SGP(memory_per_task=9, threshold=0.9, alpha=3.0), Scaled)}
GROWING = [name for name, (_, space) in METHODS.items() if space().grows]

SGDS = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    "dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.5},
    "decay": {"lr": 0.1, "weight_decay": 0.01},
    "momentum and decay": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "clipping": {"lr": 0.1, "clip": 0.5},
}
Make = Callable[[nn.Module], torch.optim.Optimizer]


def two_rates(model: nn.Module) -> torch.optim.Optimizer:
    first, last = ({"params": model[i].parameters(), "lr": lr} for i, lr in ((0, 0.1), (2, 0.02)))
    return torch.optim.SGD([first, last], momentum=0.5)


OTHERS: dict[str, Make] = {
    "two learning rates": two_rates,
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3, weight_decay=0.1),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=1e-2),
}


# ---- trajectories ---------------------------------------------------------------------------------------------


def started(method: Method, make: Make, **settings: object) -> tuple[Learner, torch.Generator]:
    """A learner that remembers a first task, whose steps are not taken: the optimizer has no state yet."""
    model = network()
    learner = attach(method, model, make(model), seed=5, **settings)  # type: ignore[arg-type]
    draws = torch.Generator()
    with learner.learning(TensorDataset(*samples(1))):
        draws.set_state(learner.generator.get_state())
    return learner, draws


def space_after_first(make: Callable[[], Space], draws: torch.Generator) -> Space:
    space = make()
    space.extend(network(), 1, draws)
    return space


def trained(learner: Learner, task: int, steps: int, clip: float | None = None) -> Tensor:
    with learner.learning(TensorDataset(*samples(task))):
        for step in range(steps):
            backward(learner.model, task, step, clip)
            learner.optimizer.step()
    return weights(learner.model)


class ByHand:
    """SGD on projected gradients, in a few lines, for flat weights."""

    def __init__(self, lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, clip=None):
        self.lr, self.momentum, self.dampening, self.nesterov = lr, momentum, dampening, nesterov
        self.decay, self.clip, self.buffer = weight_decay, clip, None

    def train(self, model: nn.Module, task: int, protected: Tensor, steps: int) -> Tensor:
        outside = torch.eye(len(protected), dtype=protected.dtype) - protected
        if self.buffer is not None:  # what earlier tasks have left in it moves the weights too
            self.buffer = outside @ self.buffer
        for step in range(steps):
            backward(model, task, step, self.clip)
            at = weights(model)
            gradient = outside @ (flat(p.grad for p in model.parameters()) + self.decay * at)
            if self.buffer is None:
                self.buffer = gradient.clone()
            else:
                self.buffer = self.momentum * self.buffer + (1 - self.dampening) * gradient
            put(
                model,
                at - self.lr * (gradient + self.momentum * self.buffer if self.nesterov else self.buffer),
            )
        return weights(model)


def projected_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, task: int, protected: Tensor, steps: int
) -> Tensor:
    """The optimizer's own steps, on raw gradients and raw state, each of them projected."""
    for step in range(steps):
        before = weights(model)
        backward(model, task, step)
        optimizer.step()
        moved = weights(model) - before
        put(model, before + moved - protected @ moved)
    return weights(model)


@pytest.mark.parametrize("case", SGDS)
@pytest.mark.parametrize("name", METHODS)
def test_sgd_is_descent_along_projected_gradients(name, case):
    settings = dict(SGDS[case])
    by_hand, clip = ByHand(**settings), settings.pop("clip", None)
    method, space = METHODS[name]
    learner, draws = started(method(), lambda model: torch.optim.SGD(model.parameters(), **settings))
    start, protected = weights(learner.model), space_after_first(space, draws).matrix()
    found = trained(learner, 2, STEPS, clip)
    expected = by_hand.train(network(), 2, protected, STEPS)
    assert distance(found - start, expected - start) <= ROUNDING
    assert share_inside(protected, found - start) <= ROUNDING


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("name", METHODS | SOFT)
def test_other_optimizers_take_their_own_steps_projected(name, case):
    method, space = (METHODS | SOFT)[name]
    learner, draws = started(method(), OTHERS[case])
    start, protected = weights(learner.model), space_after_first(space, draws).matrix()
    found = trained(learner, 2, STEPS)
    copied = network()
    expected = projected_steps(copied, OTHERS[case](copied), 2, protected, STEPS)
    assert distance(found - start, expected - start) <= ROUNDING
    assert 1 <= torch.linalg.matrix_rank(protected, atol=1e-6) < 92


@pytest.mark.parametrize("name", METHODS | SOFT)
def test_momentum_is_carried_into_later_tasks_as_it_is(name):
    """Each task is the optimizer's own steps with its raw buffer, projected; no buffer is cleaned."""
    method, space = (METHODS | SOFT)[name]

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), **SGDS["momentum and decay"])

    learner, draws = started(method(), make)
    known = space_after_first(space, draws)
    copied = network()
    optimizer = make(copied)
    for task in (2, 3):
        start, before = weights(learner.model), weights(copied)
        with learner.learning(TensorDataset(*samples(task))):
            for step in range(STEPS // 2):
                backward(learner.model, task, step)
                learner.optimizer.step()
            draws.set_state(learner.generator.get_state())
        expected = projected_steps(copied, optimizer, task, known.matrix(), STEPS // 2)
        assert distance(weights(learner.model) - start, expected - before) <= ROUNDING
        known.extend(copied, task, draws)
    mine, theirs = (
        flat(o.state[p]["momentum_buffer"] for p in o.param_groups[0]["params"])
        for o in (learner.optimizer, optimizer)
    )
    assert distance(mine, theirs) <= ROUNDING


@pytest.mark.parametrize("name", GROWING)
def test_a_cleaned_momentum_would_give_the_same_where_the_memory_only_grows(name):
    method, space = METHODS[name]
    learner, draws = started(method(), lambda model: torch.optim.SGD(model.parameters(), **SGDS["momentum"]))
    known, copied, by_hand = space_after_first(space, draws), network(), ByHand(**SGDS["momentum"])
    for task in (2, 3):
        start, before = weights(learner.model), weights(copied)
        found = trained(learner, task, STEPS // 2)
        expected = by_hand.train(copied, task, known.matrix(), STEPS // 2)
        assert distance(found - start, expected - before) <= ROUNDING
        known.extend(copied, task, draws)


@pytest.mark.parametrize("name", METHODS)
def test_lbfgs_with_a_closure_keeps_the_constraint(name):
    method, space = METHODS[name]
    learner, draws = started(method(), lambda model: torch.optim.LBFGS(model.parameters(), max_iter=4))
    start, protected = weights(learner.model), space_after_first(space, draws).matrix()
    with learner.learning(TensorDataset(*samples(2))):
        for step in range(10):

            def closure(step: int = step) -> Tensor:
                learner.optimizer.zero_grad()
                x, y = batch(2, step)
                loss = cross_entropy(learner.model(x), y)
                loss.backward()
                return loss

            learner.optimizer.step(closure)
            assert share_inside(protected, weights(learner.model) - start) <= ROUNDING
    assert float((weights(learner.model) - start).norm()) > 0.1


# ---- maps with a rule of their own, steps left out, several optimizers ----------------------------------------


class LowRank(nn.Module):
    """A frozen linear layer with a trained update s B A."""

    scale = 0.5

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * x @ self.down.t() @ self.up.t()

    def whole(self) -> Tensor:
        return (self.base.weight + self.scale * self.up @ self.down).detach().requires_grad_()


def adapted() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(LowRank(6, 8), nn.Tanh(), LowRank(8, 4)).double()


def whole_tangents(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Gradients by the whole weights W + s B A, (samples, outputs, inputs) for each layer."""
    first, last = model[0].whole(), model[2].whole()
    hidden = torch.tanh(x @ first.t() + model[0].base.bias)
    chosen = (hidden @ last.t() + model[2].base.bias)[torch.arange(len(x)), y]
    rows = [torch.autograd.grad(one, [first, last], retain_graph=True) for one in chosen]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def by_adapters(model: nn.Module, whole: list[Tensor]) -> Tensor:
    """The same tangents by the adapters where they are now: s B^T G for A, s G A^T for B."""
    parts = []
    for layer, rows in zip((model[0], model[2]), whole, strict=True):
        parts += [layer.scale * layer.up.t() @ rows, layer.scale * rows @ layer.down.t()]
    return torch.cat([part.detach().flatten(1) for part in parts], 1)


@pytest.mark.parametrize("refresh", [1, 3])
def test_adapter_ogd_projects_what_has_moved_since_its_directions_were_taken(refresh):
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, eps=1e-3)

    model, copied = adapted(), adapted()
    learner = attach(AdapterOGD(memory_per_task=9, refresh_every=refresh), model, make(model))
    with learner.learning(TensorDataset(*samples(1))):
        pass
    start = weights(model)
    trained(learner, 2, 60)
    whole, optimizer = whole_tangents(copied, *samples(1)), make(copied)
    for step in range(60):
        before = weights(copied)
        if step % refresh == 0:
            protected = onto(by_adapters(copied, whole))
        backward(copied, 2, step)
        optimizer.step()
        moved = weights(copied) - before
        put(copied, before + moved - protected @ moved)
    assert distance(weights(model) - start, weights(copied) - start) <= ROUNDING


def plain(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("optimizer", ["momentum and decay", "adamw"])
@pytest.mark.parametrize("name", METHODS)
def test_every_k_restores_the_constraint_each_k_steps_and_at_the_end(name, optimizer):
    method, space = METHODS[name]

    def make(model: nn.Module) -> torch.optim.Optimizer:
        if optimizer in SGDS:
            return torch.optim.SGD(model.parameters(), **SGDS[optimizer])
        return OTHERS[optimizer](model)

    learner, draws = started(method(), make, every=4)
    start, protected = weights(learner.model), space_after_first(space, draws).matrix()
    copied = network()
    alone = make(copied)
    with learner.learning(TensorDataset(*samples(2))):
        for step in range(1, 12):
            for model, steps in ((learner.model, learner.optimizer), (copied, alone)):
                backward(model, 2, step)
                steps.step()
            share = share_inside(protected, weights(learner.model) - start)
            if step % 4 == 0:
                moved = weights(copied) - start
                put(copied, start + moved - protected @ moved)
                assert share <= ROUNDING
            else:
                assert share > 1e-3
            assert distance(weights(learner.model) - start, weights(copied) - start) <= ROUNDING
    assert share_inside(protected, weights(learner.model) - start) <= ROUNDING


@pytest.mark.parametrize(
    ("method", "make"), [(SGP(), network), (AdapterOGD(), adapted)], ids=["sgp", "adapter-ogd"]
)
def test_maps_that_change_or_may_not_act_twice_refuse_to_leave_steps_out(method, make):
    model = make()
    with pytest.raises(UnsupportedError, match=f"every=2 .* not for {method.name}"):
        attach(method, model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad]), every=2)


def pair(model: nn.Module) -> list[torch.optim.Optimizer]:
    last = torch.optim.AdamW(model[2].parameters(), lr=1e-2, eps=1e-3, weight_decay=0.1)
    return [torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9), last]


@pytest.mark.parametrize("name", METHODS | SOFT)
def test_two_optimizers_share_one_projection(name):
    method, space = (METHODS | SOFT)[name]
    learner, draws = started(method(), pair)
    start, protected = weights(learner.model), space_after_first(space, draws).matrix()
    copied = network()
    alone = pair(copied)
    with learner.learning(TensorDataset(*samples(2))):
        for step in range(60):
            backward(learner.model, 2, step)
            backward(copied, 2, step)
            for mine, theirs in zip(learner.optimizers, alone, strict=True):
                mine.step()
                before = weights(copied)
                theirs.step()
                moved = weights(copied) - before
                put(copied, before + moved - protected @ moved)
    assert distance(weights(learner.model) - start, weights(copied) - start) <= ROUNDING
    learner.detach()
    assert not learner.hooks


def resting_group(model: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.0}]
    return torch.optim.SGD(groups, lr=0.1)


def resting_optimizer(model: nn.Module) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model[i].parameters(), lr=lr) for i, lr in ((0, 0.1), (2, 0.0))]


@pytest.mark.parametrize("make", [resting_group, resting_optimizer])
def test_weights_with_learning_rate_0_beside_moving_ones_are_refused(make):
    learner, _ = started(OGD(memory_per_task=9), make)
    before = weights(learner.model)
    with pytest.raises(
        TrainingError, match=r"2 protected parameters, such as '2\.weight', .* learning rate 0"
    ):
        trained(learner, 2, 1)
    assert torch.equal(weights(learner.model), before)


def test_weights_with_learning_rate_0_may_rest_where_they_are_not_protected():
    learner, _ = started(OGD(memory_per_task=9), resting_group, protect=["0"])
    resting = learner.model[2].weight.detach().clone()
    trained(learner, 2, 5)
    assert torch.equal(learner.model[2].weight, resting)


def test_a_rate_that_begins_at_0_for_all_weights_is_a_warm_up():
    learner, draws = started(OGD(memory_per_task=9), plain)
    warm_up = torch.optim.lr_scheduler.LambdaLR(learner.optimizer, lambda step: min(1.0, step / 5))
    start, protected = weights(learner.model), space_after_first(Space, draws).matrix()
    with learner.learning(TensorDataset(*samples(2))):
        for step in range(10):
            backward(learner.model, 2, step)
            learner.optimizer.step()
            warm_up.step()
    assert share_inside(protected, weights(learner.model) - start) <= ROUNDING


class ScheduleFree(torch.optim.SGD):
    """Keeps an average beside the weights, and swaps the two."""

    def train(self) -> None:
        """Put the training weights into the model."""

    def eval(self) -> None:
        """Put the average into the model."""


class Wrapper(torch.optim.Optimizer):
    """As of a trainer: has both methods whatever it wraps."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    def train(self) -> None:
        """For optimizers that need it."""

    def eval(self) -> None:
        """For optimizers that need it."""


@pytest.mark.parametrize("name", METHODS | SOFT)
def test_optimizers_that_keep_a_second_sequence_of_weights_are_refused(name):
    model = network()
    method = (METHODS | SOFT)[name][0]
    swapping = ScheduleFree(model[2].parameters(), lr=0.1)
    for optimizer in (swapping, [torch.optim.SGD(model[0].parameters(), lr=0.1), swapping]):
        with pytest.raises(UnsupportedError, match="ScheduleFree trains one sequence of weights"):
            attach(method(), model, optimizer)
    attach(SGD(), model, ScheduleFree(model.parameters(), lr=0.1))
    attach(method(), model, Wrapper(torch.optim.SGD(model.parameters(), lr=0.1)))


# ---- rounding -------------------------------------------------------------------------------------------------


def rounding(moved: Tensor, at: Tensor, dtype: torch.dtype) -> float:
    """What rounding the weights to their type leaves of a displacement, as a share of it."""
    return 4 * torch.finfo(dtype).eps * float(at.double().norm() / moved.double().norm())


@pytest.mark.parametrize(
    ("condition", "optimizer"), [(1e4, "sgd"), (1e8, "adamw"), (1e12, "sgd"), (1e12, "adamw")]
)
@pytest.mark.parametrize("stored", ["dense", "factored", "dense and factored"])
def test_near_copies_leave_rounding_after_2000_steps_in_single_precision(stored, condition, optimizer):
    model = network().float()
    if stored == "dense and factored":
        model.insert(1, nn.LayerNorm(8))
    make = torch.optim.SGD if optimizer == "sgd" else torch.optim.AdamW
    count, gap = 9, condition**-0.5
    learner = attach(OGD(memory_per_task=count), model, make(model.parameters(), lr=1e-3))
    x, y = samples(1)
    if stored != "dense":
        near = (x[:1] + gap * x).float(), torch.ones_like(y)
        rows = tangents(copy.deepcopy(model).double(), near[0].double(), near[1])
        with learner.learning(TensorDataset(*near)):
            pass
        kinds = {block.kind for block in learner.method.subspace.tangents.blocks}
        assert kinds == set(stored.split(" and "))
    else:
        rows = (torch.randn(1, 92) + gap * torch.randn(count, 92)).float()
        shapes = [p.shape for p in model.parameters()]
        parts = [
            p.view(count, *s) for p, s in zip(rows.split([s.numel() for s in shapes], 1), shapes, strict=True)
        ]
        learner.method.ensure_subspace(learner).append(Tangents.explicit(learner.parameters, parts), owner=1)
        rows = rows.double()
    values = torch.linalg.svdvals(rows)
    assert float((values[0] / values[-1]).square()) >= condition / 10
    start = weights(model)
    with learner.learning(TensorDataset(*samples(2))):
        for _ in range(2000):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            learner.optimizer.step()
    moved = (weights(model) - start).double()
    assert moved.isfinite().all()
    assert float((rows @ moved).norm() / (values[0] * moved.norm())) <= rounding(moved, start, torch.float32)


@pytest.mark.filterwarnings("ignore:.*kept in torch.bfloat16", "ignore:.*lies in the space")
def test_what_rounding_to_bfloat16_leaves_is_in_the_monitor():
    model = network().bfloat16()
    learner = attach(OGD(memory_per_task=9), model, torch.optim.SGD(model.parameters(), lr=0.05))
    low = {task: (samples(task)[0].bfloat16(), samples(task)[1]) for task in (1, 2)}
    with learner.learning(TensorDataset(*low[1])):
        pass
    protected = onto(learner.method.subspace.tangents.dense().double())
    start = weights(model)
    with learner.learning(TensorDataset(*low[2])):
        for _ in range(30):
            model.zero_grad()
            cross_entropy(model(low[2][0]), low[2][1]).backward()
            learner.optimizer.step()
    moved = (weights(model) - start).double()
    leak = learner.method.monitor(learner)["leak"]
    assert leak == pytest.approx(share_inside(protected, moved), rel=1e-3)
    assert 1e-4 < leak < rounding(moved, start, torch.bfloat16)


# ---- networks -------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        self.leave = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.enter(x)))
        inner = torch.relu(self.norms[1](self.first(x)))
        return self.leave(torch.relu(x + self.norms[2](self.second(inner))).mean((2, 3)))


class Attention(nn.Module):
    """Written out, pre-norm, optionally causal."""

    def __init__(self, width: int, causal: bool):
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.back = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norms[0](x)).chunk(3, -1)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        x = x + self.back(scores.softmax(-1) @ v)
        return x + self.narrow(nn.functional.gelu(self.wide(self.norms[1](x))))


class Vision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(2, 8, 4, stride=4), nn.Parameter(0.1 * torch.randn(4, 8))
        self.layer, self.own = Attention(8, causal=False), nn.MultiheadAttention(8, 2, batch_first=True)
        self.leave = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.patches(x).flatten(2).mT + self.places)
        return self.leave((x + self.own(x, x, x, need_weights=False)[0]).mean(1))


class Language(nn.Module):
    """Its output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(13, 8), nn.Embedding(5, 8)
        self.layer, self.norm = Attention(8, causal=True), nn.LayerNorm(8)
        self.leave = nn.Linear(8, 13, bias=False)
        self.leave.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1], device=x.device)[None])
        return self.leave(self.norm(self.layer(self.words(x) + places)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.leave = (
            nn.Embedding(13, 5),
            nn.LSTM(5, 6, batch_first=True),
            nn.Linear(6, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.cell(self.words(x))[0][:, -1])


def lenet() -> nn.Module:
    first, second, pool = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 5, 3, padding=1), nn.MaxPool2d(2)
    dense = nn.Flatten(), nn.Linear(20, 9), nn.ReLU(), nn.Linear(9, 4)
    return nn.Sequential(first, nn.ReLU(), pool, second, nn.ReLU(), pool, *dense)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "perceptron": (network, "numbers"),
    "lenet": (lenet, "images"),
    "residual block": (Residual, "images"),
    "vision transformer": (Vision, "images"),
    "tied language model": (Language, "text"),
    "recurrent": (Recurrent, "words"),
}


def seen(kind: str, task: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(task)
    labels = torch.randint(4, (9,), generator=generator)
    if kind in ("text", "words"):
        text = torch.randint(13, (9, 6), generator=generator)
        return (text[:, :-1], text[:, 1:]) if kind == "text" else (text, labels)
    shape = (6,) if kind == "numbers" else (2, 8, 8)
    return torch.randn(9, *shape, generator=generator, dtype=torch.float64), labels


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs.flatten(0, -2), targets.flatten())


def remembered(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Tangents of the labels' outputs; of a language model those of the log-probabilities of all words that follow."""
    model.eval()
    outputs = model(x)
    outputs = outputs.log_softmax(-1) if y.dim() == 2 else outputs
    chosen = outputs.gather(-1, y[..., None]).flatten()
    rows = [torch.autograd.grad(one, list(model.parameters()), retain_graph=True) for one in chosen]
    model.train()
    return torch.stack([flat(row) for row in rows])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("method", [OGD, OGDPlus])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_tangents_of_every_network_are_protected_to_rounding(name, optimizer, method):
    make, kind = NETWORKS[name]
    torch.manual_seed(4)
    model = make().double()
    steps = {
        "sgd": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
        "adamw": torch.optim.AdamW(model.parameters(), lr=0.01),
    }[optimizer]
    settings = {"variant": "tokens", "tokens": 5} if kind == "text" else {}
    learner = attach(method(memory_per_task=6, **settings), model, steps, loss=loss)
    rows: list[Tensor] = []
    for task in (1, 2, 3):
        x, y = seen(kind, task)
        start = weights(model)
        with learner.learning(TensorDataset(x, y)):
            for _ in range(8):
                model.zero_grad()
                loss(model(x), y).backward()
                steps.step()
        moved = weights(model) - start
        if rows:
            assert share_inside(onto(torch.cat(rows)), moved) <= 100 * rounding(moved, start, torch.float64)
            if method is OGDPlus:
                rows = []
        known = learner.method.remembered
        again = range(1, task + 1) if method is OGDPlus else (task,)
        rows += [remembered(model, *(part[known[t]] for part in seen(kind, t))) for t in again]
