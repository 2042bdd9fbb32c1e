"""Synaptic Intelligence.

Reference: Zenke, Poole, Ganguli. Continual Learning Through Synaptic Intelligence. ICML 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.methods.base import Gradient, Method, later, no_complex_weights
from orthocl.methods.growing import grown_centre, grown_list
from orthocl.methods.learner import Learner
from orthocl.methods.quadratic import importances_are_old, quadratic_penalty


@dataclass
class SI(Method):
    """Penalty strength * sum_i Omega_i (w_i - w*_i)^2, Omega from each weight's share in lowering the loss.

    Along a task, omega_i sums -g_i * (step)_i, with g the gradient of the task's loss without the penalty. At its
    end Omega_i += omega_i / ((w_i - w*_i)^2 + damping), with negative omega_i set to zero unless `clip` is false.

    Args:
        strength: c, the weight of the penalty.
        damping: xi, which keeps the quotient finite where a weight has hardly moved.
        clip: whether weights whose path raised the loss count as unimportant. If not, their importance is negative and
            the penalty pushes them away from where they were.
    """

    name: ClassVar[str] = "si"

    strength: float = 1.0
    damping: float = 0.1
    clip: bool = later(True)
    minimum: ClassVar[Mapping[str, float]] = {"strength": 0, "damping": 1e-30}
    importance: list[Tensor] = field(default_factory=list, init=False, repr=False)
    centre: list[Tensor] = field(default_factory=list, init=False, repr=False)
    path: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def refusal(self, learner: Learner) -> str | None:
        """Refuse complex weights."""
        return no_complex_weights(learner)

    def begin_task(self, learner: Learner) -> None:
        """Start a new path at the current weights."""
        self.path = [torch.zeros_like(p) for p in learner.parameters.values()]
        if not self.importance:
            self.importance = [torch.zeros_like(p) for p in learner.parameters.values()]
        self.centre = [p.detach().clone() for p in learner.parameters.values()]

    def penalty(self, learner: Learner) -> Tensor | None:
        """The quadratic around the weights of the last finished task."""
        if learner.tasks_done == 0:
            return None
        return quadratic_penalty(
            list(learner.parameters.values()), self.importance, self.centre, self.strength
        )

    def after_step(self, learner: Learner, gradient: Gradient, step: Gradient) -> None:
        """Add this step's share of the path integral."""
        loss_gradient = list(gradient)
        if learner.tasks_done > 0:  # subtract the penalty's own gradient, at the weights before the step
            before = torch._foreach_sub(list(learner.parameters.values()), list(step))
            pull = torch._foreach_mul(torch._foreach_sub(before, self.centre), self.importance)
            loss_gradient = list(torch._foreach_add(loss_gradient, pull, alpha=-2 * self.strength))
        torch._foreach_addcmul_(self.path, loss_gradient, list(step), value=-1.0)

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """New weights have no importance for earlier tasks."""
        self.importance = grown_list(self.importance, learner.parameters, earlier)
        self.centre = grown_centre(self.centre, learner.parameters, earlier)

    def weights_changed(self, learner: Learner) -> str | None:
        """The path is over: what it says of each weight stays."""
        return importances_are_old(self.name) if self.importance else None

    def end_task(self, learner: Learner) -> None:
        """Turn the path into importances."""
        for importance, path, parameter, start in zip(
            self.importance, self.path, learner.parameters.values(), self.centre, strict=True
        ):
            share = path.clamp(min=0) if self.clip else path
            importance += share / ((parameter.detach() - start).square() + self.damping)
