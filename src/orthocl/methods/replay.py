"""Experience replay: train on old samples beside the new ones.

Reference: Chaudhry et al. On Tiny Episodic Memories in Continual Learning. 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.methods.base import Method
from orthocl.methods.learner import Learner
from orthocl.methods.memory import SampleMemory


@dataclass
class Replay(Method):
    """Add strength * (mean loss of a batch drawn from the memory of earlier tasks) to the loss of every step.

    Beside a projection: `chain(Replay(), OGD())`.

    Args:
        strength: weight of the old samples' loss.
        memory_per_task: samples kept per task.
        replay_batch: samples drawn from the memory at every step.
    """

    name: ClassVar[str] = "replay"

    strength: float = 1.0
    memory_per_task: int = 100
    replay_batch: int = 32
    minimum: ClassVar[Mapping[str, float]] = {"strength": 0, "memory_per_task": 0, "replay_batch": 1}
    memory: SampleMemory = field(default_factory=SampleMemory, init=False, repr=False)
    remembered: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def penalty(self, learner: Learner) -> Tensor | None:
        """The loss of old samples, each through the head of its task."""
        if not len(self.memory):
            return None
        return self.strength * torch.stack(self.memory.losses(learner, self.replay_batch)).sum()

    def end_task(self, learner: Learner) -> None:
        """Keep samples of the task."""
        self.memory.add(learner, self.memory_per_task)
        self.remembered = {piece.task: piece.index for piece in self.memory}
