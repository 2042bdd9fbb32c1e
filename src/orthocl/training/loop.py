"""The training loop: `train_members` over the tasks, `train_task` over the batches of one.

How a step is taken is in `steppers`. Everything a method does happens inside `learner.learning`, `learner.penalty` and
the hooks that `attach` put around `optimizer.step()`: see ARCHITECTURE.md for the life of one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from time import perf_counter, process_time
from typing import Any, Literal

import torch
from torch import Tensor

from orthocl.errors import DivergenceError, SettingsError
from orthocl.methods.base import later
from orthocl.methods.learner import Learner
from orthocl.streams.base import Stream, Task
from orthocl.training.evaluation import accuracy, evaluate
from orthocl.training.quick_conditions import why_not_quick
from orthocl.training.seeds import derive_generator, draw_seed
from orthocl.training.steppers import StepperChoice


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
                raise SettingsError(f"{name} must be a finite number, 0 or more, got {getattr(self, name)}")
        for name in ("epochs", "batch_size"):
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

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Before the first step, and after each resume."""

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """After every step: keep this fast."""

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """After every task, with its row of accuracies in place."""


@dataclass
class Member:
    """One of the learners that are trained side by side; usually there is only one.

    Args:
        learner: from `attach`.
        stream: its tasks.
        seed: seed of the order of its samples; None draws one from torch's generator, or takes that of `progress`.
        progress: where to resume.
        observers: its watchers.
        evaluating: processor time of the evaluations so far.
    """

    learner: Learner
    stream: Stream
    seed: int | None = None
    progress: Progress = field(default_factory=Progress)
    observers: Sequence[Observer] = ()
    evaluating: float = field(default=0.0, init=False)

    def start(self) -> None:
        """Evaluate the untrained network, unless a run resumes, and tell the observers."""
        if self.seed is None:
            self.seed = draw_seed() if self.progress.order_seed is None else self.progress.order_seed
        self.progress.order_seed = self.seed
        if not self.progress.accuracies:
            self.progress.accuracies.append(self._evaluate())
        for observer in self.observers:
            observer.on_start(self.learner, self.stream, self.progress)
        self.learner.tasks_expected = len(self.stream)

    def batches(self, task: Task, size: int, epochs: int) -> Iterator[tuple[int, Tensor]]:
        """(step, positions) of the batches of a task that are still to come."""
        return batches(len(task.train), size, epochs, self.seed, task.number, self.progress.step)

    def finish_step(self, step: int, loss: float, steps_per_epoch: int, evaluate_every: int | None) -> None:
        """Count a step, evaluate if it is time, and tell the observers."""
        progress = self.progress
        progress.step = step
        progress.loss_sum += loss
        if step % steps_per_epoch == 0:
            progress.losses[-1].append(progress.loss_sum / steps_per_epoch)
            progress.loss_sum = 0.0
        if evaluate_every and step % evaluate_every == 0:
            row = self._evaluate()
            progress.curves.append({"task": progress.task, "step": step, "accuracies": row})
        for observer in self.observers:
            observer.on_step(self.learner, progress, loss)

    def finish_task(self) -> None:
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


def train(
    learner: Learner,
    stream: Stream,
    settings: TrainSettings,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
    quick: bool = True,
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
        quick: whether steps may be taken without autograd where nothing can see the difference, to the same bits.
    """
    member = Member(learner, stream, seed, Progress() if progress is None else progress, observers)
    return train_members([member], settings, quick=quick)[0]


def train_members(
    members: Sequence[Member], settings: TrainSettings, *, quick: bool = True
) -> list[Progress]:
    """What `train` does for each of several learners, a step of each in turn: see `why_not_together`.

    An error in one of them stops all, after the observers of all have seen the step: each can resume alone from there.
    """
    reason = why_not_together(members) if len(members) > 1 else None
    if reason is not None:
        raise SettingsError(f"these learners cannot be trained together, because {reason}: train each alone")
    for member in members:
        member.start()
    choice = StepperChoice(quick)
    first = members[0]
    for number in range(first.progress.task, len(first.stream) + 1):
        with ExitStack() as tasks:
            for member in members:
                learner = member.learner
                learner.batch_size = learner.method.batch_size or settings.batch_size
                resumed = member.progress.step > 0
                tasks.enter_context(learner.learning(member.stream.task(number), resumed=resumed))
            train_task(members, settings, choice)
            remembering, worked = perf_counter(), process_time()
        for member in members:
            member.progress.seconds["remember"] += (perf_counter() - remembering) / len(members)
            member.worked((process_time() - worked) / len(members))
        _for_each(members, Member.finish_task)
    return [member.progress for member in members]


def train_task(members: Sequence[Member], settings: TrainSettings, choice: StepperChoice) -> None:
    """All remaining steps of one task, inside `learner.learning`."""
    learners = [member.learner for member in members]
    task, size = learners[0].current_task, learners[0].batch_size or settings.batch_size
    steps_per_epoch = -(-len(task.train) // size)
    for member in members:
        if len(member.progress.losses) < task.number:
            member.progress.losses.append([])
        member.learner.model.train()
    stepper = choice.stepper(learners, _samples(members))
    clock, evaluated = perf_counter(), _evaluation_time(members)
    worked, evaluating = process_time(), sum(member.evaluating for member in members)
    orders = [member.batches(task, size, settings.epochs) for member in members]
    for places in zip(*orders, strict=True):
        step = places[0][0]
        losses = stepper.backward([index for _, index in places])
        for learner, loss in zip(learners, losses, strict=True):
            _check_finite(loss, learner, step)
        stepper.step()
        _for_each(
            members,
            Member.finish_step,
            [(step, loss, steps_per_epoch, settings.evaluate_every) for loss in losses],
        )
    spent = perf_counter() - clock - (_evaluation_time(members) - evaluated)
    work = process_time() - worked - (sum(member.evaluating for member in members) - evaluating)
    for member in members:
        member.progress.seconds["train"] += spent / len(members)
        member.worked(work / len(members))


def why_not_together(members: Sequence[Member]) -> str | None:
    """Why some learners cannot be trained together with the results of training each alone; None if they can.

    Together they share one computation and one random generator, so only those qualify whose steps need neither.
    """
    first = members[0]
    shapes = [_shapes(member) for member in members]
    for member, shape in zip(members, shapes, strict=True):
        for task in member.stream:
            inputs, targets = task.train.samples(torch.arange(1))
            reason = why_not_quick(member.learner, member.learner.to_model(inputs), targets)
            if reason is not None:
                return reason
        if shape != shapes[0]:
            return "the networks have different shapes"
        if [_size(task) for task in member.stream] != [_size(task) for task in first.stream]:
            return "the tasks have different sizes"
        if member.learner.method.batch_size != first.learner.method.batch_size:
            return "the methods ask for different batch sizes"
        if (member.progress.task, member.progress.step) != (first.progress.task, first.progress.step):
            return "the runs are at different steps"
    return None


def _shapes(member: Member) -> list[torch.Size]:
    return [p.shape for p in member.learner.model.parameters()]


def _size(task: Task) -> tuple[int, int]:
    return len(task.train), task.outputs


def _samples(members: Sequence[Member]) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of each one's task, once for all members that learn the same stream."""
    found: dict[object, tuple[Tensor, Tensor]] = {}
    data = []
    for member in members:
        learner = member.learner
        like = next(iter(learner.parameters.values()))
        key = id(member.stream), like.device, like.dtype
        if key not in found:
            inputs, targets = learner.current_task.train.samples()
            found[key] = learner.to_model(inputs), targets.to(learner.device)
        data.append(found[key])
    return data


def _evaluation_time(members: Sequence[Member]) -> float:
    return sum(member.progress.seconds["evaluate"] for member in members)


def _for_each(
    members: Sequence[Member],
    work: Callable[..., None],
    arguments: Sequence[tuple[object, ...]] | None = None,
) -> None:
    """Do something for each member, even after an error; then raise the first error."""
    errors = []
    for member, own in zip(members, arguments or [()] * len(members), strict=True):
        try:
            work(member, *own)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]


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
