"""Your own projecting method: a small Gradient Projection Memory.

orthocl check examples/own_projection.py

Saha, Garg, Roy. Gradient Projection Memory for Continual Learning. ICLR 2021. A layer's gradient is a sum of outer
products with the layer's inputs, so steps that are orthogonal to remembered inputs leave the layer's outputs on them
unchanged. The learner takes care of every optimizer, of heads and checkpoints: declare `projects`, and write the part
of a displacement that must not be there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl import Learner, Method
from orthocl.methods import Gradient
from orthocl.methods.memory import draw
from orthocl.tangents import layer_io


@dataclass
class GPM(Method):
    """No weight moves along the inputs that its layer had on remembered samples."""

    name: ClassVar[str] = "gpm"
    projects: ClassVar[bool] = True

    memory_per_task: int = 50
    bases: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def inside(self, learner: Learner, displacement: Gradient) -> Gradient:
        return [
            (d.flatten(1) @ self.bases[name] @ self.bases[name].T).view_as(d) if name in self.bases else 0 * d
            for name, d in zip(learner.parameters, displacement, strict=True)
        ]

    def end_task(self, learner: Learner) -> None:
        piece = draw(learner, self.memory_per_task)
        if not len(piece):
            return
        for name, io in layer_io(learner.model, piece.inputs, parameters=learner.parameters).items():
            seen = [io.inputs.flatten(0, 1)] + ([self.bases[name].T] if name in self.bases else [])
            _, sizes, directions = torch.linalg.svd(torch.cat(seen), full_matrices=False)
            self.bases[name] = directions[sizes > 1e-6 * sizes[0]].T.contiguous()
