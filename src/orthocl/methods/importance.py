"""Means over samples of a function of the per-sample gradient, from which importances are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from orthocl.errors import UnsupportedError
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered
from orthocl.nets.heads import use_head
from orthocl.nets.modes import evaluating

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
    with evaluating(model), use_head(model, piece.head):
        if batch == 1:
            _add_samples(learner, piece, quantity, function, total)
            return total
        for inputs, targets in zip(piece.inputs.split(batch), piece.targets.split(batch), strict=True):
            with torch.enable_grad():
                value = quantity(_outputs(model, inputs), targets).mean()
            for sum_, gradient in zip(total, gradient_of([value], parameters.values()), strict=True):
                sum_ += function(gradient) * (len(inputs) / len(piece))
    return total


def gradient_of(values: Sequence[Tensor], parameters: Iterable[Tensor]) -> list[Tensor]:
    """Gradient of the sum of some numbers: dense, and zero for parameters that are frozen or unused."""
    every = list(parameters)
    trained = [p for p in every if p.requires_grad]
    found = iter(torch.autograd.grad(list(values), trained, allow_unused=True) if trained else ())
    gradient = [next(found) if p.requires_grad else None for p in every]
    return [
        torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
        for p, g in zip(every, gradient, strict=True)
    ]


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    outputs = model(inputs)
    if not isinstance(outputs, Tensor):
        raise UnsupportedError(
            f"expected the model to return one tensor (samples, outputs), got a {type(outputs).__name__}: attach to a "
            "module that returns only the outputs to protect"
        )
    return outputs


def _add_samples(
    learner: Learner,
    piece: Remembered,
    quantity: Callable[[Tensor, Tensor], Tensor],
    function: Callable[[Tensor], Tensor],
    total: list[Tensor],
) -> None:
    parameters = {name: p.detach() for name, p in learner.parameters.items()}
    # Random draws (a sampled class) are made once on the whole batch, outside vmap: the gradient of
    # quantity(outputs) is the vector-Jacobian product with d quantity / d outputs.
    with torch.enable_grad():
        outputs = _outputs(learner.model, piece.inputs).detach().requires_grad_()
        (cotangents,) = torch.autograd.grad(quantity(outputs, piece.targets).sum(), outputs)

    def one(values: dict[str, Tensor], inputs: Tensor, cotangent: Tensor) -> Tensor:
        outputs: Tensor = functional_call(learner.model, values, (inputs[None],))
        return (outputs[0] * cotangent).sum()

    per_sample = vmap(grad(one), in_dims=(None, 0, 0))
    chunk = max(1, CHUNK_ELEMENTS // max(1, sum(p.numel() for p in parameters.values())))
    for inputs, cotangent in zip(piece.inputs.split(chunk), cotangents.split(chunk), strict=True):
        try:
            with torch.no_grad():
                found = list(per_sample(parameters, inputs, cotangent).values())
            believed = all(g.shape[1:] == sum_.shape for g, sum_ in zip(found, total, strict=True))
        except (RuntimeError, NotImplementedError):
            believed = False
        # A model that cannot be vectorised (recurrent layers, control flow that depends on the data, its own
        # randomness, sparse gradients) is differentiated one sample at a time.
        rows = [found] if believed else (_one(learner, *pair) for pair in zip(inputs, cotangent, strict=True))
        for row in rows:
            for sum_, gradient in zip(total, row, strict=True):
                sum_ += function(gradient).sum(0) / len(piece)


@torch.enable_grad()
def _one(learner: Learner, inputs: Tensor, cotangent: Tensor) -> list[Tensor]:
    value = (learner.model(inputs[None])[0] * cotangent).sum()
    return [gradient[None] for gradient in gradient_of([value], learner.parameters.values())]
