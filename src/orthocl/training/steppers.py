"""Steppers: how the training loop takes a step of each learner.

`AutogradStepper` takes the step that one would write by hand, which is always right. `VerifiedStepper` takes the quick
steps of `mlp_steps` where nothing can see the difference, after checking that they agree with autograd to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from orthocl.errors import warn
from orthocl.methods.learner import Learner
from orthocl.training.mlp_steps import MLPStepper
from orthocl.training.quick_conditions import why_not_quick

Data = tuple[Tensor, Tensor]  # all inputs and targets of a task


class Stepper(Protocol):
    """Takes steps of one or several learners, all inside their tasks, each on its own batch."""

    def backward(self, index: Sequence[Tensor]) -> list[float]:
        """Compute the gradients at the samples of these positions, one batch for each learner: their losses."""

    def step(self) -> None:
        """Let each learner's optimizer and method use the gradients."""


class AutogradStepper:
    """The plain step: forward, penalty, backward, `optimizer.step()`.

    Args:
        learners: inside their tasks.
        data: inputs and targets of each one's task.
    """

    def __init__(self, learners: Sequence[Learner], data: Sequence[Data]):
        self.learners, self.data = learners, data

    def backward(self, index: Sequence[Tensor]) -> list[float]:
        """Compute the gradients of loss and penalty."""
        losses = []
        for learner, (inputs, targets), positions in zip(self.learners, self.data, index, strict=True):
            if learner.on_batch is not None:
                learner.on_batch(positions)
            learner.optimizer.zero_grad()
            loss = learner.loss(learner.model(inputs[positions]), targets[positions])
            penalty = learner.penalty_or_none()
            if penalty is not None:
                loss = loss + penalty
            loss.backward()
            losses.append(loss.item())
        return losses

    def step(self) -> None:
        """The step, with the method's hooks around it."""
        for learner in self.learners:
            learner.optimizer.step()


class VerifiedStepper:
    """Quick steps that are compared with autograd before they are trusted, and abandoned if they differ.

    Args:
        plain: the steps that are always right.
        quick: the steps to take instead.
        on_difference: called if the first step differs.
    """

    def __init__(self, plain: AutogradStepper, quick: MLPStepper, on_difference: Callable[[], None]):
        self.plain, self.quick, self.on_difference = plain, quick, on_difference
        self.chosen: Stepper | None = None

    def backward(self, index: Sequence[Tensor]) -> list[float]:
        """Compute the gradients, the first time both ways."""
        if self.chosen is None:
            return self._compare(index)
        if self.chosen is self.quick and not self.quick.unobserved():
            self.chosen = self.plain
        return self.chosen.backward(index)

    def step(self) -> None:
        """The step that belongs to the gradients."""
        (self.chosen or self.plain).step()

    def _compare(self, index: Sequence[Tensor]) -> list[float]:
        before = self.quick.adapter_gradients()
        losses = self.plain.backward(index)
        if not all(map(math.isfinite, losses)):
            return losses  # the loop will stop here: nothing can be compared
        expected = self.quick.adapter_gradients()
        self.quick.set_adapter_gradients(before)
        self.chosen = self.quick
        if self.quick.backward(index) != losses or not self.quick.agrees(expected):
            self.quick.set_adapter_gradients(expected)
            self.chosen = self.plain
            self.on_difference()
        return losses


class StepperChoice:
    """Which stepper to use: quick steps where they are allowed, until they differ from autograd once.

    Args:
        quick: whether quick steps may be used at all.
    """

    def __init__(self, quick: bool = True):
        self.quick = quick

    def stepper(self, learners: Sequence[Learner], data: Sequence[Data]) -> Stepper:
        """The stepper of a task that was started or resumed."""
        plain = AutogradStepper(learners, data)
        if not self.quick or any(
            why_not_quick(learner, *samples) for learner, samples in zip(learners, data, strict=True)
        ):
            return plain
        return VerifiedStepper(plain, MLPStepper(learners, data), self._differed)

    def _differed(self) -> None:
        self.quick = False
        warn(
            "the quick steps of multilayer perceptrons differ from autograd's on this machine or with this version of "
            "torch: plain steps are taken instead, which are right but slower",
        )
