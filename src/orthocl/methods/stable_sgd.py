"""Stable SGD: the training regime as a continual-learning method.

Reference: Mirzadeh, Farajtabar, Pascanu, Ghasemzadeh. Understanding the Role of Training Regimes in Continual
Learning. NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from orthocl.errors import SettingsError, warn
from orthocl.methods.base import Method
from orthocl.methods.learner import Learner


@dataclass
class StableSGD(Method):
    """A learning rate that falls by a factor per task, dropout, and small batches: wide minima, small moves.

    Args:
        decay: gamma: task t trains at learning rate * gamma^(t-1).
        dropout: rate set on every dropout layer of the model; None leaves them as they are.
        batch_size: batch size for the training loop; None for the loop's own. In your own loop you choose the batches.
    """

    name: ClassVar[str] = "stable-sgd"
    first_task_is_sgd: ClassVar[bool] = False

    decay: float = 0.8
    dropout: float | None = 0.3
    batch_size: int | None = 10
    minimum: ClassVar[Mapping[str, float]] = {"decay": 1e-30, "dropout": 0, "batch_size": 1}
    maximum: ClassVar[Mapping[str, float]] = {"dropout": 1.0}
    rates: list[float] = field(default_factory=list, init=False, repr=False)

    def begin_task(self, learner: Learner) -> None:
        """Set this task's learning rate and the dropout rate, until the end of the task."""
        self.rates = [float(group["lr"]) for group in learner.optimizer.param_groups]
        self._apply(learner)

    def end_task(self, learner: Learner) -> None:
        """Nothing to remember: the rates belong to the task that just ended."""
        decay = self.decay**learner.tasks_done
        groups = learner.optimizer.param_groups
        if any(group["lr"] != rate * decay for group, rate in zip(groups, self.rates, strict=False)):
            warn(
                "something else, such as a scheduler, changed the learning rate during a task of stable-sgd, which "
                "sets it at the start of each task and puts it back at the end: leave the schedule to one of the two "
                "(decay=1.0 leaves it to yours within a task)",
            )
        self.rates = []

    def resume_task(self, learner: Learner) -> None:
        """Set the rates again."""
        self._apply(learner)

    def _apply(self, learner: Learner) -> None:
        for group, rate in zip(learner.optimizer.param_groups, self.rates, strict=True):
            learner.until_task_ends(group, "lr", rate * self.decay**learner.tasks_done, before=rate)
        if self.dropout is not None:
            for layer in _dropout_layers(learner.model):
                learner.until_task_ends(vars(layer), "p", self.dropout)

    def refusal(self, learner: Learner) -> str | None:
        """Dropout needs a dropout layer."""
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise SettingsError(f"dropout is a rate from 0 to below 1, got {self.dropout}")
        if self.dropout and not _dropout_layers(learner.model):
            return (
                f"stable-sgd asks for dropout {self.dropout}, but the model has no dropout layers: "
                "add nn.Dropout layers or set dropout=None"
            )
        return None


def _dropout_layers(model: nn.Module) -> list[nn.modules.dropout._DropoutNd]:
    return [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
