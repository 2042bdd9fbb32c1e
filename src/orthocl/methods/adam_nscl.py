"""Adam-NSCL: step in the null space of the old inputs' covariance.

Reference: Wang, Li, Sun, Xu. Training Networks in Null Space of Feature Covariance for Continual Learning. CVPR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.methods.layer_bases import Seen
from orthocl.methods.layer_projection import LayerProjection

# Eigenvalues below this share of the largest are rounding: the smallest one counts as no smaller.
ROUNDING = 1e-10


@dataclass
class AdamNSCL(LayerProjection):
    """Project the finished update onto the directions that old inputs hardly use: dW <- dW U2 U2^T.

    X = (1 / n) sum a a^T, the uncentred covariance of a layer's inputs over all tasks so far, is updated when a task
    ends; U2 are its eigenvectors with eigenvalues of at most `ratio` times the smallest one.

    The authors divide U2 U2^T by its Frobenius norm, which scales the learning rate; that is the optimizer's job here.

    Args:
        memory_per_task: samples whose inputs are used when a task ends; they are not kept.
        ratio: of an eigenvalue to the smallest one, up to which its direction is free.
    """

    name: ClassVar[str] = "adam-nscl"

    ratio: float = 10.0
    minimum: ClassVar[Mapping[str, float]] = {**LayerProjection.minimum, "ratio": 1.0}
    covariances: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    counts: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    def remember(self, seen: Seen) -> None:
        """Add a task's inputs to the covariance of one layer, and recompute its leading eigenvectors."""
        weight, rows = seen.names[0], seen.inputs.double()
        if len(seen.names) == 2:
            self.inputs.biases[weight] = seen.names[1]
        before, count = self.counts.get(weight, 0), rows.shape[1]
        old = self.covariances.get(weight, torch.zeros_like(rows.mT @ rows))
        self.covariances[weight] = (old * before + rows.mT @ rows) / (before + count)
        self.counts[weight] = before + count
        values, vectors = torch.linalg.eigh(self.covariances[weight])
        smallest = values[:, :1].clamp(min=ROUNDING * float(values.max()))
        # Groups share one number of free directions: the fewest that any of them has.
        free = int((values <= self.ratio * smallest).sum(1).min())
        self.inputs.bases[weight] = vectors[..., free:].to(seen.inputs.dtype)
