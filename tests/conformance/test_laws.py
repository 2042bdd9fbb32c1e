"""The laws of `projects`, on methods as users write them: kept by the learner, and broken by false promises."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from orthocl.methods import AGEM, ER, EWC, OGD, SI, Learner, OGDPlus, Partition, chain
from orthocl.nets import MLP, MultiHead
from orthocl.testing.conformance import CHECKS, check_method, small
from orthocl.testing.laws import _leak, _position, _step, nothing_leaks, projection_laws
from orthocl.testing.requirements import NonConformingError
from orthocl.testing.tiny_problem import attached, model_for, problem
from orthocl.training import attach

# A projecting method as a user writes it: it knows nothing of momentum, optimizers or checkpoints.
GPM = runpy.run_path(
    str(Path(__file__).parents[2] / "examples" / "own_projection.py"), run_name="own_projection"
)["GPM"]


def failures(kind):
    return {outcome.check: outcome.problem for outcome in check_method(kind) if outcome.problem}


def test_a_method_that_knows_nothing_of_momentum_passes():
    assert failures(GPM) == {}


def test_without_the_learners_care_it_would_leak(monkeypatch):
    monkeypatch.setattr(Learner, "restore_constraint", lambda self: None)
    projection_laws(lambda **settings: GPM(**settings))
    for make in (GPM, lambda **settings: OGD(memory_per_task=3, engine="project")):
        with pytest.raises(NonConformingError, match=r"under SGD, .* of task 2 .* protected space"):
            nothing_leaks(make)


def test_the_leak_is_that_of_the_first_step_too():
    """Momentum 0.9 would put four fifths of the first step into the protected space."""
    stream = problem()
    shares = {}
    for cares in (True, False):
        learner = attached(GPM(), model_for(stream, torch.float64), "momentum")
        if not cares:
            learner.restore_constraint = lambda: None
        with learner.learning(stream.task(1)):
            _step(learner, stream, 1)
        with learner.learning(stream.task(2)):
            start = _position(learner)
            _step(learner, stream, 2, steps=1)
            moved = [now - then for now, then in zip(_position(learner), start, strict=True)]
            shares[cares] = _leak(learner, moved)
    assert shares[True] < 1e-12
    assert shares[False] > 0.3


def test_the_optimizers_state_stays_its_own_in_many_groups():
    """Momentum that earlier tasks have left is not touched, and what it moves is protected all the same."""
    torch.manual_seed(0)
    stream = problem(heads="per-task")
    model = MultiHead(MLP((6,), (5,) * 12), stream.heads).double()
    groups = [{"params": [p], "lr": 0.01 / (1 + number)} for number, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    learner = attach(GPM(), model, optimizer, seed=0)

    def momentum():
        return [
            optimizer.state[p].get("momentum_buffer", torch.zeros_like(p)).clone() for p in model.parameters()
        ]

    for task in stream:
        start = [p.detach().clone() for p in learner.parameters.values()]
        before = momentum()
        with learner.learning(task):
            assert all(torch.equal(one, other) for one, other in zip(momentum(), before, strict=True))
            for _ in range(3):
                optimizer.zero_grad()
                inputs, targets = task.train.samples()
                learner.loss(model(inputs.double()), targets).backward()
                expected = [
                    buffer if p.grad is None else 0.9 * buffer + p.grad
                    for buffer, p in zip(momentum(), model.parameters(), strict=True)
                ]
                optimizer.step()
                torch.testing.assert_close(momentum(), expected, rtol=0, atol=1e-14)
                if task.number > 1:
                    moved = [p.detach() - s for p, s in zip(learner.parameters.values(), start, strict=True)]
                    assert _leak(learner, moved) < 1e-12


@dataclass
class Identity(GPM):
    """Says that it projects, and does nothing."""

    name: ClassVar[str] = "identity"

    def inside(self, learner, displacement):
        return [torch.zeros_like(d) for d in displacement]


@dataclass
class Shrinking(GPM):
    """Linear and symmetric, but not a projection."""

    name: ClassVar[str] = "shrinking"

    def inside(self, learner, displacement):
        return [part / 2 for part in super().inside(learner, displacement)]


@dataclass
class Oblique(GPM):
    """Idempotent, but it projects along another direction than the orthogonal one."""

    name: ClassVar[str] = "oblique"

    def inside(self, learner, displacement):
        flat = torch.cat([d.reshape(-1) for d in displacement])
        if not self.bases:
            return super().inside(learner, displacement)
        inside = flat[0] * torch.arange(1, len(flat) + 1, dtype=flat.dtype)
        sizes = [d.numel() for d in displacement]
        return [part.view_as(d) for part, d in zip(inside.split(sizes), displacement, strict=True)]


@dataclass
class Bent(GPM):
    """Not linear: it clips what it takes out."""

    name: ClassVar[str] = "bent"

    def inside(self, learner, displacement):
        return [part.clamp(-0.5, 0.5) for part in super().inside(learner, displacement)]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Identity, "nothing is protected"),
        (Shrinking, "not idempotent"),
        (Oblique, "not symmetric"),
        (Bent, "not linear"),
    ],
)
def test_false_promises_are_found_out(kind, words):
    assert words in failures(kind)["projection-laws"]


@dataclass
class Forgetful(GPM):
    """Projects well, and moves the weights by itself after the step."""

    name: ClassVar[str] = "forgetful"

    def after_step(self, learner, gradient, step):
        if self.bases:
            for p in learner.parameters.values():
                p.data.mul_(0.99)


def test_weights_that_move_past_the_optimizer_are_found_out():
    assert "more than 1e-06" in failures(Forgetful)["nothing-leaks"]


def memory(settings):
    """Settings of a composite's maker for the members that remember samples."""
    return {key: settings[key] for key in settings if key == "memory_per_task"}


@dataclass
class ByKind(Partition):
    """A partition that fits all models of the suite: one method for weights, one for biases."""

    def belongs(self, name, prefix):
        return name.endswith(prefix)


COMPOSITES = {
    "chain of ogd+ and ewc": lambda **s: chain(small(OGDPlus, memory(s)), EWC(strength=5.0)),
    "chain of replay and ogd": lambda **s: chain(small(ER, memory(s)), small(OGD, memory(s))),
    "chain of gpm, a-gem and si": lambda **s: chain(small(GPM, memory(s)), small(AGEM, memory(s)), SI()),
    "partition of ogd and gpm": lambda **s: ByKind(
        {"weight": small(GPM, memory(s)), "bias": small(OGD, memory(s))}
    ),
    "partition of a chain and ewc": lambda **s: ByKind(
        {"weight": chain(small(ER, memory(s)), small(OGDPlus, memory(s))), "bias": EWC(strength=5.0)}
    ),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("case", COMPOSITES)
def test_composites_pass(case, check):
    # A check raises NonConformingError with the reason when it fails.
    CHECKS[check](COMPOSITES[case])
