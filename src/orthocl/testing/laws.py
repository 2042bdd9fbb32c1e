"""The laws of `projects`: what a method promises when it says that it projects, under every optimizer.

The protected space is taken from the method itself: `inside(v)` is the part of a vector v that lies in it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

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


def aliases_are_the_weights(make: Maker) -> None:
    """Whoever kept a state dict, `.data` or a NumPy array of the weights reads what the model computes with."""
    if not make().projects:
        return
    stream = problem()
    model = model_for(stream, torch.float64)
    learner = attached(make(), model)
    kept = model.state_dict()
    arrays = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    for task in stream:
        inputs = learner.to_model(task.train.inputs())
        with learner.learning(task):
            start = _position(learner)
            for step in range(3):
                _step(learner, stream, task.number, 1)
                require(
                    torch.equal(functional_call(model, kept, (inputs,)), model(inputs)),
                    f"after step {step + 1} of task {task.number}, the model computes with other weights than those of "
                    "a state dict that was kept",
                )
                for name, parameter in model.named_parameters():
                    require(
                        torch.equal(torch.from_numpy(arrays[name]), parameter.detach()),
                        f"an array of {name!r} that was kept no longer holds its values",
                    )
                if task.number > 1 and not learner.method.soft:
                    moved = [p.detach() - then for p, then in zip(learner.protected, start, strict=True)]
                    share = _leak(learner, moved)
                    require(
                        share <= LEAK,
                        f"in the middle of task {task.number}, the weights have moved {share:.1e}",
                    )


def weights_may_change_within_a_task(make: Maker) -> None:
    """Weights that are loaded, averaged or clipped in the middle of a task leave nothing in the protected space."""
    if not make().projects or make().soft:
        return
    for change in (_load, _average, _clip):
        stream = problem()
        learner = attached(make(), model_for(stream, torch.float64))
        for task in stream:
            with learner.learning(task):
                start = _position(learner)
                _step(learner, stream, task.number, 2)
                if task.number > 1:
                    change(learner, start)
                _step(learner, stream, task.number, 2)
                if task.number > 1:
                    change(learner, start)
                    learner.restore_constraint()
                    moved = [now - then for now, then in zip(_position(learner), start, strict=True)]
                    share = _leak(learner, moved)
                    require(
                        share <= LEAK,
                        f"after `{change.__name__[1:]}` in task {task.number}, {share:.1e} of the displacement is in "
                        f"the protected space, more than {LEAK:g}",
                    )


@torch.no_grad()
def _load(learner: Learner, start: Gradient) -> None:
    """As a best checkpoint is loaded: other weights, not far away."""
    generator = torch.Generator().manual_seed(5)
    state = learner.model.state_dict()
    noise = {n: torch.randn(v.shape, generator=generator, dtype=v.dtype) for n, v in state.items()}
    learner.model.load_state_dict({name: value + 0.01 * noise[name] for name, value in state.items()})


@torch.no_grad()
def _average(learner: Learner, start: Gradient) -> None:
    """As a moving average replaces the weights, one that also holds weights from before the task."""
    generator = torch.Generator().manual_seed(6)
    for parameter in learner.protected:
        earlier = parameter + 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.lerp_(earlier, 0.5)


@torch.no_grad()
def _clip(learner: Learner, start: Gradient) -> None:
    """As weights are kept in a range."""
    for parameter in learner.protected:
        parameter.clamp_(-0.1, 0.1)


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
