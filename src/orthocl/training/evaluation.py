"""Accuracy of a model on tasks: over samples, in eval mode, each task with its own head."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from orthocl.errors import DivergenceError
from orthocl.nets.heads import use_head
from orthocl.nets.modes import evaluating
from orthocl.streams.base import Split, Task
from orthocl.tangents.adapter import complete_weights

CHUNK = 1000


@torch.no_grad()
def predict(model: nn.Module, split: Split, head: str, index: Tensor | None = None) -> Tensor:
    """Outputs for the samples of a split (or some of them), in eval mode; the earlier mode is restored."""
    positions = torch.arange(len(split)) if index is None else index
    parameter = next(model.parameters(), None)
    batches = []
    with evaluating(model), use_head(model, head):
        for chunk in positions.split(CHUNK):
            inputs = split.inputs(chunk)
            if parameter is not None and inputs.is_floating_point():
                inputs = inputs.to(parameter.device, parameter.dtype)
            batches.append(model(inputs))
    return torch.cat(batches)


def accuracy(model: nn.Module, task: Task, split: Split, index: Tensor | None = None) -> float:
    """Share of samples classified correctly; for regression, the R^2 score.

    Raises:
        DivergenceError: outputs that are not numbers, of which `argmax` would still name a class.
    """
    outputs = predict(model, split, task.head, index)
    # A logit of -inf is a class ruled out; a largest one of that, of +inf or of NaN is no answer.
    if not bool((outputs.amax(-1) if task.kind == "classification" else outputs).isfinite().all()):
        raise DivergenceError(
            f"the outputs on task {task.name!r} are infinite or not numbers, so there is no accuracy: check the "
            "samples and the weights (a model that has diverged needs a lower learning rate)"
        )
    targets = (split.targets if index is None else split.targets[index]).to(outputs.device)
    if task.kind == "classification":
        return float((outputs.argmax(-1) == targets).sum()) / len(targets)
    targets = targets.view_as(outputs).to(outputs.dtype)
    spread = (targets - targets.mean(0)).square().sum()
    return float(1 - (outputs - targets).square().sum() / spread) if float(spread) > 0 else float("nan")


def evaluate(model: nn.Module, tasks: Iterable[Task]) -> list[float]:
    """Test accuracy on every task.

    Raises:
        DivergenceError: outputs that are not finite numbers.
    """
    with complete_weights(model):
        return [accuracy(model, task, task.test) for task in tasks]
