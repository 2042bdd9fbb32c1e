"""Dark experience replay: remembered samples should keep their outputs as well as their labels.

Reference: Buzzega, Boschini, Porrello, Abati, Calderara. Dark Experience for General Continual Learning: a Strong,
Simple Baseline. NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from orthocl.methods.er import ER
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered
from orthocl.nets.heads import use_head
from orthocl.nets.inputs import Targets, each_tensor, take, tensors
from orthocl.nets.modes import evaluating
from orthocl.nets.outputs import plain_output


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
    outputs: dict[int, Targets] = field(default_factory=dict, init=False, repr=False)
    """Task -> outputs of its remembered samples when it ended."""

    def replayed(self, learner: Learner, task: int, rows: Tensor, outputs: Any, targets: Targets) -> Tensor:
        """The loss of the labels and the squared change of the outputs."""
        earlier = take(self.outputs[task], rows)
        current = outputs if isinstance(earlier, dict) else plain_output(outputs)
        pairs = zip(tensors(current), tensors(earlier), strict=True)
        # A head may have grown since: outputs that did not exist are not compared.
        parts = [(now[:, : then.shape[1]] if then.dim() > 1 else now) - then for now, then in pairs]
        change = torch.stack([part.square().mean() for part in parts]).sum()
        return super().replayed(learner, task, rows, outputs, targets) + self.distillation * change

    def end_task(self, learner: Learner) -> None:
        """Keep samples of the task and the network's current outputs for them."""
        super().end_task(learner)
        self._keep_outputs(learner, self.memory.pieces[learner.current_task.number])

    def weights_changed(self, learner: Learner) -> str | None:
        """Keep the outputs of now instead: those of before belong to weights that are gone."""
        if not len(self.memory):
            return None
        for piece in self.memory:
            self._keep_outputs(learner, piece)
        return f"the outputs of all {len(self.memory)} kept samples were computed again"

    def _keep_outputs(self, learner: Learner, piece: Remembered) -> None:
        if len(piece):
            with torch.no_grad(), evaluating(learner.model), use_head(learner.model, piece.head):
                found = learner.read(piece.inputs, piece.targets)
                self.outputs[piece.task] = each_tensor(found, torch.clone)
