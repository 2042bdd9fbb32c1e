"""Your own method in one small file: pull the weights back towards where the last task left them.

orthocl check examples/own_method.py

It combines with others, too: `orthocl.chain(Leash(), orthocl.OGD())`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl import Learner, Method


@dataclass
class Leash(Method):
    """Penalty strength * ||w - w*||^2 with w* the weights at the end of the last task."""

    name: ClassVar[str] = "leash"

    strength: float = 0.1
    anchor: list[Tensor] = field(default_factory=list, init=False, repr=False)  # saved and restored for you

    def penalty(self, learner: Learner) -> Tensor | None:
        if not self.anchor:
            return None
        pairs = zip(learner.parameters.values(), self.anchor, strict=True)
        return self.strength * torch.stack([(p - a).square().sum() for p, a in pairs]).sum()

    def end_task(self, learner: Learner) -> None:
        self.anchor = [p.detach().clone() for p in learner.parameters.values()]
