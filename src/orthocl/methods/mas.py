"""Memory Aware Synapses.

Reference: Aljundi, Babiloni, Elhoseiny, Rohrbach, Tuytelaars. Memory Aware Synapses. ECCV 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.methods.base import Method, no_complex_weights
from orthocl.methods.growing import grown_centre, grown_list
from orthocl.methods.importance import mean_of_gradients
from orthocl.methods.learner import Learner
from orthocl.methods.memory import draw
from orthocl.methods.quadratic import importances_are_old, quadratic_penalty


@dataclass
class MAS(Method):
    """Penalty strength * sum_i Omega_i (w_i - w*_i)^2 with Omega the mean |d ||f(x)||^2 / d w_i| over samples.

    Omega accumulates over tasks, w* are the weights at the end of the latest one: the online form.

    Args:
        strength: lambda, the weight of the penalty.
        importance_samples: training samples used for the estimate; None for all.
        importance_batch: gradients are averaged over this many samples before the absolute value; 1 is the definition.
    """

    name: ClassVar[str] = "mas"

    strength: float = 1.0
    importance_samples: int | None = 1024
    importance_batch: int = 1
    minimum: ClassVar[Mapping[str, float]] = {"strength": 0, "importance_samples": 0, "importance_batch": 1}
    importance: list[Tensor] = field(default_factory=list, init=False, repr=False)
    centre: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def refusal(self, learner: Learner) -> str | None:
        """Refuse complex weights."""
        return no_complex_weights(learner)

    def penalty(self, learner: Learner) -> Tensor | None:
        """The quadratic around the weights of the last finished task."""
        if not self.importance:
            return None
        return quadratic_penalty(
            list(learner.parameters.values()), self.importance, self.centre, self.strength
        )

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """New weights have no importance for earlier tasks."""
        self.importance = grown_list(self.importance, learner.parameters, earlier)
        self.centre = grown_centre(self.centre, learner.parameters, earlier)

    def weights_changed(self, learner: Learner) -> str | None:
        """The samples are not kept: the sensitivities stay those of the earlier weights."""
        return importances_are_old(self.name) if self.importance else None

    def end_task(self, learner: Learner) -> None:
        """Add the sensitivity of the outputs to each weight."""
        count = (
            len(learner.current_task.train) if self.importance_samples is None else self.importance_samples
        )
        piece = draw(learner, count)
        new = mean_of_gradients(
            learner,
            piece,
            lambda outputs, _: outputs.square().reshape(len(outputs), -1).sum(1),
            torch.abs,
            self.importance_batch,
        )
        self.importance = (
            [a + b for a, b in zip(self.importance, new, strict=True)] if self.importance else new
        )
        self.centre = [p.detach().clone() for p in learner.parameters.values()]
