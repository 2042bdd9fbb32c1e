"""Several seeds of one setting, trained as one batched computation.

A step of a small network is half Python. Networks of one shape stack to one network with one more dimension, whose step
costs little more Python than that of one: `benchmarks/vectorised_seeds.py` measures the gain. Each network sees the
batches, and takes the steps, that it would see and take alone. Records may not depend on who was trained with whom, so
runs are put together only where some batched steps were seen to be the same to the last bit as single ones. Mostly they
are, but not for all shapes (matrix products may sum in another order where a network's share of a stacked tensor is not
aligned as a tensor of its own), no library promises it, and a trial proves nothing: of 406 random settings that passed
it, one differed later in its last bits. So this is done only where it is asked for.

Plain training of multilayer perceptrons only: `why_not_together` says what else stands in the way. Other methods have
steps of their own, whose arithmetic outweighs the Python.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.methods.learner import Learner
from orthocl.methods.sgd import SGD
from orthocl.streams.base import Stream, Task
from orthocl.training.attach import default_loss
from orthocl.training.loop import (
    Observer,
    Progress,
    TrainSettings,
    batches,
    finish_step,
    finish_task,
    finite,
    start,
)

TRIAL_STEPS = 8


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


def why_not_together(members: Sequence[Member], settings: TrainSettings) -> str | None:
    """Why these runs cannot be trained together, or None if they can."""
    first = members[0]
    if settings.optimizer != "sgd" or settings.momentum or settings.weight_decay:
        return "only plain SGD steps are taken together"
    for member in members:
        learner = member.learner
        if type(learner.method) is not SGD or learner.loss is not default_loss:
            return "only plain training is done together"
        if any(task.kind != "classification" for task in member.stream):
            return "only classification is trained together"
        layers = linear_layers(learner.model)
        if layers is None:
            return "only multilayer perceptrons without dropout are trained together"
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
    return (
        None
        if _same_bits(members, settings)
        else "batched products of these shapes round differently on this processor"
    )


def _same_bits(members: Sequence[Member], settings: TrainSettings) -> bool:
    """Whether steps together are to the bit steps of each alone: tried on copies, with each size of batch."""
    task, rate = members[0].stream.task(1), settings.learning_rate
    count = len(task.train)
    for size in {min(settings.batch_size, count), count % settings.batch_size} - {0}:
        stacked, single = ([copy.deepcopy(m.learner.model) for m in members] for _ in range(2))
        nets = StackedNets(stacked)
        optimizers = [torch.optim.SGD(model.parameters(), lr=rate) for model in single]
        for trial in range(TRIAL_STEPS):
            inputs, targets = task.train.samples(torch.arange(trial, trial + size) % count)
            x = members[0].learner.to_model(inputs)
            with torch.no_grad():
                batch = torch.stack([x.flatten(1)] * len(members)), torch.stack([targets] * len(members))
                losses = nets.step(*batch, rate)
            for model, optimizer, loss in zip(single, optimizers, losses, strict=True):
                optimizer.zero_grad()
                value = default_loss(model(x), targets)
                value.backward()
                optimizer.step()
                if value.item() != loss:
                    return False
        for model, other in zip(stacked, single, strict=True):
            if not all(map(torch.equal, model.parameters(), other.parameters())):
                return False
    return True


def _size(task: Task) -> tuple[int, int]:
    return len(task.train), task.outputs


def linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """The layers of a multilayer perceptron (flatten, then linear layers with ReLU in between), else None."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        return None
    modules = [m for m in model if not (isinstance(m, nn.Dropout) and m.p == 0)]
    if type(modules[0]) is nn.Flatten:
        modules = modules[1:]
    layers = [m for m in modules[::2] if type(m) is nn.Linear and m.bias is not None]
    between = [m for m in modules[1::2] if type(m) is nn.ReLU]
    alternating = len(layers) == len(between) + 1 and len(layers) + len(between) == len(modules)
    return layers if alternating and all(p.requires_grad for p in model.parameters()) else None


class StackedNets:
    """Multilayer perceptrons of one shape as one: their weights become views of stacked ones, until `release`.

    The backward pass is written out: the products that autograd takes for one network, in the same order.
    """

    def __init__(self, models: Sequence[nn.Module]):
        self._own: list[nn.Parameter] = []
        self.layers: list[tuple[Tensor, Tensor]] = []
        for layers in zip(*(linear_layers(model) or () for model in models), strict=True):
            weight, bias = ([layer.weight for layer in layers], [layer.bias for layer in layers])
            self.layers.append((self._stack(weight), self._stack(bias)))

    def _stack(self, own: Sequence[nn.Parameter]) -> Tensor:
        stacked = torch.stack([parameter.detach() for parameter in own])
        for view, parameter in zip(stacked.unbind(), own, strict=True):
            parameter.data = view
        self._own += own
        return stacked

    def step(self, x: Tensor, targets: Tensor, learning_rate: float) -> list[float]:
        """A step of each network on its own batch.

        Args:
            x: (networks, samples, inputs).
            targets: (networks, samples).
            learning_rate: of all of them.

        Returns:
            The mean loss of each network before the step.
        """
        inputs = []
        for number, (weight, bias) in enumerate(self.layers):
            inputs.append(x.relu_() if number else x)
            x = torch.baddbmm(bias[:, None], inputs[-1], weight.transpose(1, 2))
        dz, losses = _loss_gradient(x, targets)
        for number in range(len(self.layers) - 1, -1, -1):
            weight, bias = self.layers[number]
            dx = torch.bmm(dz, weight) if number else dz
            weight.add_(torch.bmm(dz.transpose(1, 2), inputs[number]), alpha=-learning_rate)
            bias.add_(dz.sum(1), alpha=-learning_rate)
            dz = torch.where(inputs[number] > 0, dx, 0.0) if number else dx
        return losses

    def release(self) -> None:
        """Give every network weights of its own again."""
        for parameter in self._own:
            parameter.data = parameter.data.clone()


def _loss_gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, list[float]]:
    """The derivatives of each network's mean cross-entropy, and those losses."""
    with torch.enable_grad():
        leaf = outputs.requires_grad_()
        logarithms = functional.log_softmax(leaf, -1)
        total = functional.nll_loss(logarithms.flatten(0, 1), targets.flatten(), reduction="sum")
        (gradient,) = torch.autograd.grad(total / targets.shape[1], leaf)
    pairs = zip(logarithms.detach(), targets, strict=True)
    return gradient, torch.stack([functional.nll_loss(*pair) for pair in pairs]).tolist()


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
            nets = StackedNets([member.learner.model for member in members])
            tasks.callback(nets.release)
            _train_task(members, nets, settings)
        _raise_first([_error(member.finish_task) for member in members])
    return [member.progress for member in members]


@torch.no_grad()
def _train_task(members: Sequence[Member], nets: StackedNets, settings: TrainSettings) -> None:
    streams = {id(member.stream): member for member in members}  # often one for all
    samples = {key: _samples(member.learner) for key, member in streams.items()}
    data = [samples[id(member.stream)] for member in members]
    task, done = members[0].learner.current_task, members[0].progress.step
    per_epoch = -(-len(task.train) // settings.batch_size)
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
        x = torch.stack([inputs[index] for (inputs, _), (_, index) in zip(data, places, strict=True)])
        y = torch.stack([targets[index] for (_, targets), (_, index) in zip(data, places, strict=True)])
        losses = [finite(loss, task, step, rate) for loss in nets.step(x, y, rate)]
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
