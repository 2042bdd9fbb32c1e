"""PCA-OGD: keep the principal directions of a task's tangents instead of the tangents themselves.

Reference: Doan, Bennani, Mazoure, Rabusseau, Alquier. A Theoretical Analysis of Catastrophic Forgetting through the
NTK Overlap Matrix. AISTATS 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from orthocl.methods.learner import Learner
from orthocl.methods.memory import draw
from orthocl.methods.ogd import OGD


@dataclass
class PCAOGD(OGD):
    """OGD on the `components` leading principal directions of the tangents of `memory_per_task` samples.

    For tangents G (one row per sample) with Gram matrix G G^T = U S U^T, the directions kept are S^-1/2 U^T G for the
    largest eigenvalues: the best subspace of that dimension for the task's tangents.

    Args:
        memory_per_task: samples whose tangents are taken.
        components: principal directions kept per task.
    """

    name: ClassVar[str] = "pca-ogd"

    components: int = 50
    minimum: ClassVar[Mapping[str, float]] = {**OGD.minimum, "components": 1}

    def remember(self, learner: Learner) -> None:
        """Add the principal directions of the task's tangents."""
        piece = draw(learner, self.memory_per_task)
        self.remembered[piece.task] = piece.index
        if len(piece):
            tangents = self.collect(learner, piece, self.earlier)
            self.ensure_subspace(learner).append(tangents, owner=piece.task, components=self.components)
            self.watcher.remember(piece, tangents)
