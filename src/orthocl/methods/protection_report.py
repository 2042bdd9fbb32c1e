"""Watch: whether a projecting method keeps its promise, measured at the end of every task on a few probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from orthocl.errors import warn
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered
from orthocl.methods.moving_buffers import moved_buffers, norm_buffers, warn_of_buffers
from orthocl.nets.heads import use_head
from orthocl.nets.inputs import tensors
from orthocl.nets.modes import evaluating
from orthocl.storage import tensor_bytes
from orthocl.tangents.collect import Tangents, collect
from orthocl.tangents.drift import PROBES, Drift, drifts, probe_count
from orthocl.tangents.growing import grown_tangents
from orthocl.tangents.remembering import Remembering
from orthocl.tangents.subspace import Subspace

WATCHED_TASKS = 50
"""Earlier tasks whose drift is measured; of more, so many evenly spaced ones."""
TOGETHER = 2**28
"""Bytes of current tangents of probes that are compared with the stored ones at once."""
NOTICEABLE = 0.01
"""Relative change of remembered outputs by batch statistics that is worth a warning."""


@dataclass
class Watch:
    """Leak of a task's displacement into the protected space, drift of the tangents, the largest stable rate.

    `report` after task t:
      leak: share of the task's displacement that lies in the space that is kept (0 in exact arithmetic); of
        compressed tangents that is a part of what they span.
      drift_cosine, drift_norm, drift_outside: stored tangents against those at the current weights, mean over the
        probes of earlier tasks, before any refresh: cosine, relative norm, share of the current tangent outside the
        stored span.
      learning_rate_limit: gradient descent on the mean squared error of the linearised outputs diverges above it
        (estimated from the task's remembered samples).
    """

    statistics: dict[str, Tensor] = field(default_factory=dict)
    probes: dict[int, tuple[Remembered, Tangents | None]] = field(default_factory=dict)
    """Task -> samples and their tangents; None where those are looked up in what is protected: compressed ones."""
    report: dict[str, float] = field(default_factory=dict)
    on: bool = True
    """Whether drift and learning rate limit are measured; the leak always is."""

    def begin(self, learner: Learner) -> None:
        """Note the batch statistics at the start of a task."""
        self.statistics = {}
        if learner.batch_norm == "keep":
            self.statistics = {name: value.clone() for name, value in norm_buffers(learner.model).items()}

    def end(self, learner: Learner, subspace: Subspace | None, remember: Remembering) -> None:
        """Measure, before the memory changes."""
        self.report = {}
        if subspace is None or not subspace.rank or not self.probes:
            return
        with torch.no_grad():
            moved = [p.detach() - learner.started_from[name] for name, p in learner.parameters.items()]
        self.report["leak"] = subspace.leak(moved)
        learner.guard.check_leak(self.report["leak"])
        found = self.drifts(learner, subspace, remember) if self.on else []
        for key in ("cosine", "relative_norm", "outside"):
            name = "norm" if key == "relative_norm" else key
            if found:
                self.report[f"drift_{name}"] = sum(getattr(one, key) for one in found) / len(found)
        if self.statistics:
            self._warn_of_batch_statistics(learner)
        others = moved_buffers(learner)
        if others:
            self.report["buffer_drift"] = self._effect(learner, others)
            warn_of_buffers(others, self.report["buffer_drift"])

    def drifts(self, learner: Learner, subspace: Subspace, remember: Remembering) -> list[Drift]:
        """The drift of every watched task, of as many together as fit into some memory."""
        found: list[Drift] = []
        before: list[Tangents] = []
        after: list[Tangents] = []
        for piece, stored in self.watched():
            now = self._now(learner, piece, remember)
            # Compressed tangents are where they are protected, those of them that are.
            kept = (stored, None) if stored is not None else subspace.find(piece.task, torch.arange(now.rows))
            if kept is None:
                continue
            before.append(kept[0])
            after.append(now if kept[1] is None else now.select(kept[1]))
            if sum(tangents.nbytes for tangents in after) > TOGETHER:
                found += drifts(before, after, subspace)
                before, after = [], []
        return found + drifts(before, after, subspace) if after else found

    def _now(self, learner: Learner, piece: Remembered, remember: Remembering) -> Tangents:
        """Tangents of a task's probes at the current weights."""
        with use_head(learner.model, piece.head):
            return collect(
                learner.model,
                piece.inputs,
                piece.targets,
                parameters=learner.parameters,
                variant=remember.variant,
                outputs=remember.outputs,
                tokens=remember.tokens,
                chunk=len(piece),
            )

    def watched(self) -> list[tuple[Remembered, Tangents | None]]:
        """The probes that are measured: of all earlier tasks, or of some from the first to the last."""
        every = list(self.probes.values())
        if len(every) <= WATCHED_TASKS:
            return every
        return [every[place * (len(every) - 1) // (WATCHED_TASKS - 1)] for place in range(WATCHED_TASKS)]

    def grow(self, learner: Learner) -> None:
        """The probes' tangents have zeros where the model has grown."""
        self.probes = {
            number: (piece, t if t is None else grown_tangents(t, learner.model, learner.parameters))
            for number, (piece, t) in self.probes.items()
        }

    def remember(self, piece: Remembered, tangents: Tangents) -> None:
        """Keep probes of a task, and estimate its largest stable learning rate."""
        if self.on:
            largest = max(float(torch.linalg.eigvalsh(tangents.gram())[-1]), 1e-300)
            self.report["learning_rate_limit"] = tangents.rows / largest
        if not any(bool(block.squares().any()) for block in tangents.blocks):
            warn(
                f"the outputs that are remembered of task {piece.task} do not react to any weight (a saturated "
                "network, or zeros): the memory has no direction for them and protects nothing. Remember what "
                "comes before the saturation with attach(..., outputs=...)"
            )
        self.refresh(piece, tangents)

    def refresh(self, piece: Remembered, tangents: Tangents) -> None:
        """Recompute the probes of a task."""
        if tangents.errors is not None or not self.on:
            self.probes[piece.task] = piece.first(PROBES), None
            return
        count = probe_count(len(piece), tangents.nbytes)
        rows = torch.arange(count * (tangents.rows // len(piece)))
        self.probes[piece.task] = piece.first(count), tangents.select(rows)

    @torch.no_grad()
    def _effect(self, learner: Learner, earlier: Mapping[str, Tensor]) -> float:
        """By how much buffers that had these values changed remembered outputs, on their own."""
        buffers = dict(learner.model.named_buffers())
        today = {name: buffers[name].clone() for name in earlier}
        change = size = 0.0
        for piece, _ in self.probes.values():
            with evaluating(learner.model), use_head(learner.model, piece.head):
                for name, value in earlier.items():
                    buffers[name].copy_(value)
                before = learner.read(piece.inputs, piece.targets)
                for name, value in today.items():
                    buffers[name].copy_(value)
                after = learner.read(piece.inputs, piece.targets)
            for now, then in zip(tensors(after), tensors(before), strict=True):
                change += float((now - then).square().sum())
                size += float(then.square().sum())
        return float((change / max(size, 1e-300)) ** 0.5)

    def _warn_of_batch_statistics(self, learner: Learner) -> None:
        self.report["batch_norm_drift"] = self._effect(learner, self.statistics)
        if self.report["batch_norm_drift"] > NOTICEABLE:
            warn(
                "batch statistics that kept moving during the task changed remembered outputs by "
                f"{self.report['batch_norm_drift']:.1%}, which no projection can prevent: "
                'attach with batch_norm="freeze" to keep those of the first task',
            )

    def nbytes(self) -> int:
        """Bytes kept from task to task."""
        return tensor_bytes(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and JSON values."""
        return {
            "statistics": self.statistics,
            "report": self.report,
            "probes": {
                number: {
                    "sample": piece.state_dict(),
                    "tangents": None if tangents is None else tangents.state_dict(),
                }
                for number, (piece, tangents) in self.probes.items()
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.statistics = dict(state["statistics"])
        self.report = dict(state["report"])
        self.probes = {
            number: (
                Remembered.from_state_dict(one["sample"]),
                None if one["tangents"] is None else Tangents.from_state_dict(one["tangents"]),
            )
            for number, one in state["probes"].items()
        }
