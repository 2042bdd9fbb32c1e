"""The laws of `projects`, on methods as users write them: kept by the learner, and broken by false promises."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from orthocl.methods import AGEM, ER, EWC, OGD, SI, Learner, OGDPlus, Partition, chain
from orthocl.testing.conformance import CHECKS, check_method, small
from orthocl.testing.laws import nothing_leaks, projection_laws
from orthocl.testing.requirements import NonConformingError

# A projecting method as a user writes it: it knows nothing of momentum, optimizers or checkpoints.
GPM = runpy.run_path(
    str(Path(__file__).parents[2] / "examples" / "own_projection.py"), run_name="own_projection"
)["GPM"]


def failures(kind):
    return {outcome.check: outcome.problem for outcome in check_method(kind) if outcome.problem}


def test_a_method_that_knows_nothing_of_momentum_passes():
    assert failures(GPM) == {}


def test_without_the_learners_care_it_would_leak(monkeypatch):
    monkeypatch.setattr(Learner, "clean_momentum", lambda self: None)
    projection_laws(lambda **settings: GPM(**settings))
    with pytest.raises(NonConformingError, match=r"under momentum, .* of task 2 .* protected space"):
        nothing_leaks(lambda **settings: GPM(**settings))
    with pytest.raises(NonConformingError, match="under momentum"):
        nothing_leaks(lambda **settings: OGD(memory_per_task=3, engine="project"))


def test_the_leak_is_that_of_the_first_step_too():
    """Momentum 0.9 put four fifths of the first step into the protected space before the learner took care."""
    from orthocl.testing.laws import _leak, _position, _step
    from orthocl.testing.tiny_problem import attached, model_for, problem

    stream = problem()
    shares = {}
    for cares in (True, False):
        learner = attached(GPM(), model_for(stream, torch.float64), "momentum")
        if not cares:
            learner.clean_momentum = lambda: None
        with learner.learning(stream.task(1)):
            _step(learner, stream, 1)
        with learner.learning(stream.task(2)):
            start = _position(learner)
            _step(learner, stream, 2, steps=1)
            moved = [now - then for now, then in zip(_position(learner), start, strict=True)]
            shares[cares] = _leak(learner, moved)
    assert shares[True] < 1e-12
    assert shares[False] > 0.3


def test_momentum_is_cleaned_in_many_groups_and_only_where_it_is_protected():
    from orthocl.nets import MLP, MultiHead
    from orthocl.testing.laws import _leak
    from orthocl.testing.tiny_problem import problem
    from orthocl.training import attach

    torch.manual_seed(0)
    stream = problem(heads="per-task")
    model = MultiHead(MLP((6,), (5,) * 12), stream.heads).double()
    groups = [{"params": [p]} for p in model.parameters()]
    learner = attach(GPM(), model, torch.optim.SGD(groups, lr=0.01, momentum=0.9), seed=0)
    for task in stream:
        heads = [learner.optimizer.state[p].get("momentum_buffer") for p in model.heads.parameters()]
        before = [None if buffer is None else buffer.clone() for buffer in heads]
        with learner.learning(task):
            if task.number > 1:
                assert _leak(learner, learner.momentum()) < 1e-12
                same = zip(heads, before, strict=True)
                assert all(old is None or torch.equal(new, old) for new, old in same)
            for _ in range(3):
                learner.optimizer.zero_grad()
                inputs, targets = task.train.samples()
                learner.loss(model(inputs.double()), targets).backward()
                learner.optimizer.step()
        if task.number == 1:
            assert len(learner.momentum()) == 24


@dataclass
class Identity(GPM):
    """Says that it projects, and does nothing."""

    name: ClassVar[str] = "identity"

    def transform(self, learner, gradient):
        return gradient


@dataclass
class Shrinking(GPM):
    """Linear and symmetric, but not a projection."""

    name: ClassVar[str] = "shrinking"

    def transform(self, learner, gradient):
        inside = super().transform(learner, gradient)
        return [(g + i) / 2 for g, i in zip(gradient, inside, strict=True)]


@dataclass
class Oblique(GPM):
    """Idempotent, but it projects along another direction than the orthogonal one."""

    name: ClassVar[str] = "oblique"

    def transform(self, learner, gradient):
        flat = torch.cat([g.reshape(-1) for g in gradient])
        if not self.bases:
            return gradient
        off = flat - flat[0] * torch.arange(1, len(flat) + 1, dtype=flat.dtype)
        sizes = [g.numel() for g in gradient]
        return [part.view_as(g) for part, g in zip(off.split(sizes), gradient, strict=True)]


@dataclass
class Bent(GPM):
    """Not linear: it clips what it projects."""

    name: ClassVar[str] = "bent"

    def transform(self, learner, gradient):
        return [g.clamp(-1, 1) for g in super().transform(learner, gradient)]


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
    """Protects the gradient well, and moves the weights by itself after the step."""

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
