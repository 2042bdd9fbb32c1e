"""SketchOGD: OGD in a memory whose size is fixed beforehand.

Reference: Min, Wright, Bernstein, Azizan. SketchOGD: Memory-Efficient Continual Learning. arXiv:2305.16424, 2023.
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
class SketchOGD(OGD):
    """OGD on the span of a random sketch Y = Omega G of all tangents G so far: always `sketch` rows.

    Omega has independent normal entries, drawn again for the tangents of each task, never kept: Y <- Y + Omega_t G_t.
    The row space of Y is close to the span of the leading right singular vectors of G (the paper's first variant).

    Args:
        memory_per_task: samples whose tangents enter the sketch.
        sketch: rows of the sketch.
    """

    name: ClassVar[str] = "sketch-ogd"

    sketch: int = 100
    minimum: ClassVar[Mapping[str, float]] = {**OGD.minimum, "sketch": 1}
    rows: list[Tensor] = field(default_factory=list, init=False, repr=False)
    """Y: for each protected parameter the sketch's rows."""

    def remember(self, learner: Learner) -> None:
        """Add the task's tangents to the sketch."""
        piece = draw(learner, self.memory_per_task)
        self.remembered[piece.task] = piece.index
        if not len(piece):
            return
        tangents = self.collect(learner, piece)
        like = next(iter(learner.parameters.values()))
        mixing = torch.randn(self.sketch, tangents.rows, generator=learner.generator, dtype=torch.float64)
        mixing = mixing.to(like) / self.sketch**0.5
        new = [tangents.combine(weights) for weights in mixing]
        added = [torch.stack(column) for column in zip(*new, strict=True)]
        self.rows = [old + more for old, more in zip(self.rows, added, strict=True)] if self.rows else added
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
