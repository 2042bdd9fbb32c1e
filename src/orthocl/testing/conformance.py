"""The conformance suite: what every method must do, registered here or written by a user.

Each check trains a tiny network for a few steps. `orthocl check my_method.py` runs them on the methods of a file.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from orthocl.errors import UnsupportedError
from orthocl.methods.base import Method
from orthocl.methods.composite import Composite, memory_settings
from orthocl.methods.learner import Learner
from orthocl.methods.sgd import SGD
from orthocl.streams.arrays import from_arrays
from orthocl.streams.base import Stream, Task
from orthocl.testing.laws import (
    aliases_are_the_weights,
    nothing_leaks,
    projection_laws,
    weights_may_change_within_a_task,
)
from orthocl.testing.requirements import Maker, NonConformingError, finite, require, same
from orthocl.testing.tiny_problem import (
    OPTIMIZERS,
    SETTINGS,
    WordModel,
    attached,
    model_for,
    problem,
    trained,
    weights,
)
from orthocl.training.attach import attach
from orthocl.training.checkpoint import load_checkpoint, save_checkpoint
from orthocl.training.loop import Observer, Progress, train


class _Stop(Exception):
    pass


TRANSFORM = ": it is given a list of tensors, one for each protected parameter, and returns such a list"


@dataclass(frozen=True)
class CheckOutcome:
    """Result of one check.

    Args:
        check: its name.
        summary: what it checks.
        problem: what is wrong; None if it passed.
        skipped: why it does not apply to the method; empty if it does.
    """

    check: str
    summary: str
    problem: str | None
    skipped: str = ""


def check_method(kind: type[Method]) -> list[CheckOutcome]:
    """Run every check on a method class, built with small memories.

    >>> from orthocl.methods import SGD
    >>> [outcome.problem for outcome in check_method(SGD) if outcome.problem]
    []
    """
    outcomes: list[CheckOutcome] = []
    known: dict[str, str] = {}  # problem -> the first check that had it
    for name, check in CHECKS.items():
        problem, skipped = None, ""
        try:
            skipped = _why_not(check, small(kind, {}))
            if not skipped:
                check(lambda kind=kind, **settings: small(kind, settings))
        except Exception as error:  # a user's method may fail in any way: the report names it and continues
            problem = str(error) if isinstance(error, NonConformingError) else _placed(error, kind)
            first = known.setdefault(problem, name)
            problem = problem if first == name else f"as {first}"
        outcomes.append(CheckOutcome(name, (check.__doc__ or "").splitlines()[0], problem, skipped))
    return outcomes


def _why_not(check: Callable[[Maker], None], method: Method) -> str:
    """Why a check says nothing about a method, or "" if it does."""
    if check in (projection_laws, nothing_leaks) and not method.projects:
        return "it does not project"
    if check is first_task_is_sgd and not method.first_task_is_sgd:
        return "it does not say so"
    if check in (tiny_memories, memory_beyond_the_task) and not memory_settings(method):
        return "it has no memory of samples"
    return ""


def _placed(error: Exception, kind: type[Method]) -> str:
    """An error, and the line of the method's own file where it came from."""
    text = f"{type(error).__name__}: {error}"
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    places = [place for place in traceback.extract_tb(error.__traceback__) if place.filename == file]
    if not places:
        return text
    *_, (file, line, function, _) = places
    hint = TRANSFORM if function == "transform" else ""
    return f"{text} ({Path(file).name}, line {line}, in {function}){hint}"


def small(kind: type[Method], settings: dict[str, Any]) -> Method:
    """A method with memories of three samples, unless `settings` say otherwise."""
    return kind(**{**dict.fromkeys(memory_settings(kind()), 3), **settings})


# ---- the checks ---------------------------------------------------------------------------------------------


def first_task_is_sgd(make: Maker) -> None:
    """With nothing to protect yet, task 1 is plain SGD (where the method says so)."""
    method = make()
    if not method.first_task_is_sgd:
        return
    stream = problem()
    results = []
    for each in (method, SGD()):
        learner = attached(each, model_for(stream))
        train(learner, from_arrays([_arrays(stream)], outputs=3), SETTINGS, seed=0)
        results.append(weights(learner.model))
    require(same(*results), "the weights after task 1 differ from those of plain SGD")


def same_seed_same_weights(make: Maker) -> None:
    """The same seed gives the same weights."""
    first, second = (weights(trained(make()).model) for _ in range(2))
    require(same(first, second), "two runs with the same seed end with different weights")


def resumes_bit_identically(make: Maker) -> None:
    """Save and load between tasks and in the middle of a task: the run ends with the same weights."""
    _resume(make, "SGD", ((2, 0), (2, 1), (3, 2)))


def resumes_with_optimizer_state(make: Maker) -> None:
    """The same in the middle of a task with optimizers that have a state (momentum, Adam), which is restored too."""
    for optimizer in (name for name in OPTIMIZERS if name not in ("SGD", "AdamW")):
        _resume(make, optimizer, ((2, 2),))


def any_optimizer(make: Maker) -> None:
    """Trains under SGD, momentum, Nesterov, Adam and AdamW, with finite weights that move."""
    for optimizer in OPTIMIZERS:
        stream = problem()
        model = model_for(stream)
        before = weights(model)
        learner = trained(make(), stream, model, optimizer)
        finite(learner)
        require(not same(before, weights(model)), f"nothing was trained under {optimizer}")


def detach_restores(make: Maker) -> None:
    """After `detach`, no trace of the method is left on model and optimizer."""
    stream = problem()
    model = model_for(stream)
    before = _traces(model)
    learner = attached(make(), model)
    settings = {key: value for key, value in learner.optimizer.param_groups[0].items() if key != "params"}
    train(learner, stream, SETTINGS, seed=0)
    learner.detach()
    require(_traces(model) == before, "hooks, modes or settings of the model's layers are not as before")
    after = {key: value for key, value in learner.optimizer.param_groups[0].items() if key != "params"}
    require(after == settings, "settings of the optimizer are not as before")
    hooks = len(learner.optimizer._optimizer_step_pre_hooks) + len(
        learner.optimizer._optimizer_step_post_hooks
    )
    require(hooks == 0, f"{hooks} hooks are left on the optimizer")


def other_heads_untouched(make: Maker) -> None:
    """Training a task changes only its own head."""
    stream = problem(heads="per-task")
    learner = attached(make(), model_for(stream))
    for task in stream:
        before = weights(learner.model)
        with learner.learning(task):
            _train_steps(learner, task)
        chosen = f"heads.{list(stream.heads).index(task.head)}."
        moved = [
            name
            for name, value in weights(learner.model).items()
            if name.startswith("heads.")
            and not name.startswith(chosen)
            and not torch.equal(value, before[name])
        ]
        require(not moved, f"task {task.number} changed other heads: {moved}")


def both_precisions(make: Maker) -> None:
    """Works in float32 and float64, with the same result up to rounding."""
    stream = problem()
    results = []
    for dtype in (torch.float32, torch.float64):
        learner = trained(make(), stream, model_for(stream, dtype))
        finite(learner)
        require(
            all(p.dtype is dtype for p in learner.model.parameters()),
            f"parameters are no longer {dtype} after training",
        )
        results.append(weights(learner.model))
    gap = max(
        float((a.double() - b).abs().max()) for a, b in zip(*(r.values() for r in results), strict=True)
    )
    require(gap < 1e-3, f"float32 and float64 runs differ by {gap:.1e}")


def tiny_memories(make: Maker) -> None:
    """Works with a memory of no sample and of one sample per task, and is plain SGD with none (where it says so)."""
    method = make()
    for name in memory_settings(method):
        for count in (0, 1):
            learner = trained(make(**{name: count}))
            finite(learner)
            if count == 0 and method.first_task_is_sgd and _only_remembers(method):
                require(
                    same(weights(learner.model), weights(trained(SGD()).model)),
                    f"with {name}=0 it is not plain SGD",
                )


def memory_beyond_the_task(make: Maker) -> None:
    """Asked for more samples than a task has, it takes all of them."""
    for name in memory_settings(make()):
        finite(trained(make(**{name: 1000})))


def a_task_seen_twice(make: Maker) -> None:
    """The same data again as a new task."""
    stream = problem()
    twice = from_arrays([_arrays(stream), _arrays(stream), _arrays(stream)], outputs=3)
    finite(trained(make(), twice))


def integer_inputs(make: Maker) -> None:
    """Integer inputs through an embedding, and inputs that are not contiguous."""
    stream = problem(integer=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = WordModel()
    finite(trained(make(), stream, model))
    finite(trained(make(), problem()))


def frozen_parameters(make: Maker) -> None:
    """Parameters that are frozen stay as they are, and the others train."""
    stream = problem()
    model = model_for(stream)
    frozen = next(model.parameters()).requires_grad_(False)
    before, all_before = frozen.clone(), weights(model)
    trained(make(), stream, model)
    require(torch.equal(before, frozen), "a frozen parameter has changed")
    require(not same(all_before, weights(model)), "nothing was trained")


def an_error_changes_nothing(make: Maker) -> None:
    """An error inside a task leaves the method's state as before the task, and the next task works."""
    stream = problem()
    learner = attached(make(), model_for(stream))
    train(learner, _only(stream, 1), SETTINGS, seed=0)
    before = _flat(learner.method.state_dict())
    layers = _traces(learner.model)
    try:
        with learner.learning(stream.task(2)):
            _train_steps(learner, stream.task(2))
            raise _Stop
    except _Stop:
        pass
    require(_flat(learner.method.state_dict()) == before, "the state was changed by a task that failed")
    require(_traces(learner.model) == layers, "a task that failed left traces on the model's layers")
    with learner.learning(stream.task(2)):
        _train_steps(learner, stream.task(2))
    finite(learner)


def refuses_with_a_reason(make: Maker) -> None:
    """A model with nothing to train is refused with the reason."""
    model = nn.Linear(6, 3).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        attach(make(), model, optimizer)
    except UnsupportedError as error:
        require(bool(str(error)), "the refusal has no reason")
        return
    raise NonConformingError("a model without trainable parameters was accepted")


CHECKS: dict[str, Callable[[Maker], None]] = {
    check.__name__.replace("_", "-"): check
    for check in (
        first_task_is_sgd,
        same_seed_same_weights,
        resumes_bit_identically,
        resumes_with_optimizer_state,
        any_optimizer,
        projection_laws,
        nothing_leaks,
        aliases_are_the_weights,
        weights_may_change_within_a_task,
        detach_restores,
        other_heads_untouched,
        both_precisions,
        tiny_memories,
        memory_beyond_the_task,
        a_task_seen_twice,
        integer_inputs,
        frozen_parameters,
        an_error_changes_nothing,
        refuses_with_a_reason,
    )
}


# ---- pieces of checks ---------------------------------------------------------------------------------------


def _only_remembers(method: Method) -> bool:
    """Whether everything a method does depends on its remembered samples: not so for a chain that includes EWC."""
    if isinstance(method, Composite):
        return all(_only_remembers(member) for member in method.members.values())
    return bool(memory_settings(method))


def _arrays(stream: Stream, number: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    task = stream.task(number)
    return (*task.train.samples(), *task.test.samples())


def _only(stream: Stream, number: int) -> Stream:
    return from_arrays([_arrays(stream, number)], outputs=3)


def _train_steps(learner: Learner, task: Task) -> None:
    """The steps of a task that has started, without the rest of the loop."""
    inputs, targets = task.train.samples()
    for index in torch.arange(len(targets)).split(SETTINGS.batch_size):
        learner.optimizer.zero_grad()
        loss = learner.loss(learner.model(inputs[index]), targets[index]) + learner.penalty()
        loss.backward()
        learner.optimizer.step()


def _resume(make: Maker, optimizer: str, places: Sequence[tuple[int, int]]) -> None:
    stream = problem()
    whole = weights(trained(make(), stream, optimizer=optimizer).model)
    for task, step in places:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint.safetensors"
            _train_until(attached(make(), model_for(stream), optimizer), stream, task, step, path)
            torch.manual_seed(99)
            learner = attached(make(), model_for(stream), optimizer)
            progress = load_checkpoint(path, learner, stream)
            train(learner, stream, SETTINGS, seed=0, progress=progress)
        require(
            same(whole, weights(learner.model)),
            f"a run under {optimizer} resumed at task {task}, step {step} ends with other weights than an "
            "uninterrupted one",
        )


def _train_until(learner: Learner, stream: Stream, task: int, step: int, path: Path) -> None:
    class Interrupter(Observer):
        def check(self, learner: Learner, progress: Progress) -> None:
            if (progress.task, progress.step) == (task, step):
                save_checkpoint(path, learner, progress)
                raise _Stop

        def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
            self.check(learner, progress)

        def on_task(self, learner: Learner, progress: Progress) -> None:
            self.check(learner, progress)

    try:
        train(learner, stream, SETTINGS, seed=0, observers=(Interrupter(),))
    except _Stop:
        return
    raise NonConformingError(f"the run ended before task {task}, step {step}")


def _traces(model: nn.Module) -> list[tuple[str, int, object]]:
    """Hooks, parameters that train, and dropout rates of each layer."""
    return [
        (
            name,
            len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._state_dict_pre_hooks),
            (
                getattr(module, "p", None),
                [p.requires_grad for p in module.parameters(recurse=False)],
                "forward" in vars(module),
            ),
        )
        for name, module in model.named_modules()
    ]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """A nested state as one dict of comparable values."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in _flat(item, f"{path}/{key}").items()}
    if isinstance(value, list | tuple):
        return {k: v for number, item in enumerate(value) for k, v in _flat(item, f"{path}/{number}").items()}
    return {path: value.tolist() if isinstance(value, Tensor) else value}
