"""The training loop: read it in a minute.

Everything a method does happens inside `learner.learning`, `learner.penalty` and the hooks that `attach` put around
`optimizer.step()`: see ARCHITECTURE.md for the life of one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor

from orthocl.errors import SettingsError, TrainingError
from orthocl.methods.base import later
from orthocl.methods.learner import Learner
from orthocl.streams.base import Stream, Task
from orthocl.training.evaluation import accuracy, evaluate
from orthocl.training.seeds import derive_generator


@dataclass(frozen=True)
class TrainSettings:
    """How to train each task.

    Args:
        epochs: passes over a task's training data.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        learning_rate: of the optimizer.
        optimizer: "sgd", "adam" or "rmsprop".
        momentum: of SGD.
        nesterov: of SGD.
        weight_decay: of the optimizer.
        evaluate_every: evaluate all tasks every so many steps, for curves; None for never.
        batch_norm: "keep" batch statistics moving (the paper's protocol) or "freeze" them after the first task.
        loss: "auto" (cross-entropy for classes, squared error for numbers), another of `LOSSES`, or "file.py:function".
        loss_source: hash of the source of a loss that is not built in; filled in by the laboratory.
    """

    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 1e-3
    optimizer: Literal["sgd", "adam", "rmsprop"] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    evaluate_every: int | None = None
    batch_norm: Literal["freeze", "keep"] = "keep"
    loss: str = later("auto")
    loss_source: str = later("")

    def __post_init__(self) -> None:
        if self.optimizer != "sgd" and self.nesterov:
            raise SettingsError(f"nesterov is a setting of SGD: {self.optimizer} has none, leave it out")
        if self.optimizer == "adam" and self.momentum:
            raise SettingsError("momentum is a setting of SGD and RMSprop: adam has none, leave it out")
        if self.nesterov and not self.momentum > 0:
            raise SettingsError("nesterov needs a momentum above 0")
        for name in ("momentum", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingsError(f"{name} must be a finite number from 0 on, got {getattr(self, name)}")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.learning_rate > 0 or not math.isfinite(self.learning_rate):
            raise SettingsError(f"learning_rate must be a positive number, got {self.learning_rate}")
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise SettingsError(f"evaluate_every must be at least 1 step, got {self.evaluate_every}")


@dataclass
class Progress:
    """Where a run stands and what it has measured: with the learner's state, all that is needed to go on.

    Args:
        task: number of the task being learnt, or to be learnt next.
        step: steps taken in that task.
        accuracies: test accuracy of every task, at initialisation and then after each task.
        memorised: after each task, training accuracy on the remembered samples of each finished task.
        curves: (task, step, test accuracy of every task) every `evaluate_every` steps.
        monitors: what the method reported after each task.
        losses: mean training loss of each epoch, per task.
        seconds: time spent, by activity.
    """

    task: int = 1
    step: int = 0
    accuracies: list[list[float]] = field(default_factory=list)
    memorised: list[dict[int, float]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    monitors: list[dict[str, float]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    loss_sum: float = 0.0
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "remember": 0.0, "evaluate": 0.0}
    )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return asdict(self)


class Observer:
    """What may watch a run: override any of these. They see the run; they do not steer it."""

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Before the first step, and after each resume."""

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """After every step: be quick."""

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """After every task, with its row of accuracies in place."""


def train(
    learner: Learner,
    stream: Stream,
    settings: TrainSettings,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
) -> Progress:
    """Learn the tasks of a stream one after another, evaluating all of them in between.

    Args:
        learner: from `attach`.
        stream: the tasks.
        settings: how to train.
        seed: seed of the order of the samples.
        progress: where to go on, after a resume; from the start by default.
        observers: watchers, such as a progress bar or a checkpointer.
    """
    progress = start(learner, stream, progress, observers)
    for number in range(progress.task, len(stream) + 1):
        task = stream.task(number)
        learner.batch_size = learner.method.batch_size or settings.batch_size
        with learner.learning(task, resumed=progress.step > 0):
            train_task(learner, stream, task, settings, seed, progress, observers)
            remembering = perf_counter()
        progress.seconds["remember"] += perf_counter() - remembering
        finish_task(learner, stream, progress, observers)
    return progress


def start(
    learner: Learner, stream: Stream, progress: Progress | None, observers: Sequence[Observer]
) -> Progress:
    """Evaluate the untrained network, unless a run goes on, and tell the observers."""
    progress = Progress() if progress is None else progress
    if not progress.accuracies:
        progress.accuracies.append(_timed(progress, "evaluate", lambda: evaluate(learner.model, stream)))
    for observer in observers:
        observer.on_start(learner, stream, progress)
    learner.tasks_expected = len(stream)
    return progress


def finish_task(learner: Learner, stream: Stream, progress: Progress, observers: Sequence[Observer]) -> None:
    """Evaluate after a task, and move on to the next."""
    progress.accuracies.append(_timed(progress, "evaluate", lambda: evaluate(learner.model, stream)))
    progress.memorised.append(memorised_accuracy(learner, stream))
    progress.monitors.append(_rounded(learner.method.monitor(learner)))
    progress.task, progress.step = progress.task + 1, 0
    for observer in observers:
        observer.on_task(learner, progress)


def _rounded(monitor: dict[str, float]) -> dict[str, float]:
    """Six digits: the last bits of a float64 product depend on where its operands lie in memory.

    >>> _rounded({"rank": 1234567.0, "leak": 1.23456789e-8})
    {'rank': 1234567.0, 'leak': 1.23457e-08}
    """
    return {name: value if value % 1 == 0 else float(f"{value:.6g}") for name, value in monitor.items()}


def train_task(
    learner: Learner,
    stream: Stream,
    task: Task,
    settings: TrainSettings,
    seed: int,
    progress: Progress,
    observers: Sequence[Observer],
) -> None:
    """All steps of one task that are still to be taken."""
    model, optimizer = learner.model, learner.optimizer
    inputs, targets = task.train.samples()
    inputs, targets = learner.to_model(inputs), targets.to(learner.device)
    size = learner.batch_size or settings.batch_size
    steps_per_epoch = -(-len(targets) // size)
    if len(progress.losses) < task.number:
        progress.losses.append([])
    model.train()
    clock = perf_counter()
    for step, index in batches(len(targets), size, settings.epochs, seed, task.number, progress.step):
        if learner.on_batch is not None:
            learner.on_batch(index)
        optimizer.zero_grad()
        loss = learner.loss(model(inputs[index]), targets[index])
        penalty = learner.penalty_or_none()
        if penalty is not None:
            loss = loss + penalty
        loss.backward()
        value = finite(loss.item(), task, step, optimizer.param_groups[0]["lr"])
        optimizer.step()
        clock += finish_step(learner, stream, settings, progress, step, value, steps_per_epoch)
        for observer in observers:
            observer.on_step(learner, progress, value)
    progress.seconds["train"] += perf_counter() - clock


def finite(value: float, task: Task, step: int, learning_rate: float) -> float:
    """The loss itself, if it is a number."""
    if not math.isfinite(value):
        raise TrainingError(
            f"the loss became {value} on task {task.number} ({task.name}) at step {step} with learning rate "
            f"{learning_rate:g}: use a smaller learning rate or a weaker penalty"
        )
    return value


def finish_step(
    learner: Learner,
    stream: Stream,
    settings: TrainSettings,
    progress: Progress,
    step: int,
    loss: float,
    steps_per_epoch: int,
) -> float:
    """Count a step and evaluate if it is time: seconds spent on that."""
    progress.step = step
    progress.loss_sum += loss
    if step % steps_per_epoch == 0:
        progress.losses[-1].append(progress.loss_sum / steps_per_epoch)
        progress.loss_sum = 0.0
    if not settings.evaluate_every or step % settings.evaluate_every:
        return 0.0
    before = progress.seconds["evaluate"]
    row = _timed(progress, "evaluate", lambda: evaluate(learner.model, stream))
    progress.curves.append({"task": progress.task, "step": step, "accuracies": row})
    return progress.seconds["evaluate"] - before


def batches(
    samples: int, size: int, epochs: int, seed: int, task: int, done: int
) -> Iterator[tuple[int, Tensor]]:
    """(step from 1, positions) of the batches after step `done`, in an order that depends on seed, task and epoch."""
    per_epoch = -(-samples // size)
    for epoch in range(done // per_epoch, epochs):
        order = torch.randperm(samples, generator=derive_generator("order", seed, task, epoch))
        for position, index in enumerate(order.split(size)):
            step = epoch * per_epoch + position + 1
            if step > done:
                yield step, index


def memorised_accuracy(learner: Learner, stream: Stream) -> dict[int, float]:
    """Training accuracy on the remembered samples of each finished task.

    Paper: the quantity of Figures 1 to 4.
    """
    remembered: dict[int, Tensor] = getattr(learner.method, "remembered", {})
    return {
        number: accuracy(learner.model, task := stream.task(number), task.train, index)
        for number, index in remembered.items()
        if len(index)
    }


def _timed(progress: Progress, activity: str, work: Any) -> Any:
    start = perf_counter()
    result = work()
    progress.seconds[activity] += perf_counter() - start
    return result
