"""PCA-OGD: keep the principal directions of a task's tangents instead of the tangents themselves.

Reference: Doan, Bennani, Mazoure, Rabusseau, Alquier. A Theoretical Analysis of Catastrophic Forgetting through the
NTK Overlap Matrix. AISTATS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from orthocl.errors import SettingsError
from orthocl.methods.learner import Learner
from orthocl.methods.memory import draw
from orthocl.methods.ogd import OGD


@dataclass
class PCAOGD(OGD):
    """OGD on the `components` leading principal directions of the tangents of `memory_per_task` samples.

    For tangents G (one row a sample) with Gram matrix G G^T = U S U^T, the directions kept are S^-1/2 U^T G for the
    largest eigenvalues: the best subspace of that dimension for the task's tangents.

    Args:
        memory_per_task: samples whose tangents are taken.
        components: principal directions kept per task.
    """

    name: ClassVar[str] = "pca-ogd"

    components: int = 50

    def end_task(self, learner: Learner) -> None:
        """Remember the principal directions of the task's tangents."""
        if self.components < 1:
            raise SettingsError(f"pca-ogd needs at least one component per task, got {self.components}")
        task = learner.current_task
        piece = draw(learner, self.memory_per_task)
        self.remembered[task.number] = piece.index
        if len(piece):
            tangents = self._collect(learner, piece)
            self._subspace(learner).append(tangents, owner=task.number, components=self.components)
