"""OGD+: OGD whose tangents are recomputed as the network moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from orthocl.methods.learner import Learner
from orthocl.methods.memory import SampleMemory
from orthocl.methods.ogd import OGD
from orthocl.storage import tensor_bytes


@dataclass
class OGDPlus(OGD):
    """Keep the samples too, and at the end of each task recompute the tangents of all of them at the current weights.

    OGD protects the outputs as they were linearised when each task ended; away from the infinitely wide limit the
    tangent kernel moves, and old tangents protect less and less. OGD+ refreshes them.

    Paper: section 6, Algorithm 1. As printed the algorithm only adds directions; the appendix and the authors'
    code replace the old ones, which is the default here.

    Args:
        memory_per_task: samples remembered per task.
        refresh: "replace" the old tangents by the new ones, or "append" the new ones to them.
        memory_total: if given, a budget for all tasks together, shared evenly: old tasks give up samples.
    """

    name: ClassVar[str] = "ogd+"

    refresh: Literal["replace", "append"] = "replace"
    memory_total: int | None = None
    minimum: ClassVar[Mapping[str, float]] = {**OGD.minimum, "memory_total": 0}
    memory: SampleMemory = field(default_factory=SampleMemory, init=False, repr=False)

    def remember(self, learner: Learner) -> None:
        """Keep samples of the task, then recompute the tangents of all kept samples."""
        task, count = learner.current_task, self.memory_per_task
        if self.memory_total is not None:
            seen = len(self.memory.pieces) + (task.number not in self.memory.pieces)
            count = min(count, self.memory_total // seen)
            self.memory.shrink(count)
        self.memory.add(learner, count)
        self.remembered = {piece.task: piece.index for piece in self.memory}
        subspace = self.ensure_subspace(learner)
        earlier = None if self.refresh == "replace" else subspace.tangents
        pieces = []
        for piece in self.memory:
            if len(piece):
                earlier = self.collect(learner, piece, earlier)
                pieces.append((piece, earlier))
        if self.refresh == "replace":
            subspace.replace([(piece.task, tangents) for piece, tangents in pieces])
        for piece, tangents in pieces:
            if self.refresh == "append":
                subspace.append(tangents, owner=piece.task)
            self.watcher.remember(piece, tangents)

    def warn_of_new_layers(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """Take the tangents again instead, if there are new layers."""
        if not all(name in earlier for name in learner.parameters):
            self.take_again(learner)

    def weights_changed(self, learner: Learner) -> str | None:
        """Take the tangents again at the weights of now."""
        if not len(self.memory):
            return None
        self.take_again(learner)
        return f"the tangents of all {len(self.memory)} kept samples were taken again at the weights of now"

    def take_again(self, learner: Learner) -> None:
        """Replace all tangents by those of the kept samples at the current weights."""
        if self.subspace is None:
            return
        kept = [(piece, self.collect(learner, piece)) for piece in self.memory if len(piece)]
        self.subspace.replace([(piece.task, tangents) for piece, tangents in kept])
        for piece, tangents in kept:
            self.watcher.refresh(piece, tangents)

    def nbytes(self) -> int:
        """Bytes of memory that the method takes, those of the samples included."""
        return super().nbytes() + tensor_bytes(self.memory.state_dict())

    def load_state_dict(self, state: Mapping[str, Any], learner: Learner) -> None:
        """Restore samples, tangents and, in the middle of a task, the adapter."""
        self.memory.load_state_dict(state["memory"])
        super().load_state_dict(state, learner)
