"""SGP: GPM that lets unimportant directions move a little.

Reference: Saha, Roy. Continual Learning with Scaled Gradient Projection. AAAI 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.methods.gpm import GPM
from orthocl.methods.layer_bases import Seen
from orthocl.methods.learner import Learner


@dataclass
class SGP(GPM):
    """GPM with a weight in [0, 1] on each direction of the basis: d <- d - d M Lambda M^T.

    A direction whose singular value in the task's inputs is s gets (alpha + 1) s / (alpha s + largest s); over tasks
    the weights of a direction add up, to 1 at most. Singular values of a task along existing directions are those of
    M^T R, row by row.

    The scaling is not a projection, so it acts on every step once, as the optimizer has made it.

    Args:
        memory_per_task: samples whose inputs are used when a task ends; they are not kept.
        threshold: share of the inputs' energy that the basis holds after each task.
        increase: added to the threshold for every further task, up to 1.
        alpha: the larger, the nearer to GPM.
    """

    name: ClassVar[str] = "sgp"
    soft: ClassVar[bool] = True

    alpha: float = 10.0
    minimum: ClassVar[Mapping[str, float]] = {**GPM.minimum, "alpha": 0.0}
    importance: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Weight -> Lambda, (groups, k)."""

    def protected(self, weight: str, displacement: Tensor) -> Tensor:
        """The part of a layer's step that is removed."""
        basis = self.inputs.bases[weight].to(displacement.dtype)
        return ((displacement @ basis) * self.importance[weight][:, None].to(displacement.dtype)) @ basis.mT

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """A new layer has no directions yet."""
        super().grow(learner, earlier)
        for weight, basis in self.inputs.bases.items():
            self.importance.setdefault(weight, basis.new_zeros(len(basis), basis.shape[2]))

    def remember(self, seen: Seen) -> None:
        """Extend a layer's basis, and add to the weights of its directions."""
        super().remember(seen)
        weight = seen.names[0]
        basis = self.inputs.bases[weight]
        if not basis.shape[2]:  # a threshold of 0 keeps no direction
            self.importance[weight] = basis.new_zeros(len(basis), 0)
            return
        values = torch.linalg.vector_norm(seen.inputs @ basis, dim=1)
        largest = values.max().clamp(min=torch.finfo(values.dtype).tiny)
        now = (self.alpha + 1) * values / (self.alpha * values + largest)
        before = self.importance.get(weight, now.new_zeros(len(now), 0)).to(now.dtype)
        padded = torch.nn.functional.pad(before, (0, now.shape[1] - before.shape[1]))
        self.importance[weight] = (padded + now).clamp(max=1.0)
