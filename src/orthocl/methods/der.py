"""Dark experience replay: remembered samples should keep their outputs as well as their labels.

Reference: Buzzega, Boschini, Porrello, Abati, Calderara. Dark Experience for General Continual Learning: a Strong,
Simple Baseline. NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.methods.er import ER
from orthocl.methods.learner import Learner
from orthocl.nets.heads import use_head
from orthocl.nets.modes import evaluating


@dataclass
class DERpp(ER):
    """Replay with labels and with the earlier outputs: L(new) + distillation |f - f_old|^2 + strength L(old).

    The paper draws samples during a task and keeps the outputs of that moment; here, with known tasks, both happen at
    the task's end. Both terms are of the same batch, which halves the cost; |.|^2 is the mean over outputs.

    Args:
        memory_per_task: samples kept per task, with their outputs.
        replay_batch: samples drawn from the memory at every step.
        strength: weight of the labels' loss (the paper's beta).
        distillation: weight of the outputs' squared change (the paper's alpha).
    """

    name: ClassVar[str] = "der++"

    strength: float = 0.5
    distillation: float = 0.5
    minimum: ClassVar[Mapping[str, float]] = {**ER.minimum, "distillation": 0.0}
    outputs: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Task -> outputs of its remembered samples when it ended."""

    def replayed(self, learner: Learner, task: int, rows: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of the labels and the squared change of the outputs."""
        change = (outputs - self.outputs[task][rows]).square().mean()
        return super().replayed(learner, task, rows, outputs, targets) + self.distillation * change

    def end_task(self, learner: Learner) -> None:
        """Keep samples of the task and the network's current outputs for them."""
        super().end_task(learner)
        piece = self.memory.pieces[learner.current_task.number]
        if len(piece):
            with torch.no_grad(), evaluating(learner.model), use_head(learner.model, piece.head):
                self.outputs[piece.task] = learner.model(piece.inputs).clone()
