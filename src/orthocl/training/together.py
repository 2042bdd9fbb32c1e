"""Several seeds of one setting, trained as one computation, and single ones the same way.

A step of a small network is half bookkeeping, which `written_out` saves, more so for several networks at a time:
`benchmarks/vectorised_seeds.py` measures the gain. Each network sees the batches, and takes the steps, that it would
see and take in `loop.train`, to the bit, so that no record depends on how, or with whom, a run was trained.

For multilayer perceptrons under plain SGD, with methods that have no penalty: `why_not_together` says what stands in
the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor
from torch.optim import Optimizer

from orthocl.methods.base import Method
from orthocl.methods.learner import Learner
from orthocl.methods.sgd import SGD
from orthocl.streams.base import Stream, Task
from orthocl.training.loop import (
    Observer,
    Progress,
    TrainSettings,
    batches,
    finish_step,
    finish_task,
    finite,
    start,
    train,
)
from orthocl.training.losses import default_loss
from orthocl.training.mlp_steps import WrittenOutSteps, linear_layers


@dataclass
class Member:
    """One of the runs that are trained together.

    Args:
        learner: from `attach`.
        stream: its tasks.
        seed: seed of the order of its samples.
        progress: where to go on, after a resume.
        observers: its watchers.
    """

    learner: Learner
    stream: Stream
    seed: int
    progress: Progress = field(default_factory=Progress)
    observers: Sequence[Observer] = ()

    def take_note(self, settings: TrainSettings, step: int, loss: float, steps_per_epoch: int) -> None:
        """What follows a step."""
        finish_step(self.learner, self.stream, settings, self.progress, step, loss, steps_per_epoch)
        for observer in self.observers:
            observer.on_step(self.learner, self.progress, loss)

    def finish_task(self) -> None:
        """What follows a task."""
        finish_task(self.learner, self.stream, self.progress, self.observers)


def why_not_together(members: Sequence[Member]) -> str | None:
    """Why these runs cannot be trained together, or None if they can."""
    first = members[0]
    for member in members:
        learner = member.learner
        if not _is_plain(learner.optimizer):
            return "only plain SGD steps are taken together"
        if not _has_only_projections(learner.method) or learner.loss is not default_loss:
            return "only plain and projected training on the cross-entropy is done together"
        if any(task.kind != "classification" for task in member.stream):
            return "only classification is trained together"
        layers = linear_layers(learner.model)
        if layers is None:
            return "only multilayer perceptrons without dropout are trained together"
        if any(1 in layer.weight.shape for layer in layers):
            return "products with layers of one unit are taken differently"  # whose matrices are their own transposes
        if learner.device.type != "cpu":
            return "only networks on the processor are trained together"
        if [layer.weight.shape for layer in layers] != [
            layer.weight.shape for layer in linear_layers(first.learner.model) or ()
        ]:
            return "the networks have different shapes"
        if [_size(task) for task in member.stream] != [_size(task) for task in first.stream]:
            return "the tasks have different sizes"
        if (member.progress.task, member.progress.step) != (first.progress.task, first.progress.step):
            return "the runs stand at different steps"
    return None


def _is_plain(optimizer: Optimizer) -> bool:
    (group, *others) = optimizer.param_groups
    extras = ("momentum", "weight_decay", "maximize")
    return type(optimizer) is torch.optim.SGD and not others and not any(group[name] for name in extras)


def _has_only_projections(method: Method) -> bool:
    """Whether a method acts on gradients and after steps alone, if at all, and leaves the batches as they are."""
    projects = method.projects and type(method).penalty is Method.penalty and method.batch_size is None
    return projects or type(method) is SGD


def _size(task: Task) -> tuple[int, int]:
    return len(task.train), task.outputs


def train_together(members: Sequence[Member], settings: TrainSettings) -> list[Progress]:
    """What `train` does for each of the runs, with their steps taken together.

    An error of one of them stops all, after the observers of all have seen the step: each can go on alone from there.
    """
    for member in members:
        start(member.learner, member.stream, member.progress, member.observers)
    first = members[0]
    for number in range(first.progress.task, len(first.stream) + 1):
        with ExitStack() as tasks:
            for member in members:
                member.learner.batch_size = settings.batch_size
                resumed = member.progress.step > 0
                tasks.enter_context(member.learner.learning(member.stream.task(number), resumed=resumed))
            _train_task(members, settings)
            remembering = perf_counter()
        for member in members:
            member.progress.seconds["remember"] += (perf_counter() - remembering) / len(members)
        _raise_first([_error(member.finish_task) for member in members])
    return [member.progress for member in members]


def train_member(member: Member, settings: TrainSettings) -> Progress:
    """What `train` does, with written-out steps where they can be had: faster, and the same to the bit."""
    if why_not_together([member]) is None:
        return train_together([member], settings)[0]
    learner, stream, progress = member.learner, member.stream, member.progress
    return train(learner, stream, settings, seed=member.seed, progress=progress, observers=member.observers)


def _train_task(members: Sequence[Member], settings: TrainSettings) -> None:
    streams = {id(member.stream): member for member in members}  # often one for all
    samples = {key: _samples(member.learner) for key, member in streams.items()}
    data = [samples[id(member.stream)] for member in members]
    task, done = members[0].learner.current_task, members[0].progress.step
    per_epoch = -(-len(task.train) // settings.batch_size)
    steps = WrittenOutSteps([member.learner for member in members])
    rate = members[0].learner.optimizer.param_groups[0]["lr"]
    orders = []
    for member in members:
        if len(member.progress.losses) < task.number:
            member.progress.losses.append([])
        member.learner.model.train()
        size, epochs = settings.batch_size, settings.epochs
        orders.append(batches(len(task.train), size, epochs, member.seed, task.number, done))
    clock, evaluating = perf_counter(), sum(member.progress.seconds["evaluate"] for member in members)
    for places in zip(*orders, strict=True):
        step = places[0][0]
        losses = steps.backward(data, [index for _, index in places])
        losses = [finite(loss, task, step, rate) for loss in losses]
        steps.step()
        _raise_first(
            [
                _error(member.take_note, settings, step, loss, per_epoch)
                for member, loss in zip(members, losses, strict=True)
            ]
        )
    evaluating -= sum(member.progress.seconds["evaluate"] for member in members)
    for member in members:
        member.progress.seconds["train"] += (perf_counter() - clock + evaluating) / len(members)


def _samples(learner: Learner) -> tuple[Tensor, Tensor]:
    inputs, targets = learner.current_task.train.samples()
    return learner.to_model(inputs).flatten(1), targets


def _error(work: Callable[..., None], *arguments: object) -> Exception | None:
    try:
        work(*arguments)
    except Exception as error:
        return error
    return None


def _raise_first(errors: Sequence[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error
