"""Joint training on all data so far: what a method without forgetting could reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from orthocl.methods.base import Gradient
from orthocl.methods.er import ER
from orthocl.methods.learner import Learner
from orthocl.nets.inputs import Targets


@dataclass
class Joint(ER):
    """Keep every sample, and step along the mean gradient of all tasks so far: the upper reference, not a method.

    In task t the loss is L(new) + (t - 1) L(old), with L(old) the mean loss of a batch from all earlier tasks, and the
    gradient is divided by t.

    Args:
        memory_per_task: samples kept per task, by default all.
        replay_batch: samples of earlier tasks at every step.
        strength: weight of the earlier tasks; 1.0 counts all tasks equally.
    """

    name: ClassVar[str] = "joint"

    memory_per_task: int = 10**9
    replay_batch: int = 128
    minimum: ClassVar[Mapping[str, float]] = {**ER.minimum}

    @property
    def earlier(self) -> float:
        """Weight of all earlier tasks together."""
        return self.strength * sum(1 for piece in self.memory if len(piece))

    def replayed(self, learner: Learner, task: int, rows: Tensor, outputs: Any, targets: Targets) -> Tensor:
        """The loss of earlier samples, as many times as there are earlier tasks."""
        return self.earlier * learner.loss(outputs, targets)

    def transform(self, learner: Learner, gradient: Gradient) -> Gradient:
        """The mean over tasks instead of the sum."""
        if not len(self.memory):
            return gradient
        return torch._foreach_mul(list(gradient), 1 / (1 + self.earlier))
