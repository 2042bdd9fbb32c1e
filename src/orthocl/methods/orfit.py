"""ORFit: OGD on an incremental principal component analysis of all tangents.

Reference: Min, Ahn, Azizan. One-Pass Learning via Bridging Orthogonal Gradient Descent and Recursive Least-Squares.
CDC 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from orthocl.methods.growing import grown_list
from orthocl.methods.learner import Learner
from orthocl.methods.memory import draw
from orthocl.methods.ogd import OGD
from orthocl.storage import tensor_bytes
from orthocl.tangents.tangents import Tangents


@dataclass
class ORFit(OGD):
    """OGD on `components` directions in all: the principal ones of what was kept before and the new tangents.

    With B the rows kept (directions times singular values) and G a task's tangents, [B; G] = P S Q^T is decomposed
    through its Gram matrix, and B <- S_k Q_k^T: the memory never grows. The paper treats each sample as a separate task
    and fits it in one step along the complement; here a task's samples are taken together, and steps are the
    optimizer's.

    Args:
        memory_per_task: samples whose tangents are taken.
        components: directions kept of all tasks together.
    """

    name: ClassVar[str] = "orfit"

    components: int = 100
    minimum: ClassVar[Mapping[str, float]] = {**OGD.minimum, "components": 1}
    rows: list[Tensor] = field(default_factory=list, init=False, repr=False)
    """B: for each protected parameter the rows kept."""

    def remember(self, learner: Learner) -> None:
        """Merge the task's tangents into the principal directions."""
        piece = draw(learner, self.memory_per_task)
        self.remembered[piece.task] = piece.index
        if not len(piece):
            return
        tangents = self.collect(learner, piece)
        pieces = [tangents]
        if self.rows:
            pieces.insert(0, Tangents.explicit(learner.parameters, self.rows))
        values, vectors = torch.linalg.eigh(_gram(pieces))
        alive = values > 1e-12 * values[-1].clamp(min=1e-300)
        like = next(iter(learner.parameters.values()))
        mixing = vectors[:, alive].flip(1)[:, : self.components].t().to(like)
        counts = [part.rows for part in pieces]
        new = [
            [sum(parts[1:], parts[0]) for parts in zip(*(p.combine(w) for p, w in shares), strict=True)]
            for shares in (zip(pieces, row.split(counts), strict=True) for row in mixing)
        ]
        self.rows = [torch.stack(column) for column in zip(*new, strict=True)]
        if self.rows:
            self.ensure_subspace(learner).replace(
                [(piece.task, Tangents.explicit(learner.parameters, self.rows))]
            )
        self.watcher.remember(piece, tangents)

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """The kept rows have zeros where the model has grown."""
        self.rows = grown_list(self.rows, learner.parameters, earlier, axis=1)
        super().grow(learner, earlier)

    def nbytes(self) -> int:
        """Bytes of memory that the method takes, those of the kept rows included."""
        return super().nbytes() + tensor_bytes(self.rows)

    def load_state_dict(self, state: Mapping[str, Any], learner: Learner) -> None:
        """Restore the kept rows, what they span and, in the middle of a task, the adapter."""
        self.rows = list(state["rows"])
        super().load_state_dict(state, learner)


def _gram(pieces: list[Tangents]) -> Tensor:
    return torch.cat([torch.cat([one.gram(other) for other in pieces], 1) for one in pieces])
