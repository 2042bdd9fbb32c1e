"""What the checks of the conformance suite say: requirements, and the error of a method that breaks one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from orthocl.methods.base import Method
from orthocl.methods.learner import Learner
from orthocl.testing.tiny_problem import weights

Maker = Callable[..., Method]
"""Builds the method to check, with small memories unless hyperparameters say otherwise."""


class NonConformingError(Exception):
    """A method does not do what every method must do."""


def require(condition: bool, message: str) -> None:
    """Raise unless the condition holds."""
    if not condition:
        raise NonConformingError(message)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def finite(learner: Learner) -> None:
    """Raise unless all weights are finite."""
    bad = [name for name, value in weights(learner.model).items() if not torch.isfinite(value).all()]
    require(not bad, f"weights are not finite after training: {bad}")
