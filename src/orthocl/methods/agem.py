"""A-GEM: do not step against the average gradient of remembered samples.

Reference: Chaudhry, Ranzato, Rohrbach, Elhoseiny. Efficient Lifelong Learning with A-GEM. ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from orthocl.methods.base import Gradient, Method, dot
from orthocl.methods.importance import gradient_of
from orthocl.methods.learner import Learner
from orthocl.methods.memory import SampleMemory
from orthocl.nets.heads import use_head


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
    """Whether a step that agrees with the old samples is taken as it is."""

    memory_per_task: int = 100
    reference_batch: int = 256
    tolerance: float = 1e-7
    minimum: ClassVar[Mapping[str, float]] = {"memory_per_task": 0, "reference_batch": 1, "tolerance": 0}
    memory: SampleMemory = field(default_factory=SampleMemory, init=False, repr=False)

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
        size = len(self.memory)
        count = min(self.reference_batch, size)
        chosen = torch.randperm(size, generator=learner.generator)[:count]
        losses: list[Tensor] = []
        start = 0
        with torch.enable_grad(), fixed_batch_statistics(learner.model):
            for head, inputs, targets in self.memory.by_head():
                rows = chosen if len(targets) == size else _within(chosen, start, len(targets))
                start += len(targets)
                if len(rows):
                    with use_head(learner.model, head):
                        loss = learner.loss(learner.model(inputs[rows]), targets[rows])
                    losses.append(loss * (len(rows) / count))
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


def _within(chosen: Tensor, start: int, count: int) -> Tensor:
    return chosen[(chosen >= start) & (chosen < start + count)] - start


@contextmanager
def fixed_batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let no pass inside move the running statistics: they belong to the current task."""
    tracking = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for module in tracking:
        module.track_running_stats = False
    try:
        yield
    finally:
        for module in tracking:
            module.track_running_stats = True
