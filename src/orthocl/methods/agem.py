"""A-GEM: do not step against the average gradient of remembered samples.

Reference: Chaudhry, Ranzato, Rohrbach, Elhoseiny. Efficient Lifelong Learning with A-GEM. ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.methods.base import Gradient, Method, dot, no_complex_weights
from orthocl.methods.importance import gradient_of
from orthocl.methods.learner import Learner
from orthocl.methods.memory import SampleMemory


@dataclass
class AGEM(Method):
    """If the gradient g disagrees with the gradient r of old samples (g.r < 0), take g - (g.r / r.r) r instead.

    Paper: baselines of section 7; appendix A.1, where agreement counts as transfer.

    Args:
        memory_per_task: samples kept per task.
        reference_batch: samples drawn from the memory at every step for r.
        tolerance: r is ignored when its norm is below this share of g's: its direction is rounding noise.
    """

    name: ClassVar[str] = "a-gem"
    transfer: ClassVar[bool] = True
    """Whether a step that agrees with the old samples is taken unchanged."""

    memory_per_task: int = 100
    reference_batch: int = 256
    tolerance: float = 1e-7
    minimum: ClassVar[Mapping[str, float]] = {"memory_per_task": 0, "reference_batch": 1, "tolerance": 0}
    memory: SampleMemory = field(default_factory=SampleMemory, init=False, repr=False)

    def refusal(self, learner: Learner) -> str | None:
        """Refuse complex weights."""
        return no_complex_weights(learner)

    def transform(self, learner: Learner, gradient: Gradient) -> Gradient:
        """The nearest gradient that does not raise the loss of the reference batch, to first order."""
        if len(self.memory) == 0:
            return gradient
        reference = self.reference_gradient(learner)
        product, size = float(dot(gradient, reference)), float(dot(reference, reference))
        if (self.transfer and product >= 0) or size <= self.tolerance**2 * float(dot(gradient, gradient)):
            return gradient
        return torch._foreach_add(list(gradient), list(reference), alpha=-product / size)

    def reference_gradient(self, learner: Learner) -> list[Tensor]:
        """Gradient of the mean loss of a batch drawn from the memory of all earlier tasks, each with its head."""
        with torch.enable_grad():
            losses = self.memory.losses(learner, self.reference_batch)
        return gradient_of(losses, learner.parameters.values())

    def end_task(self, learner: Learner) -> None:
        """Keep samples of the task."""
        self.memory.add(learner, self.memory_per_task)


@dataclass
class AGEMNT(AGEM):
    """A-GEM without transfer: the component along the reference gradient is always removed.

    Paper: appendix A.1 and Proposition 1: OGD implies its condition.
    """

    name: ClassVar[str] = "a-gem-nt"
    transfer: ClassVar[bool] = False
