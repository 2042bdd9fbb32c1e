"""The training loop: tasks, batches, steps, evaluation.

Everything a method does happens inside `learner.learning`, `learner.penalty` and the hooks that `attach` put around
`optimizer.step()`: see ARCHITECTURE.md for the life of one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from time import perf_counter, process_time
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from orthocl.errors import DivergenceError, SettingsError
from orthocl.methods.base import later
from orthocl.methods.learner import Learner
from orthocl.streams.base import Stream
from orthocl.tangents.adapter import complete_weights
from orthocl.training.evaluation import accuracy, evaluate
from orthocl.training.seeds import derive_generator, draw_seed

MOST_SAMPLES = 10**12
"""Nobody has a batch of more samples, and torch cannot count many more."""


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
        evaluate_every: evaluate all tasks every this many steps, for curves; None for never.
        batch_norm: "keep" batch statistics moving (the paper's protocol) or "freeze" them after the first task.
        restore_every: steps after which a projecting method restores its constraint, see `attach(..., every=)`.
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
    restore_every: int = later(1)
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
                raise SettingsError(f"{name} must be a finite number, 0 or more, got {getattr(self, name)}")
        if self.momentum > 1:
            raise SettingsError(f"momentum must be at most 1, or steps grow without end, got {self.momentum}")
        if self.batch_size > MOST_SAMPLES:
            raise SettingsError(f"batch_size must be at most {MOST_SAMPLES:,}, got {self.batch_size}")
        for name in ("epochs", "batch_size", "restore_every"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.learning_rate < 1e38:  # beyond that it is infinite in single precision
            raise SettingsError(
                f"learning_rate must be a positive number below 1e38, got {self.learning_rate}"
            )
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise SettingsError(f"evaluate_every must be at least 1 step, got {self.evaluate_every}")


@dataclass
class Progress:
    """Where a run stands and what it has measured: together with the learner's state, all that is needed to resume.

    Args:
        task: number of the task being learnt, or to be learnt next.
        step: steps taken in that task.
        accuracies: test accuracy of every task, at initialisation and then after each task.
        memorised: after each task, training accuracy on the remembered samples of each finished task.
        curves: (task, step, test accuracy of every task) every `evaluate_every` steps.
        monitors: what the method reported after each task.
        losses: mean training loss of each epoch, per task.
        order_seed: seed of the order of the samples, given or drawn.
        seconds: time spent by the clock on the wall, by activity; "processor" is what the processors worked in training
            and remembering.
    """

    task: int = 1
    step: int = 0
    accuracies: list[list[float]] = field(default_factory=list)
    memorised: list[dict[int, float]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    monitors: list[dict[str, float]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    loss_sum: float = 0.0
    order_seed: int | None = None
    seconds: dict[str, float] = field(
        default_factory=lambda: {"train": 0.0, "remember": 0.0, "evaluate": 0.0, "processor": 0.0}
    )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return asdict(self)


class Observer:
    """Watches a run: override any of these methods. They see the run; they do not change it."""

    reads_weights: ClassVar[bool] = True
    """Whether `on_step` looks at weights: the loop may keep part of them elsewhere, and completes them for it."""

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Before the first step, and after each resume."""

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """After every step: keep this fast."""

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """After every task, with its row of accuracies in place."""


def train(
    learner: Learner,
    stream: Stream,
    settings: TrainSettings,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
) -> Progress:
    """Learn the tasks of a stream one after another, evaluating all of them in between.

    Args:
        learner: from `attach`.
        stream: the tasks.
        settings: how to train.
        seed: seed of the order of the samples; None draws one from torch's generator, so that `torch.manual_seed`
            decides. A resumed run keeps the order that it started with.
        progress: where to resume; from the start by default.
        observers: watchers, such as a progress bar or a checkpointer.
    """
    progress = Progress() if progress is None else progress
    training = Training(learner, stream, settings, progress, observers)
    training.start(seed)
    for number in range(progress.task, len(stream) + 1):
        training.learn(number)
    return progress


@dataclass
class Training:
    """One call of `train`; the arguments are the same. `evaluating`: processor time of its evaluations so far."""

    learner: Learner
    stream: Stream
    settings: TrainSettings
    progress: Progress
    observers: Sequence[Observer] = ()
    evaluating: float = field(default=0.0, init=False)

    def start(self, seed: int | None) -> None:
        """Evaluate the untrained network, unless a run resumes, and tell the observers."""
        if len(self.learner.optimizers) > 1:
            raise SettingsError(
                f"`train` steps one optimizer, this learner was attached to {len(self.learner.optimizers)}: use one "
                "with a parameter group for each part, or write the loop yourself"
            )
        if seed is None:
            seed = draw_seed() if self.progress.order_seed is None else self.progress.order_seed
        self.progress.order_seed = seed
        if not self.progress.accuracies:
            self.progress.accuracies.append(self._evaluate())
        for observer in self.observers:
            observer.on_start(self.learner, self.stream, self.progress)
        self.learner.tasks_expected = len(self.stream)

    def learn(self, number: int) -> None:
        """Learn one task, or what remains of it, then evaluate all tasks."""
        learner, progress = self.learner, self.progress
        learner.batch_size = learner.method.batch_size or self.settings.batch_size
        with learner.learning(self.stream.task(number), resumed=progress.step > 0):
            self.take_steps()
            remembering, worked = perf_counter(), process_time()
        progress.seconds["remember"] += perf_counter() - remembering
        self.worked(process_time() - worked)
        self._finish_task()

    def take_steps(self) -> None:
        """All remaining steps of the current task, inside `learner.learning`."""
        learner, progress = self.learner, self.progress
        task, size = learner.current_task, learner.batch_size or self.settings.batch_size
        steps_per_epoch = -(-len(task.train) // size)
        if len(progress.losses) < task.number:
            progress.losses.append([])
        learner.model.train()
        inputs, targets = task.train.samples()
        inputs, targets = learner.to_model(inputs), targets.to(learner.device)
        clock, evaluated = perf_counter(), progress.seconds["evaluate"]
        worked, evaluating = process_time(), self.evaluating
        order = batches(
            len(task.train), size, self.settings.epochs, progress.order_seed, task.number, progress.step
        )
        for step, index in order:
            loss = self._backward(inputs, targets, index)
            _check_finite(loss, learner, step)
            learner.optimizer.step()
            self._finish_step(step, loss, steps_per_epoch)
        progress.seconds["train"] += perf_counter() - clock - (progress.seconds["evaluate"] - evaluated)
        self.worked(process_time() - worked - (self.evaluating - evaluating))

    def _backward(self, inputs: Tensor, targets: Tensor, index: Tensor) -> float:
        """The gradients of loss and penalty on one batch, and their sum."""
        learner = self.learner
        if learner.on_batch is not None:
            learner.on_batch(index)
        learner.optimizer.zero_grad()
        loss = learner.loss(learner.model(inputs[index]), targets[index])
        penalty = learner.penalty_or_none()
        if penalty is not None:
            loss = loss + penalty
        loss.backward()
        return loss.item()

    def _finish_step(self, step: int, loss: float, steps_per_epoch: int) -> None:
        """Count a step, evaluate if it is time, and tell the observers."""
        progress, every = self.progress, self.settings.evaluate_every
        progress.step = step
        progress.loss_sum += loss
        if step % steps_per_epoch == 0:
            progress.losses[-1].append(progress.loss_sum / steps_per_epoch)
            progress.loss_sum = 0.0
        if every and step % every == 0:
            row = self._evaluate()
            progress.curves.append({"task": progress.task, "step": step, "accuracies": row})
        for observer in self.observers:
            with complete_weights(self.learner.model) if observer.reads_weights else nullcontext():
                observer.on_step(self.learner, progress, loss)

    def _finish_task(self) -> None:
        """Evaluate after a task, move on to the next, and tell the observers."""
        progress = self.progress
        progress.accuracies.append(self._evaluate())
        progress.memorised.append(memorised_accuracy(self.learner, self.stream))
        progress.monitors.append(_rounded(self.learner.method.monitor(self.learner)))
        progress.task, progress.step = progress.task + 1, 0
        for observer in self.observers:
            observer.on_task(self.learner, progress)

    def _evaluate(self) -> list[float]:
        start, worked = perf_counter(), process_time()
        row = evaluate(self.learner.model, self.stream)
        self.progress.seconds["evaluate"] += perf_counter() - start
        self.evaluating += process_time() - worked
        return row

    def worked(self, seconds: float) -> None:
        """Count processor time; a run that began without counting it, with older code, goes on without."""
        if "processor" in self.progress.seconds:
            self.progress.seconds["processor"] += seconds


def _rounded(monitor: dict[str, float]) -> dict[str, float]:
    """Six digits: the last bits of a float64 product depend on where its operands are in memory.

    >>> _rounded({"rank": 1234567.0, "leak": 1.23456789e-8})
    {'rank': 1234567.0, 'leak': 1.23457e-08}
    """
    return {name: value if value % 1 == 0 else float(f"{value:.6g}") for name, value in monitor.items()}


def _check_finite(loss: float, learner: Learner, step: int) -> None:
    if not math.isfinite(loss):
        task, rate = learner.current_task, learner.optimizer.param_groups[0]["lr"]
        raise DivergenceError(
            f"the loss became {loss} on task {task.number} ({task.name}) at step {step} with learning rate "
            f"{rate:g}: use a smaller learning rate or a weaker penalty"
        )


def batches(
    samples: int, size: int, epochs: int, seed: int | None, task: int, done: int
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
    return {
        number: accuracy(learner.model, task := stream.task(number), task.train, index)
        for number, index in learner.method.remembered.items()
        if len(index)
    }
