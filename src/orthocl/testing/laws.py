"""The laws of `projects`: what a method promises when it says that it projects, under every optimizer.

The protected space is taken from the method itself: `inside(v)` is the part of a vector v that lies in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthocl.methods.base import Gradient
from orthocl.methods.learner import Learner
from orthocl.streams.base import Stream
from orthocl.testing.requirements import Maker, require
from orthocl.testing.tiny_problem import OPTIMIZERS, SETTINGS, attached, model_for, problem
from orthocl.training.loop import batches

ROUNDING = 1e-8
"""Largest relative error of an identity between projections, in float64."""
LEAK = 1e-6
"""Largest share of a task's displacement that may lie in the protected space, in float64."""


def projection_laws(make: Maker) -> None:
    """A projecting method's projection is linear, symmetric, not the identity and, unless soft, idempotent."""
    if not make().projects:
        return
    stream = problem()
    learner = attached(make(), model_for(stream, torch.float64))
    for task in stream:
        with learner.learning(task):
            if task.number > 1:
                _check_projection(learner)
            _step(learner, stream, task.number)
            if task.number > 1:
                _check_projection(learner)


def nothing_leaks(make: Maker) -> None:
    """Under every optimizer, a projecting method's steps stay out of the space that it protects."""
    if not make().projects or make().soft:
        return
    for optimizer in OPTIMIZERS:
        stream = problem()
        learner = attached(make(), model_for(stream, torch.float64), optimizer)
        for task in stream:
            with learner.learning(task):
                start = _position(learner)
                for steps in (1, None) if task.number > 1 else (None,):
                    _step(learner, stream, task.number, steps)
                    moved = [now - then for now, then in zip(_position(learner), start, strict=True)]
                    share = _leak(learner, moved)
                    when = "the first step" if steps else "all steps"
                    require(
                        task.number == 1 or share <= LEAK,
                        f"under {optimizer}, {share:.1e} of the displacement by {when} of task {task.number} is in the "
                        f"protected space, more than {LEAK:g}: `inside` must be a projection that stays the same in a "
                        "task",
                    )


def _check_projection(learner: Learner) -> None:
    generator = torch.Generator().manual_seed(11)
    one, other = (
        [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in learner.parameters.values()]
        for _ in range(2)
    )
    before = _flat(one).clone()
    first, second = _project(learner, one), _project(learner, other)
    require(torch.equal(before, _flat(one)), "`inside` changes the tensors that it is given")
    mixed = _project(learner, [2.0 * a - 3.0 * b for a, b in zip(one, other, strict=True)])
    size = float(_flat(one).norm() + _flat(other).norm())
    gaps = {
        "linear": float((mixed - (2.0 * first - 3.0 * second)).norm()) / size,
        "idempotent (projecting twice is projecting once)": float(
            (_project(learner, _shaped(learner, first)) - first).norm()
        )
        / size,
        "symmetric (an orthogonal projection)": abs(float(first @ _flat(other) - second @ _flat(one)))
        / size**2,
    }
    if learner.method.soft:
        del gaps["idempotent (projecting twice is projecting once)"]
    for law, gap in gaps.items():
        require(gap <= ROUNDING, f"the projection is not {law}: it is off by {gap:.1e}")
    require(
        float((first - _flat(one)).norm()) > ROUNDING * size,
        "the method says that it projects, but its projection leaves every vector unchanged: nothing is protected",
    )


def _project(learner: Learner, vectors: Gradient) -> Tensor:
    outside = {name: part.clone() for name, part in zip(learner.parameters, vectors, strict=True)}
    with torch.no_grad():
        for method, view in learner.method.projectors(learner):
            inside = method.inside(view, [outside[name] for name in view.parameters])
            outside |= {n: outside[n] - part for n, part in zip(view.parameters, inside, strict=True)}
    return _flat(list(outside.values()))


def _leak(learner: Learner, moved: Gradient) -> float:
    whole = _flat(moved)
    return float((whole - _project(learner, moved)).norm() / whole.norm().clamp(min=1e-300))


def _position(learner: Learner) -> list[Tensor]:
    learner.merge()
    return [p.detach().clone() for p in learner.parameters.values()]


def _step(learner: Learner, stream: Stream, number: int, steps: int | None = None) -> None:
    """The first steps of a task, or all of them."""
    inputs, targets = stream.task(number).train.samples()
    inputs = learner.to_model(inputs)
    for step, index in batches(len(targets), SETTINGS.batch_size, SETTINGS.epochs, 0, number, 0):
        learner.optimizer.zero_grad()
        (learner.loss(learner.model(inputs[index]), targets[index]) + learner.penalty()).backward()
        learner.optimizer.step()
        if step == steps:
            return


def _flat(vectors: Gradient) -> Tensor:
    return torch.cat([part.reshape(-1) for part in vectors])


def _shaped(learner: Learner, flat: Tensor) -> list[Tensor]:
    sizes = [p.numel() for p in learner.parameters.values()]
    return [part.view_as(p) for part, p in zip(flat.split(sizes), learner.parameters.values(), strict=True)]
