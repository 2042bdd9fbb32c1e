"""Orthogonal Gradient Descent: step only where old outputs do not change to first order.

Reference: Farajtabar, Azizan, Mott, Li. Orthogonal Gradient Descent for Continual Learning. AISTATS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from orthocl.methods.base import Gradient, Method
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered, draw
from orthocl.nets.heads import use_head
from orthocl.tangents.factors import Tangents, Variant, collect
from orthocl.tangents.subspace import Subspace


@dataclass
class OGD(Method):
    """Project each gradient on the orthogonal complement of the remembered tangents.

    At the end of a task, the gradients v of the remembered outputs are added to the span E; from then on a
    gradient g is replaced by g - Pi_E g, so that <v, step> = 0: to first order, remembered outputs stay as they are.

    Paper: section 3.2, Theorem 2; Algorithm 1 without the refresh.

    Args:
        memory_per_task: samples remembered per task.
        variant: which output of a sample is remembered: "gtl" the logit of its label, "ave" the mean of all
            logits, "all" every logit (one tangent each: the only one that protects all outputs).
        engine: "project" projects every gradient or update; "adapter" trains through the tangent adapter (the same
            steps, cheaper); "auto" takes the adapter where it is exact and cheaper.
        storage: dtype of the stored factors, "float32", "float64" or "bfloat16"; None for the model's own.
    """

    name: ClassVar[str] = "ogd"
    projects: ClassVar[bool] = True

    memory_per_task: int = 100
    variant: Variant = "gtl"
    engine: Literal["auto", "adapter", "project"] = "auto"
    storage: Literal["float32", "float64", "bfloat16"] | None = None
    subspace: Subspace | None = field(default=None, init=False, repr=False)
    remembered: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Task number -> positions of the remembered samples in its training data."""

    def begin_task(self, learner: Learner) -> None:
        """Clear old momentum out of the protected space, and install the adapter where it pays."""
        if self.subspace is None or self.subspace.rank == 0:
            return
        if learner.stage == "gradient":
            self._project_momentum(learner, self.subspace)

    def transform(self, learner: Learner, gradient: Gradient) -> Gradient:
        """The part of the gradient (or update) that leaves the remembered outputs alone."""
        if self.subspace is None:
            return gradient
        return self.subspace.reject(gradient)

    def end_task(self, learner: Learner) -> None:
        """Remember tangents of samples drawn from the task."""
        task = learner.current_task
        piece = draw(learner, self.memory_per_task)
        self.remembered[task.number] = piece.index
        if len(piece):
            self._subspace(learner).append(self._collect(learner, piece), owner=task.number)

    def _collect(self, learner: Learner, piece: Remembered) -> Tangents:
        with use_head(learner.model, piece.head):
            return collect(
                learner.model,
                piece.inputs,
                piece.targets,
                parameters=learner.parameters,
                variant=self.variant,
                dtype=self._dtype,
            )

    def _subspace(self, learner: Learner) -> Subspace:
        if self.subspace is None:
            self.subspace = Subspace(learner.parameters, dtype=self._dtype)
        return self.subspace

    @property
    def _dtype(self) -> torch.dtype | None:
        return None if self.storage is None else getattr(torch, self.storage)

    def _project_momentum(self, learner: Learner, subspace: Subspace) -> None:
        """Momentum gathered on earlier tasks would carry the step back into the protected space."""
        states = [learner.optimizer.state[p] for p in learner.parameters.values()]
        if any(state.get("momentum_buffer") is not None for state in states):
            buffers = [
                torch.zeros_like(p) if s.get("momentum_buffer") is None else s["momentum_buffer"]
                for p, s in zip(learner.parameters.values(), states, strict=True)
            ]
            for state, buffer in zip(states, subspace.reject(buffers), strict=True):
                state["momentum_buffer"] = buffer

    def monitor(self, learner: Learner) -> dict[str, float]:
        """Rank of the protected space and number of stored tangents."""
        if self.subspace is None:
            return {"rank": 0.0, "tangents": 0.0}
        return {"rank": float(self.subspace.rank), "tangents": float(self.subspace.size)}

    def load_state_dict(self, state: Mapping[str, Any], learner: Learner) -> None:
        """Restore memory and, in the middle of a task, the adapter."""
        self.remembered = dict(state["remembered"])
        self.subspace = None
        if state["subspace"] is not None:
            self._subspace(learner).load_state_dict(state["subspace"])
