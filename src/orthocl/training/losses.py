"""Losses by name, module or file: functions of outputs and targets of a batch that return their mean loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from orthocl.errors import SettingsError, UnsupportedError
from orthocl.methods.learner import Loss
from orthocl.nets.inputs import described
from orthocl.nets.outputs import plain_output
from orthocl.registry import Registry


def default_loss(outputs: Any, targets: Any) -> Tensor:
    """Cross-entropy for integer targets, mean squared error for others."""
    try:
        outputs = plain_output(outputs)
    except UnsupportedError:
        raise UnsupportedError(
            f"expected one tensor of outputs, got {described(outputs)}: pass attach a loss=... that can handle it"
        ) from None
    if targets.is_floating_point():
        return mean_squared_error(outputs, targets)
    if outputs.dim() > 2 and outputs.shape[:-1] == targets.shape:  # sequences: (samples, positions, classes)
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    return nn.functional.cross_entropy(outputs, targets)


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error; to one-hot labels, where targets are classes."""
    if not targets.is_floating_point():
        targets = nn.functional.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)
    return nn.functional.mse_loss(outputs, targets.view_as(outputs))


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error, for regression."""
    return nn.functional.l1_loss(outputs, targets.view_as(outputs))


def _loss(value: Any, spec: str) -> Loss:
    if isinstance(value, type) or not callable(value):
        raise SettingsError(
            f"{spec} is not a function of (outputs, targets) that returns the mean loss of a batch"
        )
    loss: Loss = value
    return loss


LOSSES: Registry[Loss] = Registry(
    "loss",
    {
        "auto": default_loss,
        "cross-entropy": nn.functional.cross_entropy,
        "squared": mean_squared_error,
        "absolute": mean_absolute_error,
    },
    _loss,
)
