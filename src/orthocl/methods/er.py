"""Experience replay: train on remembered samples along with the new ones.

Reference: Chaudhry, Rohrbach, Elhoseiny, Ajanthan, Dokania, Torr, Ranzato. On Tiny Episodic Memories in Continual
Learning. 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from orthocl.methods.base import Method
from orthocl.methods.learner import Learner
from orthocl.methods.memory import SampleMemory, fixed_batch_statistics
from orthocl.nets.heads import use_head
from orthocl.nets.inputs import Targets, take


@dataclass
class ER(Method):
    """Add the mean loss of a batch of remembered samples to every step's loss: L(new) + strength L(old).

    "0.5 % replay", a usual setting, is `memory_per_task` at 0.005 times the samples of a task.

    Args:
        memory_per_task: samples kept per task.
        replay_batch: samples drawn from the memory at every step.
        strength: weight of their loss.
    """

    name: ClassVar[str] = "er"

    memory_per_task: int = 100
    replay_batch: int = 32
    strength: float = 1.0
    minimum: ClassVar[Mapping[str, float]] = {"memory_per_task": 0, "replay_batch": 1, "strength": 0.0}
    memory: SampleMemory = field(default_factory=SampleMemory, init=False, repr=False)

    def penalty(self, learner: Learner) -> Tensor | None:
        """The mean loss of a batch from the memory, each sample through its own head."""
        if not len(self.memory):
            return None
        count = min(self.replay_batch, len(self.memory))
        chosen = torch.randperm(len(self.memory), generator=learner.generator)[:count].sort()[0]
        total: list[Tensor] = []
        start = 0
        with fixed_batch_statistics(learner.model):
            for piece in self.memory:
                rows = chosen[(chosen >= start) & (chosen < start + len(piece))] - start
                start += len(piece)
                if len(rows):
                    targets = take(piece.targets, rows)
                    with use_head(learner.model, piece.head):
                        outputs = learner.answer(take(piece.inputs, rows), targets)
                    share = len(rows) / count
                    total.append(self.replayed(learner, piece.task, rows, outputs, targets) * share)
        return torch.stack(total).sum()

    def replayed(self, learner: Learner, task: int, rows: Tensor, outputs: Any, targets: Targets) -> Tensor:
        """The mean loss of some of a task's remembered samples.

        Args:
            learner: the learner.
            task: number of the task.
            rows: which of its remembered samples.
            outputs: what the model returns for them, or the outputs that `attach` was told to read.
            targets: their labels.
        """
        return self.strength * learner.loss(outputs, targets)

    def end_task(self, learner: Learner) -> None:
        """Keep samples of the task."""
        self.memory.add(learner, self.memory_per_task)
