"""Ending: the end of a fit's task, which is repeated if other weights are loaded before the next fit.

Early stopping with the best epoch and averages of weights often replace the weights when the fit is over. What was
remembered then belongs to weights that nobody uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from orthocl.errors import warn
from orthocl.methods.adapter_ogd import AdapterOGD
from orthocl.methods.halfway import Halfway
from orthocl.methods.learner import Learner
from orthocl.streams.base import Task


@dataclass(frozen=True)
class Ending:
    """What is needed to end a task once more. The memory before it shares its tensors with the present one.

    Args:
        task: the task, with its data.
        started_from: what it could change, where it began.
        memory: state of the method before it remembered the task.
        random: state of its generator then: the same samples are drawn again.
        weights: the protected weights when the task had ended.
    """

    task: Task
    started_from: Mapping[str, Tensor]
    memory: dict[str, Any]
    random: Tensor
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def before(cls, learner: Learner) -> Ending:
        """Just before the task ends."""
        learner.merge()
        return cls(
            learner.current_task,
            learner.started_from,
            learner.method.snapshot(),
            learner.generator.get_state(),
        )

    def after(self, learner: Learner) -> Ending:
        """When the task has ended."""
        weights = {name: parameter.detach().clone() for name, parameter in learner.parameters.items()}
        return Ending(self.task, self.started_from, self.memory, self.random, weights)

    def again(self, learner: Learner) -> Ending:
        """End the task at the weights of now, if they are not those at which it ended."""
        now = learner.parameters
        if not moved(learner, self.weights):
            return self
        warn(
            f"the weights were changed after the fit of {self.task.name} (the best epoch was loaded, or an average): "
            "what is remembered of it is taken again, at the weights of now"
        )
        learner.method.load_state_dict(self.memory, learner)
        learner.generator.set_state(self.random)
        learner.tasks_done = self.task.number - 1
        learner.halfway, learner.guard.left = Halfway.of(self.started_from, now.values()), []
        with learner.learning(self.task, resumed=True):
            ending = Ending.before(learner)
        return ending.after(learner)


def moved(learner: Learner, weights: Mapping[str, Tensor]) -> bool:
    """Whether the protected weights are others than these, in the same model."""
    now = learner.parameters
    if any(name not in weights or weights[name].shape != value.shape for name, value in now.items()):
        return False
    if isinstance(learner.method, AdapterOGD):
        return False  # an adapter is meant to be replaced by a fresh one: this memory does not depend on it
    return not all(
        torch.equal(value.detach().to(weights[name]), weights[name]) for name, value in now.items()
    )
