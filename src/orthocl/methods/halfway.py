"""Halfway: what a state that was saved in the middle of a task says about that task, so that it can go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from orthocl.errors import StoreError, TrainingError
from orthocl.methods.guard import checksum


@dataclass(frozen=True)
class Halfway:
    """Where a task began, and where its weights were when its state was saved.

    Args:
        start: what the task could change, as it was when the task began.
        weights: `checksum` of the protected weights when the state was saved.
        anchor: where displacements were measured from, of the weights where that is no longer the start.
        unprojected: steps since the constraint was restored.
    """

    start: Mapping[str, Tensor]
    weights: Tensor
    anchor: Mapping[str, Tensor] = field(default_factory=dict)
    unprojected: int = 0

    @classmethod
    def of(
        cls,
        start: Mapping[str, Tensor],
        weights: Iterable[Tensor],
        anchor: Mapping[str, Tensor] | None = None,
        unprojected: int = 0,
    ) -> Halfway:
        """Of a task that is being learnt."""
        return cls(start, checksum(weights), anchor or {}, unprojected)

    def check(self, weights: Iterable[Tensor], resumed: bool) -> None:
        """Reject another task than the one that the state belongs to, and weights of another moment."""
        if not resumed:
            raise TrainingError(
                "the memory that was loaded was saved in the middle of a task, which it does not contain: continue "
                "that task with learner.learning(data, resumed=True), or load what was saved when it had ended"
            )
        now = checksum(weights).to(self.weights)
        if now.shape != self.weights.shape or not torch.allclose(now, self.weights, rtol=1e-6, atol=1e-6):
            raise TrainingError(
                "the memory that was loaded was saved in the middle of a task, with other weights than the model has: "
                "load weights and memory from the same checkpoint (with a trainer's callback, name its folder with "
                "callback.load(folder))"
            )

    def start_for(self, now: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Where the task began, on the devices of the present values; what came since begins now."""
        return {
            name: self.start[name].to(value) if name in self.start else value for name, value in now.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors."""
        return {
            "start": dict(self.start),
            "weights": self.weights,
            "anchor": dict(self.anchor),
            "unprojected": self.unprojected,
        }

    @classmethod
    def from_state_dict(cls, state: object) -> Halfway | None:
        """What `state_dict` returned; None for a state that was saved between tasks."""
        if state is None:
            return None
        if isinstance(state, Mapping) and isinstance(state.get("weights"), Tensor):
            start, anchor, steps = state.get("start"), state.get("anchor"), state.get("unprojected")
            if all(_are_tensors(part) for part in (start, anchor)) and isinstance(steps, int):
                return cls(start, state["weights"], anchor, steps)  # type: ignore[arg-type]
        raise StoreError("this is not the saved state of a learner: what it says of its task is damaged")


def _are_tensors(part: object) -> bool:
    return isinstance(part, Mapping) and all(isinstance(value, Tensor) for value in part.values())
