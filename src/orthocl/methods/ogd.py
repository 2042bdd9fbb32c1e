"""Orthogonal Gradient Descent: step only where old outputs do not change to first order.

Reference: Farajtabar, Azizan, Mott, Li. Orthogonal Gradient Descent for Continual Learning. AISTATS 2020.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from orthocl.errors import TrainingError, warn
from orthocl.methods.base import Gradient, Method, later
from orthocl.methods.held_weights import held_elsewhere
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered, draw
from orthocl.methods.protection_report import Watch
from orthocl.nets.heads import use_head
from orthocl.nets.inputs import Inputs
from orthocl.storage import export_state
from orthocl.tangents.adapter import Adapter
from orthocl.tangents.collect import Tangents, collect
from orthocl.tangents.compress import Compression
from orthocl.tangents.growing import grow_subspace
from orthocl.tangents.planner import planned
from orthocl.tangents.remembering import TOKENS, Remembering, Variant
from orthocl.tangents.subspace import Subspace

TYPICAL_BATCH = 32
"""Batch size that the choice of engine assumes if the loop gives none."""


@dataclass
class OGD(Method):
    """Project each gradient onto the orthogonal complement of the remembered tangents.

    At the end of a task, the gradients v of the remembered outputs are added to the span E; from then on a
    gradient g is replaced by g - Pi_E g, so that <v, step> = 0: to first order, remembered outputs stay as they are.

    Paper: section 3.2, Theorem 2; Algorithm 1 without the refresh.

    Args:
        memory_per_task: samples remembered per task.
        variant: which output of a sample is remembered: "gtl" the logit of its label, "ave" the mean of all
            logits, "all" every logit (one tangent each: the only one that protects all outputs), "tokens" the
            log-probabilities of the targets at a few positions (words of a sequence, pixels of an image).
        engine: "project" projects every gradient or update; "adapter" trains through the tangent adapter (the same
            steps, cheaper); "auto" takes the adapter where it is exact, as `orthocl plan` advises. While a task is
            learnt with the adapter, weights that are read through the model (`model.parameters()`, `state_dict`,
            copies) are complete. Where something else holds parameters (a list, for an average of the weights, or a
            variable), "auto" projects, so that they are complete too.
        storage: dtype of the stored factors, "float32", "float64" or "bfloat16"; None for the model's own.
        input_cache: bytes that the runner may use, while a task is trained, to look up the first layer's kernel with
            the training data instead of computing it again every epoch. In memory, or in a file in the folder
            $ORTHOCL_SCRATCH if that is set: memory that the system can take back, at the same speed while it does not.
        energy: share of the tangents' squared norms that is kept, on average over them. Below 1.0, layers where that
            pays (convolutions, transformers) keep two small bases and a small core per tangent; what is stored is
            protected exactly, and its distance from the true tangents is among the monitors.
        worst_energy: share that is kept of every single tangent; 0 for no such condition.
        tokens: positions of each sample that variant "tokens" remembers, drawn from those with a target.
        watch: whether the drift of a few tangents of every earlier task and the largest stable learning rate are
            measured when a task ends, which is most of the time that leaving a task takes. The leak always is.
    """

    name: ClassVar[str] = "ogd"
    projects: ClassVar[bool] = True
    quick_steps: ClassVar[bool] = True
    uses_step: ClassVar[bool] = False

    memory_per_task: int = 100
    variant: Variant = "gtl"
    engine: Literal["auto", "adapter", "project"] = "auto"
    storage: Literal["float32", "float64", "bfloat16"] | None = None
    input_cache: int = 2**29
    energy: float = later(1.0)
    worst_energy: float = later(0.0)
    tokens: int = later(TOKENS)
    watch: bool = later(True)
    minimum: ClassVar[Mapping[str, float]] = {
        "memory_per_task": 0,
        "input_cache": 0,
        "energy": 0.0,
        "tokens": 1,
    }
    maximum: ClassVar[Mapping[str, float]] = {"energy": 1.0}
    subspace: Subspace | None = field(default=None, init=False, repr=False)
    adapter: Adapter | None = field(default=None, init=False, repr=False)
    saved_adapter: dict[str, Any] | None = field(default=None, init=False, repr=False)
    """State of an adapter that `resume_task` will put back."""
    peak: int = field(default=0, init=False, repr=False)
    watcher: Watch = field(default_factory=Watch, init=False, repr=False)
    remembered: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    """Task number -> positions of the remembered samples in its training data."""

    def __post_init__(self) -> None:
        self.watcher.on = self.watch

    def begin_task(self, learner: Learner) -> None:
        """Install the adapter where it is worthwhile."""
        self.compression(learner)  # an impossible share is rejected before anything is learnt
        self.watcher.begin(learner)
        self.peak = 0
        # With other methods the gradient is not that of the loss alone, which is all that the adapter sees.
        # Nor where processes average their gradients and the adapter is not told.
        exact = self.engine != "project" and learner.stage == "gradient" and learner.sole
        exact = exact and (learner.ranks is None or learner.ranks.averages)
        if exact and self.subspace is not None and self.subspace.rank and not self._read_unseen(learner):
            self._install_adapter(learner, self.subspace)

    def _read_unseen(self, learner: Learner) -> bool:
        """Whether somebody holds weights, so that the adapter could not complete them before they are read."""
        held = learner.batch_size is None and held_elsewhere(learner, self.adapter)
        if learner.ranks is not None and self.adapter is None:  # one engine for all of them
            held = any(learner.ranks.gather(held))
        kept_on = self.engine == "adapter" or (learner.ranks is not None and self.adapter is not None)
        if held and kept_on:
            warn(
                "something besides the model and its optimizer holds protected parameters. If it reads them while a "
                "task is learnt (an average of the weights, say), the adapter's share is missing: read them through "
                'the model, call learner.merge() first, or use engine="project"',
            )
        return held and not kept_on

    def transform(self, learner: Learner, gradient: Gradient) -> Gradient:
        """The part of the gradient (or update) that leaves the remembered outputs alone."""
        return gradient if self.adapter is not None else self.project(learner, gradient)

    def project(self, learner: Learner, vectors: Gradient) -> Gradient:
        """The part of some vectors outside the protected space, also while the adapter takes the steps."""
        return vectors if self.subspace is None else self.subspace.reject(vectors)

    def after_step(self, learner: Learner, gradient: Gradient, step: Gradient) -> None:
        """The adapter's half of the step."""
        if self.adapter is None:
            return
        group = _protected_group(learner)
        try:
            self.adapter.step(group["lr"], group["momentum"], group["nesterov"], group["dampening"])
        except TrainingError:
            if self.engine == "adapter":
                raise
            # The loop clips or changes gradients after the backward pass, which the adapter cannot see. Taking it
            # off removes all that has leaked since the task began; from here on every gradient is projected.
            self.remove_adapter(learner)
            return
        if self.adapter.foreign and self.adapter.newly_held() and self._read_unseen(learner):
            self.remove_adapter(learner)
            return
        # Processes that train together keep it: their weights may be read by one of them only.
        if self.engine == "auto" and self.adapter.often_read and learner.ranks is None:
            self.remove_adapter(learner)

    def end_task(self, learner: Learner) -> None:
        """Measure how well the memory was protected, then remember the task."""
        self.remove_adapter(learner)
        self.watcher.end(learner, self.subspace, self.remembering(learner))
        self.remember(learner)

    def remember(self, learner: Learner) -> None:
        """Add tangents of samples drawn from the task."""
        piece = draw(learner, self.memory_per_task)
        self.remembered[piece.task] = piece.index
        if len(piece):
            tangents = self.collect(learner, piece, self.earlier)
            self.ensure_subspace(learner).append(tangents, owner=piece.task)
            self.watcher.remember(piece, tangents)

    def collect(self, learner: Learner, piece: Remembered, earlier: Tangents | None = None) -> Tangents:
        """Tangents of remembered samples at the current weights, through the head of their task.

        Args:
            learner: the learner.
            piece: the samples.
            earlier: tangents that these will join, whose bases are extended where they are compressed.
        """
        dtype = None if self.storage is None else getattr(torch, self.storage)
        with use_head(learner.model, piece.head):
            return collect(
                learner.model,
                piece.inputs,
                piece.targets,
                parameters=learner.parameters,
                variant=self.variant,
                outputs=learner.outputs,
                tokens=self.tokens,
                dtype=dtype,
                compression=self.compression(learner),
                earlier=earlier,
            )

    def remembering(self, learner: Learner) -> Remembering:
        """What is remembered of a sample."""
        return Remembering(self.variant, learner.outputs, self.tokens)

    def compression(self, learner: Learner) -> Compression:
        """How much of the tangents is kept, and what the choice of representations may assume."""
        tasks = max(learner.tasks_expected or 0, learner.tasks_done + 1)
        return Compression(
            energy=self.energy,
            worst=self.worst_energy,
            rows=tasks * max(1, self.memory_per_task),
            batch_size=(learner.batch_size or TYPICAL_BATCH) if learner.stage == "gradient" else None,
        )

    @property
    def earlier(self) -> Tangents | None:
        """The tangents that are protected so far."""
        return None if self.subspace is None else self.subspace.tangents

    def ensure_subspace(self, learner: Learner) -> Subspace:
        """The protected space, made when first needed."""
        if self.subspace is None:
            self.subspace = Subspace(learner.parameters)
        return self.subspace

    def _install_adapter(self, learner: Learner, subspace: Subspace) -> None:
        adapter = Adapter(
            learner.model,
            subspace,
            learner.parameters,
            batch_size=learner.batch_size or TYPICAL_BATCH,
            foreign=learner.batch_size is None,  # the loop of this library says how large its batches are
        )
        if learner.ranks is not None:
            adapter.average = learner.ranks.average
        if learner.momentum() is not None:  # as in the optimizer: an existing buffer is not started again
            adapter.velocity = torch.zeros_like(adapter.alpha)
        if learner.batch_size is not None and self.input_cache:
            scratch = os.environ.get("ORTHOCL_SCRATCH")
            adapter.cache_inputs(
                learner.current_task.train,
                budget=self.input_cache,
                scratch=Path(scratch) if scratch else None,
            )
            learner.on_batch = lambda index: setattr(adapter, "batch_index", index)
        self.adapter = adapter

    def remove_adapter(self, learner: Learner) -> None:
        """Fold the adapter into the weights and the momentum, and take it off the model."""
        if self.adapter is not None:
            self.peak = self.nbytes() + self.adapter.disk_bytes  # records do not depend on where the cache is
            self.adapter.remove()
            self.adapter, learner.on_batch = None, None
            learner.clean_momentum()  # the adapter held the rest of it

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """Tangents of the earlier outputs have zeros where the model has grown."""
        if self.subspace is not None:
            grow_subspace(self.subspace, learner.model, learner.parameters)
            self.watcher.grow(learner)
        self.warn_of_new_layers(learner, earlier)

    def warn_of_new_layers(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """Say that earlier outputs may depend on new layers, which their stored tangents do not know."""
        new = [name for name in learner.parameters if name not in earlier]
        if new and self.subspace is not None and self.subspace.rank:
            warn(
                f"{len(new)} parameters, such as {new[0]!r}, are new: what {self.name} remembers of earlier tasks does "
                "not hold back their changes, if earlier outputs depend on them. OGD+ takes its tangents again",
            )

    def merge(self, learner: Learner) -> None:
        """Fold what the adapter has learnt so far into the weights; training continues as before."""
        if self.adapter is not None:
            self.adapter.merge()

    def refusal(self, learner: Learner) -> str | None:
        """Refuse a requested adapter that would see only a part of the gradient."""
        if self.engine == "adapter" and not learner.sole:
            return (
                f"{self.name} cannot use its adapter beside other methods, because it does not see their share of the "
                'gradient: use engine="auto" or engine="project"'
            )
        return None

    def memory_warning(self, learner: Learner, inputs: Inputs) -> str | None:
        """Whether the tangents of all expected tasks will fit into the memory now free."""
        if not self.memory_per_task:
            return None
        tasks = learner.tasks_expected or learner.tasks_done + 1
        shown: Any = learner.to_model(inputs)
        if learner.task is not None:  # what is remembered may depend on the form of the targets
            shown = shown, learner.to_model(learner.samples(torch.tensor([0]))[1])
        found = planned(
            learner.model,
            shown,
            tasks=tasks,
            memory_per_task=self.memory_per_task,
            parameters=learner.parameters,
            variant=self.variant,
            energy=self.energy,
            outputs=learner.outputs,
            batch=None if learner.task is None else tuple,
            tokens=self.tokens,
        )
        return found.warning()

    def monitor(self, learner: Learner) -> dict[str, float]:
        """Rank and size of the memory, leak, drift of the tangents, largest stable learning rate."""
        rank, size = (self.subspace.rank, self.subspace.size) if self.subspace else (0, 0)
        found = {"rank": float(rank), "tangents": float(size), **self.watcher.report}
        errors = None if self.subspace is None or not size else self.subspace.errors
        if errors is not None:
            found |= {"error_mean": float(errors.mean()), "error_worst": float(errors.max())}
        return found

    def nbytes(self) -> int:
        """Bytes of memory that the method takes, those of the adapter and its cache included."""
        adapter = 0 if self.adapter is None else self.adapter.nbytes
        return adapter + (0 if self.subspace is None else self.subspace.nbytes) + self.watcher.nbytes()

    def snapshot(self) -> dict[str, Any]:
        """The tensors themselves: memories grow by new tensors, and a copy would double their size."""
        return {
            item.name: export_state(getattr(self, item.name), copy=False)
            for item in fields(self)
            if not item.init
        }

    def peak_bytes(self) -> int:
        """The larger of now and the last task's end, when the adapter and its cache were still there."""
        return max(self.peak, self.nbytes())

    def load_state_dict(self, state: Mapping[str, Any], learner: Learner) -> None:
        """Restore memory and, in the middle of a task, the adapter."""
        if self.adapter is not None:  # a task that failed: the weights keep what they have learnt
            self.remove_adapter(learner)
        self.remembered, self.peak = dict(state["remembered"]), state["peak"]
        self.watcher.load_state_dict(state["watcher"] if "watcher" in state else state["watch"])
        self.subspace = None
        if state["subspace"] is not None:
            self.ensure_subspace(learner).load_state_dict(state["subspace"])
        self.saved_adapter = state["adapter"] or state["saved_adapter"]

    def resume_task(self, learner: Learner) -> None:
        """Put the adapter back on."""
        if self.saved_adapter is not None and self.subspace is not None:
            self._install_adapter(learner, self.subspace)
            if self.adapter is not None:
                self.adapter.load_state_dict(self.saved_adapter)
            self.saved_adapter = None


def _protected_group(learner: Learner) -> dict[str, Any]:
    """The optimizer's settings for the protected parameters: the same for all of them (`why_not_exact`)."""
    protected = next(iter(learner.parameters.values()))
    groups: list[dict[str, Any]] = learner.optimizer.param_groups
    return next(group for group in groups if any(p is protected for p in group["params"]))
