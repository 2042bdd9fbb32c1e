"""Several seeds of one setting, trained as one computation.

A step of a small network is half Python and bookkeeping. Here a step of several networks of one shape is written out
and shares what can be shared: `benchmarks/vectorised_seeds.py` measures the gain. Each network sees the batches, and
takes the steps, that it would see and take alone, to the bit, so that no record depends on who was trained with whom.
(Batched matrix products, `bmm`, are no faster than single ones on large enough networks, and round differently for some
shapes: so each product is one network's.)

Plain training of multilayer perceptrons only: `why_not_together` says what else stands in the way. Other methods have
steps of their own, whose arithmetic outweighs the Python.
"""

from __future__ import annotations

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

aten = torch.ops.aten
ALIGNMENT = 64  # bytes: where torch lets tensors begin


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


class NetsTogether:
    """Multilayer perceptrons of one shape that take their steps together.

    The backward pass is written out. Matrix products, sums and losses are those that autograd takes for one network, on
    operands of the same shape and alignment, so that each network's numbers are to the bit those it would have alone;
    what acts on each number by itself is done for all networks at once.
    """

    def __init__(self, models: Sequence[nn.Module]):
        self._layers = [
            [(layer.weight.detach(), layer.weight.detach().t(), layer.bias.detach()) for layer in layers]
            for layers in zip(*(linear_layers(model) or () for model in models), strict=True)
        ]
        self._gradients = [
            [(torch.empty_like(weight), torch.empty_like(bias)) for weight, _, bias in layer]
            for layer in self._layers
        ]
        self._buffers: dict[int, list[tuple[_Stack, _Stack]]] = {}

    def step(
        self, data: Sequence[tuple[Tensor, Tensor]], index: Sequence[Tensor], rate: float
    ) -> list[float]:
        """A step of each network on its own batch.

        Args:
            data: inputs (samples by rows) and targets of each network's task.
            index: positions of each network's batch: equally many.
            rate: learning rate of all of them.

        Returns:
            The mean loss of each network before the step.
        """
        buffers = self._buffers_for(len(index[0]))
        for (inputs, _), positions, x in zip(data, index, buffers[0][0].each, strict=True):
            torch.index_select(inputs, 0, positions, out=x)
        for number, layer in enumerate(self._layers):
            for (_, weight_t, bias), x, z in zip(
                layer, buffers[number][0].each, buffers[number + 1][0].each, strict=True
            ):
                torch.addmm(bias, x, weight_t, out=z)
            if number < len(self._layers) - 1:
                buffers[number + 1][0].all.relu_()
        losses = [
            _loss(z, targets[positions], dz)
            for (_, targets), positions, z, dz in zip(
                data, index, buffers[-1][0].each, buffers[-1][1].each, strict=True
            )
        ]
        for number in range(len(self._layers) - 1, -1, -1):
            self._move(number, buffers, rate)
        return torch.stack(losses).tolist()

    def _move(self, number: int, buffers: list[tuple[_Stack, _Stack]], rate: float) -> None:
        """The backward pass through a layer, and its step."""
        (inputs, d_inputs), (_, d_outputs) = buffers[number], buffers[number + 1]
        for k, (weight, _, bias) in enumerate(self._layers[number]):
            dz, (d_weight, d_bias) = d_outputs.each[k], self._gradients[number][k]
            if number:
                torch.mm(dz, weight, out=d_inputs.each[k])
            torch.mm(dz.t(), inputs.each[k], out=d_weight)
            torch.sum(dz, 0, out=d_bias)
            weight.add_(d_weight, alpha=-rate)
            bias.add_(d_bias, alpha=-rate)
        if number:
            aten.threshold_backward.grad_input(d_inputs.all, inputs.all, 0, grad_input=d_inputs.all)

    def _buffers_for(self, samples: int) -> list[tuple[_Stack, _Stack]]:
        """What enters each layer, and what leaves the last, and the derivatives by it."""
        if samples not in self._buffers:
            widths = [layer[0][0].shape[1] for layer in self._layers] + [self._layers[-1][0][0].shape[0]]
            like, count = self._layers[0][0][0], len(self._layers[0])
            self._buffers[samples] = [
                (_Stack(like, count, samples, width), _Stack(like, count, samples, width)) for width in widths
            ]
        return self._buffers[samples]


class _Stack:
    """One matrix for each network, in one tensor, each aligned as a tensor of its own."""

    def __init__(self, like: Tensor, count: int, rows: int, columns: int):
        unit = ALIGNMENT // like.element_size()
        stride = -(-rows * columns // unit) * unit
        self.all = like.new_zeros(count, stride)
        self.each = [part[: rows * columns].view(rows, columns) for part in self.all]


def _loss(outputs: Tensor, targets: Tensor, gradient: Tensor) -> Tensor:
    """The mean cross-entropy of one network; its derivatives go into `gradient`."""
    logarithms = functional.log_softmax(outputs, -1)
    mean = (targets, None, 1, -100)  # no class weights, the mean, the label that is never seen
    loss: Tensor
    loss, weight = aten.nll_loss_forward(logarithms, *mean)
    by_logarithms = aten.nll_loss_backward(torch.ones_like(loss), logarithms, *mean, weight)
    aten._log_softmax_backward_data.out(by_logarithms, logarithms, -1, logarithms.dtype, out=gradient)
    return loss


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
            _train_task(members, NetsTogether([member.learner.model for member in members]), settings)
        _raise_first([_error(member.finish_task) for member in members])
    return [member.progress for member in members]


@torch.no_grad()
def _train_task(members: Sequence[Member], nets: NetsTogether, settings: TrainSettings) -> None:
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
        member.learner.note_weights()  # steps are taken, though not by the optimizer
        size, epochs = settings.batch_size, settings.epochs
        orders.append(batches(len(task.train), size, epochs, member.seed, task.number, done))
    clock, evaluating = perf_counter(), sum(member.progress.seconds["evaluate"] for member in members)
    for places in zip(*orders, strict=True):
        step = places[0][0]
        losses = nets.step(data, [index for _, index in places], rate)
        losses = [finite(loss, task, step, rate) for loss in losses]
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
