"""Means over samples of a function of the per-sample gradient: what importances are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered
from orthocl.nets.heads import use_head

CHUNK_ELEMENTS = 2**24  # per-sample gradients held at once: 64 MB in float32


def mean_of_gradients(
    learner: Learner,
    piece: Remembered,
    quantity: Callable[[Tensor, Tensor], Tensor],
    function: Callable[[Tensor], Tensor],
    batch: int = 1,
) -> list[Tensor]:
    """The mean of function(gradient of quantity) for each protected parameter, the model in eval mode.

    Args:
        learner: the learner.
        piece: the samples.
        quantity: (outputs, targets) of a batch -> one number per sample.
        function: elementwise, such as `torch.square` or `torch.abs`.
        batch: gradients are averaged over this many samples before `function`.
    """
    model, parameters = learner.model, learner.parameters
    total = [torch.zeros_like(p) for p in parameters.values()]
    if not len(piece):
        return total
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with use_head(model, piece.head):
            if batch == 1:
                _add_samples(learner, piece, quantity, function, total)
            else:
                for inputs, targets in zip(
                    piece.inputs.split(batch), piece.targets.split(batch), strict=True
                ):
                    value = quantity(model(inputs), targets).mean()
                    found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
                    for sum_, gradient in zip(total, found, strict=True):
                        if gradient is not None:
                            sum_ += function(gradient) * (len(inputs) / len(piece))
    finally:
        for module, training in was_training:
            module.training = training
    return total


def _add_samples(
    learner: Learner,
    piece: Remembered,
    quantity: Callable[[Tensor, Tensor], Tensor],
    function: Callable[[Tensor], Tensor],
    total: list[Tensor],
) -> None:
    parameters = {name: p.detach() for name, p in learner.parameters.items()}
    # Random draws (a sampled class) are made once on the whole batch, outside of vmap: the gradient of
    # quantity(outputs) is the vector-Jacobian product with d quantity / d outputs.
    with torch.enable_grad():
        outputs = learner.model(piece.inputs).detach().requires_grad_()
        (cotangents,) = torch.autograd.grad(quantity(outputs, piece.targets).sum(), outputs)

    def one(values: dict[str, Tensor], inputs: Tensor, cotangent: Tensor) -> Tensor:
        outputs: Tensor = functional_call(learner.model, values, (inputs[None],))
        return (outputs[0] * cotangent).sum()

    per_sample = vmap(grad(one), in_dims=(None, 0, 0))
    chunk = max(1, CHUNK_ELEMENTS // max(1, sum(p.numel() for p in parameters.values())))
    with torch.no_grad():
        for inputs, cotangent in zip(piece.inputs.split(chunk), cotangents.split(chunk), strict=True):
            for sum_, gradient in zip(total, per_sample(parameters, inputs, cotangent).values(), strict=True):
                sum_ += function(gradient).sum(0) / len(piece)
