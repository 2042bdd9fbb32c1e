"""GPM: step only in directions that no old input can see.

Reference: Saha, Garg, Roy. Gradient Projection Memory for Continual Learning. ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from orthocl.methods.base import later
from orthocl.methods.layer_bases import Seen
from orthocl.methods.layer_projection import LayerProjection
from orthocl.methods.learner import Learner


@dataclass
class GPM(LayerProjection):
    """Project each layer's step away from the span of the inputs that the layer has seen: d <- d - d M M^T.

    With R = [a_1 ... a_n] the inputs of a layer on remembered samples, M is extended at the end of a task by the
    leading left singular vectors of R - M M^T R until |M M^T R|^2 >= threshold |R|^2. With threshold 1
    every output of the layer on a remembered input then stays the same, to all orders, not only the remembered outputs;
    below 1 the part of the inputs outside M lets it move.

    Biases are counted as the weight of a further input of 1. Parameters that belong to no such layer (norm layers,
    embeddings) are held fixed after the first task, as in the authors' code.

    Args:
        memory_per_task: samples whose inputs are used when a task ends; they are not kept.
        threshold: share of the inputs' energy that the basis holds after the first task.
        increase: added to the threshold for every further task, up to 1; the paper takes 0.003 on CIFAR-100.
    """

    name: ClassVar[str] = "gpm"

    threshold: float = 0.97
    increase: float = later(0.0)
    minimum: ClassVar[Mapping[str, float]] = {**LayerProjection.minimum, "threshold": 0.0, "increase": 0.0}
    maximum: ClassVar[Mapping[str, float]] = {"threshold": 1.0, "increase": 1.0}
    learnt: int = field(default=0, init=False, repr=False)
    """Tasks so far."""

    @property
    def share(self) -> float:
        """Of the inputs' energy, what the basis must hold after the current task."""
        return min(1.0, self.threshold + self.increase * self.learnt)

    def end_task(self, learner: Learner) -> None:
        """Extend the bases by what the task's inputs add."""
        super().end_task(learner)
        self.learnt += 1

    def remember(self, seen: Seen) -> None:
        """Extend the basis of one layer."""
        self.inputs.grow(seen.names, seen.inputs, self.share)
