"""Means over samples of a function of the per-sample gradient, from which importances are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from orthocl.errors import DivergenceError
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered
from orthocl.nets.heads import use_head
from orthocl.nets.inputs import Batch, Inputs, Targets, each_tensor, sample_count, take
from orthocl.nets.modes import evaluating, quiet_vmap, without_autocast
from orthocl.nets.outputs import own_targets, read_outputs

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
        quantity: (outputs, targets) of a batch -> one number per sample; summed over named outputs.
        function: elementwise, such as `torch.square` or `torch.abs`.
        batch: gradients are averaged over this many samples before `function`.
    """
    model, parameters = learner.model, learner.parameters
    total = [torch.zeros_like(p) for p in parameters.values()]
    if not len(piece):
        return total
    with evaluating(model), without_autocast(), use_head(model, piece.head):
        if batch == 1:
            _add_samples(learner, piece, quantity, function, total)
        for start in range(0, len(piece), batch) if batch > 1 else ():
            rows = slice(start, start + batch)
            inputs, targets = take(piece.inputs, rows), take(piece.targets, rows)
            with torch.enable_grad():
                value = _values(quantity, _named(learner.read(inputs, targets)), targets).mean()
            for sum_, gradient in zip(total, gradient_of([value], parameters.values()), strict=True):
                sum_ += function(gradient) * (sample_count(inputs) / len(piece))
    if not all(bool(part.isfinite().all()) for part in total):
        raise DivergenceError(
            f"importances of {learner.method.name} are NaN or infinite: the network's outputs have become too large. "
            "Train with a smaller learning rate or a weaker penalty"
        )
    return total


def _named(outputs: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
    return {"": outputs} if isinstance(outputs, Tensor) else outputs


def _values(
    quantity: Callable[[Tensor, Tensor], Tensor], outputs: dict[str, Tensor], targets: Targets
) -> Tensor:
    terms = [quantity(part, own_targets(targets, name)) for name, part in outputs.items()]
    return reduce(torch.add, terms)


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


class _Outputs(nn.Module):
    """A learner's outputs as a module, so that its weights can be replaced in a call."""

    def __init__(self, learner: Learner):
        super().__init__()
        self.model, self.outputs = learner.model, learner.outputs

    def forward(self, inputs: Inputs, targets: Targets) -> dict[str, Tensor]:
        return _named(read_outputs(self.model, inputs, targets, self.outputs))


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
        found = _named(learner.read(piece.inputs, piece.targets))
        outputs = {name: part.detach().requires_grad_() for name, part in found.items()}
        value = _values(quantity, outputs, piece.targets).sum()
        gradients = torch.autograd.grad(value, list(outputs.values()))
    cotangents = dict(zip(outputs, gradients, strict=True))
    module = _Outputs(learner)

    def one(
        values: dict[str, Tensor], inputs: Inputs, targets: Targets, cotangent: dict[str, Tensor]
    ) -> Tensor:
        named = {f"model.{name}": value for name, value in values.items()}
        outputs = functional_call(module, named, (_batch(inputs), _batch(targets)))
        return _product(outputs, cotangent)

    per_sample = vmap(grad(one), in_dims=(None, 0, 0, 0))
    chunk = max(1, CHUNK_ELEMENTS // max(1, sum(p.numel() for p in parameters.values())))
    for start in range(0, len(piece), chunk):
        rows = slice(start, start + chunk)
        batch = take(piece.inputs, rows), take(piece.targets, rows), take(cotangents, rows)
        try:
            with torch.no_grad(), quiet_vmap():
                moved = list(per_sample(parameters, *batch).values())
            believed = all(g.shape[1:] == sum_.shape for g, sum_ in zip(moved, total, strict=True))
        except (RuntimeError, NotImplementedError):
            believed = False
        # A model that cannot be vectorised (recurrent layers, control flow that depends on the data, its own
        # randomness, sparse gradients) is differentiated one sample at a time.
        samples = range(sample_count(batch[0]))
        found_rows = [moved] if believed else (_one(learner, *batch, number) for number in samples)
        for row in found_rows:
            for sum_, gradient in zip(total, row, strict=True):
                sum_ += function(gradient).sum(0) / len(piece)


@torch.enable_grad()
def _one(
    learner: Learner, inputs: Inputs, targets: Targets, cotangents: dict[str, Tensor], number: int
) -> list[Tensor]:
    one = slice(number, number + 1)
    value = _product(_named(learner.read(take(inputs, one), take(targets, one))), take(cotangents, number))
    return [gradient[None] for gradient in gradient_of([value], learner.parameters.values())]


def _product(outputs: dict[str, Tensor], cotangent: dict[str, Tensor]) -> Tensor:
    """The sum of the products of one sample's outputs and their cotangents."""
    return reduce(torch.add, [(outputs[name][0] * part).sum() for name, part in cotangent.items()])


def _batch(sample: Batch) -> Batch:
    return each_tensor(sample, lambda part: part[None])
