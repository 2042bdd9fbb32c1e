"""AdapterOGD: one memory for many low-rank adapters.

The tangents are kept with respect to the whole weights of the adapted layers, so that they outlive the adapters: a new
adapter for every task, and merging in between, keep the protection. See `orthocl.tangents.adapted_weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from orthocl.errors import warn
from orthocl.methods.base import Gradient, Method, no_complex_weights
from orthocl.methods.guard import Marks, differ, marks
from orthocl.methods.learner import Learner
from orthocl.methods.memory import draw
from orthocl.methods.moving_buffers import moved_buffers, warn_of_buffers
from orthocl.nets.heads import use_head
from orthocl.storage import tensor_bytes
from orthocl.tangents.adapted_weights import adapted_layers, collect_whole, derived, lasting_name, merged
from orthocl.tangents.compress import Compression
from orthocl.tangents.remembering import TOKENS, Remembering, Variant
from orthocl.tangents.subspace import Subspace
from orthocl.tangents.tangents import Tangents, norm

MERGED = 1e-5
"""Relative difference of checksums of whole weights before and after an adapter was merged: rounding."""


@dataclass
class AdapterOGD(Method):
    """OGD whose tangents are those of whole weights, from which those of any adapter are derived without data.

    With G the tangent of a remembered output with respect to a layer's whole weight W + s B A, a step (dA, dB) leaves
    the output as it is, to first order, if <G, s (dB A + B dA)> = 0. This depends on A and B, so the directions to
    avoid are derived again as the adapter moves.

    Give the same object to every `attach`: it keeps its memory when the adapter, the optimizer and the names change.

    Args:
        memory_per_task: samples whose tangents are kept.
        variant: which output of a sample is remembered, as for `OGD`.
        energy: share of the tangents' squared norms that is kept, as for `OGD`.
        refresh_every: steps after which the directions are derived again; 0 derives them once per task.
        layers: last parts of the names of linear layers that later adapters may adapt, such as ("query", "value");
            those that carry an adapter when a task ends are remembered in any case.
        tokens: positions per sample for variant "tokens".
    """

    name: ClassVar[str] = "adapter-ogd"
    projects: ClassVar[bool] = True
    refreshes: ClassVar[bool] = True
    uses_step: ClassVar[bool] = False

    memory_per_task: int = 100
    variant: Variant = "gtl"
    energy: float = 1.0
    refresh_every: int = 1
    layers: tuple[str, ...] = ()
    tokens: int = TOKENS
    minimum: ClassVar[Mapping[str, float]] = {
        "memory_per_task": 0,
        "refresh_every": 0,
        "energy": 0.0,
        "tokens": 1,
    }
    stored: Tangents | None = field(default=None, init=False, repr=False)
    remembered: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    report: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    left: Marks = field(default_factory=dict, init=False, repr=False)
    """Whole weights as the last task left them, merged or not."""

    def __post_init__(self) -> None:
        self._subspace: Subspace | None = None
        self._steps = 0
        self._start: dict[str, Tensor] = {}
        self._layers: dict[str, nn.Module] = {}  # those that carry an adapter in this task

    def refusal(self, learner: Learner) -> str | None:
        """Refuse complex weights."""
        return no_complex_weights(learner)

    def begin_task(self, learner: Learner) -> None:
        """Derive the directions of this task's adapter."""
        self.resume_task(learner)
        if self.stored is not None and differ(self.left, marks(self._start), MERGED):
            warn(
                "whole weights have changed since the last task ended (others were loaded, averaged or trained outside "
                f"`learning`): the tangents that {self.name} keeps are those of the earlier weights. Change weights "
                "inside the block, before it ends"
            )

    def resume_task(self, learner: Learner) -> None:
        """As `begin_task`, at weights that the task has moved already."""
        self._steps = 0
        self._layers = adapted_layers(learner.model, learner.parameters)
        self._start = self._whole_weights(learner)
        self._derive(learner)

    def _derive(self, learner: Learner) -> None:
        self._subspace = None
        if self.stored is not None:
            self._subspace = Subspace(learner.parameters)
            found = derived(learner.model, self.stored, learner.parameters, self._layers)
            self._subspace.append(found, owner=1)

    @property
    def protects(self) -> bool:
        """Whether there is anything to take out of the weights."""
        return self._subspace is not None

    def inside(self, learner: Learner, displacement: Gradient) -> Gradient:
        """The part that would change remembered outputs."""
        return (
            super().inside(learner, displacement)
            if self._subspace is None
            else self._subspace.inside(displacement)
        )

    def after_step(self, learner: Learner, gradient: Gradient, step: Gradient) -> None:
        """Derive the directions again, where the adapter has moved."""
        self._steps += 1
        if self.stored is not None and self.refresh_every and self._steps % self.refresh_every == 0:
            self._derive(learner)
            learner.reanchor()  # the directions hold from here on

    def end_task(self, learner: Learner) -> None:
        """Measure the leak, then keep tangents of samples of the task with respect to whole weights."""
        self.report = self._measured(learner)
        warn_of_buffers(moved_buffers(learner), None)
        piece = draw(learner, self.memory_per_task)
        self.remembered[piece.task] = piece.index
        if len(piece):
            layers = adapted_layers(learner.model, learner.parameters, self.layers)
            with use_head(learner.model, piece.head):
                found = collect_whole(
                    learner.model,
                    piece.inputs,
                    piece.targets,
                    parameters=learner.parameters,
                    layers=layers,
                    remember=self.remembering(learner),
                    compression=Compression(energy=self.energy, rows=self.memory_per_task),
                    earlier=self.stored,
                )
            self.stored = found if self.stored is None else Tangents.concatenate([self.stored, found])
        self.left = marks(self._whole_weights(learner))
        self._subspace, self._start, self._layers = None, {}, {}

    def remembering(self, learner: Learner) -> Remembering:
        """What is remembered of a sample."""
        return Remembering(self.variant, learner.outputs, self.tokens)

    def _whole_weights(self, learner: Learner) -> dict[str, Tensor]:
        layers = adapted_layers(learner.model, learner.parameters, self.layers)
        inside = {id(p) for module in layers.values() for p in module.parameters()}
        with merged(learner.model, layers) as weights:
            found = {name: weight.detach().clone() for name, weight in weights.items()}
        others = {lasting_name(n): p for n, p in learner.parameters.items() if id(p) not in inside}
        return found | {name: p.detach().clone() for name, p in others.items()}

    def _measured(self, learner: Learner) -> dict[str, float]:
        """The share of the change of whole weights that lies in the span of the stored tangents."""
        if self.stored is None:
            return {}
        now = self._whole_weights(learner)
        moved = [(now[name] - self._start[name]).double() for name in self.stored.names]
        gram, inner = self.stored.gram(), self.stored.coefficients(moved).double()
        inside = inner @ torch.linalg.pinv(gram, hermitian=True, rtol=1e-12) @ inner
        return {"leak": float(inside.clamp(min=0).sqrt() / norm(moved).clamp(min=1e-300))}

    def monitor(self, learner: Learner) -> dict[str, float]:
        """Tangents kept and the leak of the latest task."""
        return {"tangents": float(0 if self.stored is None else self.stored.rows), **self.report}

    def nbytes(self) -> int:
        """Bytes of the tangents."""
        return (0 if self.stored is None else self.stored.nbytes) + tensor_bytes(self.remembered)

    def load_state_dict(self, state: Mapping[str, Any], learner: Learner) -> None:
        """Restore the memory."""
        kept = state["stored"]
        self.stored = None if kept is None else Tangents.from_state_dict(kept)
        self.remembered, self.report = dict(state["remembered"]), dict(state["report"])
        # Earlier versions kept none; a task that failed has moved the weights along what is protected.
        self.left = {} if self._start else dict(state.get("left", {}))
        self._start = {}
        self._subspace = None
