"""Quick steps of multilayer perceptrons: no autograd, no calls of modules, no memory allocated in each step.

Half of a step of a small network is bookkeeping. The products, sums and losses here are those that autograd computes,
in the same order and on operands of the same shape and alignment, so that the weights are the same to the bit,
whichever way a step was taken (batched products of several networks are no alternative: they round differently for some
shapes). Several networks of one shape may take their steps together, which saves more time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.methods.learner import Learner
from orthocl.tangents.adapter import Adapter
from orthocl.tangents.adapter_layer import AdapterLayer, active_layer
from orthocl.training.quick_conditions import has_tensor_hooks, hook_tables, linear_layers

aten = torch.ops.aten
ALIGNMENT = 64  # bytes: torch aligns the start of tensors to this


class MLPStepper:
    """Plain SGD steps on the mean cross-entropy, of one multilayer perceptron or several of one shape.

    The learners' methods act on the gradients as they do around `optimizer.step()`, and the layers of a tangent adapter
    compute with it. `why_not_quick` says where this does not apply.

    Args:
        learners: inside their tasks.
        data: inputs and targets of each one's task.
    """

    def __init__(self, learners: Sequence[Learner], data: Sequence[tuple[Tensor, Tensor]]):
        self.learners = learners
        self.data = [(inputs.flatten(1), targets) for inputs, targets in data]
        self.nets = [[_Layer(layer) for layer in linear_layers(one.model) or ()] for one in learners]
        self._rooms: dict[int, _Room] = {}
        self._hooks = [table for learner in learners for table in hook_tables(learner.model)]
        self._parameters = [p for learner in learners for p in learner.model.parameters()]
        self._addresses = [p.data_ptr() for p in self._parameters]

    @torch.no_grad()
    def backward(self, index: Sequence[Tensor]) -> list[float]:
        """The gradients of each network on its own batch, all of the same size: their mean losses."""
        samples = len(index[0])
        room = self._rooms.get(samples) or self._rooms.setdefault(samples, _Room(self.nets, samples))
        for learner, (inputs, _), positions, x in zip(
            self.learners, self.data, index, room.values[0].each, strict=True
        ):
            torch.index_select(inputs, 0, positions, out=x)
            if learner.on_batch is not None:
                learner.on_batch(positions)
        self._forward(room)
        losses = []
        for (_, targets), positions, z, dz in zip(
            self.data, index, room.values[-1].each, room.derivatives[-1].each, strict=True
        ):
            losses.append(_loss(z, targets[positions], dz))
        self._backward(room)
        return torch.stack(losses).tolist()

    @torch.no_grad()
    def step(self) -> None:
        """The step of each network."""
        for learner, net in zip(self.learners, self.nets, strict=True):
            _move(learner, net)

    def unobserved(self) -> bool:
        """Whether there are still no hooks on the models, and the weights are still at the same addresses."""
        return (
            not any(self._hooks)
            and not has_tensor_hooks(self._parameters)
            and [p.data_ptr() for p in self._parameters] == self._addresses
        )

    def agrees(self, adapter_gradients: Sequence[Tensor]) -> bool:
        """Whether the gradients equal the parameters' `grad`, and those of the adapters equal these, to the bit."""
        pairs = [
            (mine, parameter.grad)
            for net in self.nets
            for layer in net
            for mine, parameter in ((layer.d_weight, layer.module.weight), (layer.d_bias, layer.module.bias))
        ]
        pairs += zip(self.adapter_gradients(), adapter_gradients, strict=True)
        return all(theirs is not None and torch.equal(mine, theirs) for mine, theirs in pairs)

    def adapter_gradients(self) -> list[Tensor]:
        """Copies of the gradients that the networks' tangent adapters have collected."""
        return [adapter.gradient.clone() for adapter in self._adapters()]

    def set_adapter_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Put those gradients back."""
        for adapter, gradient in zip(self._adapters(), gradients, strict=True):
            adapter.gradient.copy_(gradient)

    def _adapters(self) -> list[Adapter]:
        active = [active_layer(layer.module) for net in self.nets for layer in net]
        return list({id(one.adapter): one.adapter for one in active if one is not None}.values())

    def _forward(self, room: _Room) -> None:
        for number in range(len(self.nets[0])):
            outputs = room.values[number + 1]
            for net, x, z in zip(self.nets, room.values[number].each, outputs.each, strict=True):
                layer = net[number]
                torch.addmm(layer.bias, x, layer.weight_t, out=z)
                layer.adapter = active_layer(layer.module)
                if layer.adapter is not None:
                    kernel, scratch = room.kernel(layer.adapter)
                    layer.adapter.add_outputs(z, layer.adapter.kernel(x, out=kernel), scratch)
            if number < len(self.nets[0]) - 1:
                outputs.all.relu_()

    def _backward(self, room: _Room) -> None:
        for number in reversed(range(len(self.nets[0]))):
            inputs, d_inputs = room.values[number], room.derivatives[number]
            for place, net in enumerate(self.nets):
                layer, dz = net[number], room.derivatives[number + 1].each[place]
                dx = torch.mm(dz, layer.weight, out=d_inputs.each[place]) if number else None
                if layer.adapter is not None:
                    kernel, scratch = room.kernel(layer.adapter)
                    layer.adapter.add_gradients(dz, kernel, layer.adapter.adapter.alpha, dx, scratch)
                torch.mm(dz.t(), inputs.each[place], out=layer.d_weight)
                torch.sum(dz, 0, out=layer.d_bias)
            if number:
                aten.threshold_backward.grad_input(d_inputs.all, inputs.all, 0, grad_input=d_inputs.all)


class _Layer:
    """A linear layer, its gradients, and its adapter in this step."""

    def __init__(self, module: nn.Linear):
        self.module, self.adapter = module, active_layer(module)
        self.weight, self.bias = module.weight.detach(), module.bias.detach()
        self.weight_t = self.weight.t()
        self.d_weight, self.d_bias = torch.empty_like(self.weight), torch.empty_like(self.bias)


class _Stack:
    """One matrix for each network, in one tensor, each aligned like a separate tensor."""

    def __init__(self, like: Tensor, count: int, rows: int, columns: int):
        unit = ALIGNMENT // like.element_size()
        stride = -(-rows * columns // unit) * unit
        self.all = like.new_zeros(count, stride)
        self.each = [part[: rows * columns].view(rows, columns) for part in self.all]


class _Room:
    """Memory of a step with batches of one size: each layer's inputs, the last one's outputs, and their derivatives."""

    def __init__(self, nets: Sequence[Sequence[_Layer]], samples: int):
        like = nets[0][0].weight
        widths = [layer.weight.shape[1] for layer in nets[0]] + [nets[0][-1].weight.shape[0]]
        self.values = [_Stack(like, len(nets), samples, width) for width in widths]
        self.derivatives = [_Stack(like, len(nets), samples, width) for width in widths]
        self._kernels: dict[int, tuple[AdapterLayer, Tensor]] = {}
        self._scratch: dict[int, Tensor] = {}

    def kernel(self, layer: AdapterLayer) -> tuple[Tensor, Tensor]:
        """Memory for the kernel of an adapter's layer with the batch, and shared scratch memory of that shape."""
        if id(layer) not in self._kernels:
            shape = len(self.values[0].each[0]), len(layer.block.inputs)
            kernel = self.values[0].all.new_empty(shape)
            self._kernels[id(layer)] = layer, kernel
            self._scratch.setdefault(shape[1], torch.empty_like(kernel))
        kernel = self._kernels[id(layer)][1]
        return kernel, self._scratch[kernel.shape[1]]


def _loss(outputs: Tensor, targets: Tensor, gradient: Tensor) -> Tensor:
    """The mean cross-entropy of one network; its derivatives go into `gradient`."""
    logarithms = functional.log_softmax(outputs, -1)
    mean = (targets, None, 1, -100)  # no class weights, the mean, the label that is ignored
    loss: Tensor
    loss, weight = aten.nll_loss_forward(logarithms, *mean)
    by_logarithms = aten.nll_loss_backward(torch.ones_like(loss), logarithms, *mean, weight)
    aten._log_softmax_backward_data.out(by_logarithms, logarithms, -1, logarithms.dtype, out=gradient)
    return loss


def _move(learner: Learner, net: Sequence[_Layer]) -> None:
    """What `optimizer.step()` does with plain SGD and an attached method."""
    rate = learner.optimizer.param_groups[0]["lr"]
    for layer in net:
        layer.module.weight.grad, layer.module.bias.grad = layer.d_weight, layer.d_bias
    learner.note_weights()
    learner.use_gradient()
    for layer in net:
        for value, parameter in ((layer.weight, layer.module.weight), (layer.bias, layer.module.bias)):
            if parameter.grad is not None:
                value.add_(parameter.grad, alpha=-rate)
    learner.after_step()
