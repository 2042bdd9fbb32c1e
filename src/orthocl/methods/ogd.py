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

from orthocl.errors import TrainingError, UnsupportedError, warn
from orthocl.methods.base import Gradient, Method, later, no_complex_weights
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered, draw
from orthocl.methods.protection_report import Watch
from orthocl.nets.heads import use_head
from orthocl.nets.inputs import Inputs, each_tensor
from orthocl.storage import export_state
from orthocl.tangents.adapter import Adapter
from orthocl.tangents.collect import Tangents, collect
from orthocl.tangents.compress import Compression
from orthocl.tangents.growing import grow_subspace
from orthocl.tangents.planner import planned
from orthocl.tangents.projector import Projector
from orthocl.tangents.remembering import TOKENS, Remembering, Variant
from orthocl.tangents.subspace import Subspace

TYPICAL_BATCH = 32
"""Batch size that the choice of engine assumes if the loop gives none."""


@dataclass
class OGD(Method):
    """Project each step onto the orthogonal complement of the remembered tangents.

    At the end of a task, the gradients v of the remembered outputs are added to the span E; from then on a step d
    of the optimizer counts as d - Pi_E d, so that <v, step> = 0: to first order, remembered outputs stay as they are.
    For SGD, with or without momentum, these are the steps along projected gradients g - Pi_E g.

    Paper: section 3.2, Theorem 2; Algorithm 1 without the refresh.

    Args:
        memory_per_task: samples remembered per task.
        variant: which output of a sample is remembered: "gtl" the logit of its label, "ave" the mean of all
            logits, "all" every logit (one tangent each: the only one that protects all outputs), "tokens" the
            log-probabilities of the targets at a few positions (words of a sequence, pixels of an image).
        engine: "project" takes the protected part out of the weights after every step. "adapter" trains through the
            tangent adapter: the same steps, cheaper, under plain SGD. Between steps nothing may then read or change the
            weights past the model, and gradients must not be clipped or penalized; `learner.merge()` makes the weights
            complete. "auto" takes the adapter only in the loop of this library, where that is so, and where it is
            cheaper.
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
        self._projector: Projector | None = None

    def begin_task(self, learner: Learner) -> None:
        """Install the adapter where it is worthwhile."""
        self.compression(learner)  # an impossible share is rejected before anything is learnt
        self.watcher.begin(learner)
        self.peak, self._projector = 0, None
        # Asked in the first task too, where there is nothing to adapt yet: a wrong request is refused before training.
        takes = self._takes_the_adapter(learner)
        if takes and self.subspace is not None and self.subspace.rank:
            self._install_adapter(learner, self.subspace)

    def _takes_the_adapter(self, learner: Learner) -> bool:
        reason = why_not_adapter(learner)
        if self.engine == "adapter" and reason is not None:
            raise UnsupportedError(f'{self.name} cannot use its adapter, because {reason}: use engine="auto"')
        ours = learner.batch_size is not None and learner.every == 1
        return self.engine == "adapter" or (self.engine == "auto" and ours and reason is None)

    @property
    def protects(self) -> bool:
        """Whether there is anything to take out of the weights; the adapter leaves nothing to take out."""
        return self.adapter is None and self.subspace is not None and self.subspace.rank > 0

    def inside(self, learner: Learner, displacement: Gradient) -> Gradient:
        """The part in the span of the remembered tangents: Pi_E d."""
        if self.subspace is None:
            return super().inside(learner, displacement)
        if self._projector is None:
            self._projector = Projector(self.subspace, displacement[0].dtype)
        return self._projector.inside(displacement)

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
            # The loss reaches weights past their layers, which the adapter cannot see. Taking it off removes all that
            # has leaked since the task began; from here on the weights are projected.
            self.remove_adapter(learner)

    def end_task(self, learner: Learner) -> None:
        """Measure how well the memory was protected, then remember the task."""
        self.remove_adapter(learner)
        self._projector = None
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
            batch_size=learner.batch_size if why_not_adapter(learner) is None else None,
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
            anchor=[learner.anchor[name] for name in learner.parameters],
        )
        momentum = _momentum(learner)
        if momentum is not None:  # what earlier tasks have left in the optimizer moves the weights too
            adapter.continue_from(momentum)
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

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """Tangents of the earlier outputs have zeros where the model has grown."""
        self._projector = None
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

    def weights_changed(self, learner: Learner) -> str | None:
        """Measure what the stored tangents still protect: without the samples they cannot be taken again."""
        if self.subspace is None or not self.subspace.rank:
            return None
        found = self.watcher.drifts(learner, self.subspace, self.remembering(learner))
        share = sum(one.outside for one in found) / max(1, len(found))
        return (
            f"on average {share:.1%} of today's gradients of remembered outputs lie outside what {self.name} protects. "
            "Change weights inside the block, before it ends, or use OGD+, which keeps the samples and takes their "
            "tangents again"
        )

    def merge(self, learner: Learner) -> None:
        """Fold what the adapter has learnt so far into the weights; training continues as before."""
        if self.adapter is not None:
            self.adapter.merge()

    def refusal(self, learner: Learner) -> str | None:
        """Refuse complex weights."""
        return no_complex_weights(learner)

    def memory_warning(self, learner: Learner, inputs: Inputs) -> str | None:
        """Whether the tangents of all expected tasks will fit into the memory now free."""
        if not self.memory_per_task:
            return None
        tasks = learner.tasks_expected or learner.tasks_done + 1
        shown: Any = learner.to_model(inputs)
        if learner.task is not None:  # what is remembered may depend on the form of the targets
            targets = learner.samples(torch.tensor([0]))[1]
            shown = shown, each_tensor(targets, lambda part: part.to(learner.device))
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
        self._projector = None
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


def why_not_adapter(learner: Learner) -> str | None:
    """Why the steps on this learner's weights cannot be taken through the tangent adapter, or None if they can.

    >>> from torch import nn
    >>> from orthocl import attach
    >>> model = nn.Linear(2, 1)
    >>> why_not_adapter(attach(OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)))
    >>> why_not_adapter(attach(OGD(), model, torch.optim.Adam(model.parameters())))
    'Adam scales each weight by itself'
    """
    if not learner.sole:
        return "it would not see the other methods' share of the gradient"
    if learner.ranks is not None:
        return "several processes train the model"
    if len(learner.optimizers) > 1 or type(learner.optimizer) is not torch.optim.SGD:
        return f"{type(learner.optimizer).__name__} scales each weight by itself"
    protected = {id(parameter) for parameter in learner.parameters.values()}
    groups = [g for g in learner.optimizer.param_groups if any(id(p) in protected for p in g["params"])]
    if any(group["weight_decay"] != 0 or group["maximize"] for group in groups):
        return "it takes only the plain steps of SGD, without weight decay"
    keys = ("lr", "momentum", "nesterov", "dampening")
    if any(group[key] != groups[0][key] for group in groups for key in keys):
        return "protected parameters have different learning rates or momentum"
    return None


def _protected_group(learner: Learner) -> dict[str, Any]:
    """The optimizer's settings for the protected parameters: the same for all of them (`why_not_adapter`)."""
    protected = next(iter(learner.parameters.values()))
    groups: list[dict[str, Any]] = learner.optimizer.param_groups
    return next(group for group in groups if any(p is protected for p in group["params"]))


def _momentum(learner: Learner) -> list[Tensor] | None:
    """Momentum of the protected parameters, zero where there is none; None if there is none at all yet."""
    found = [learner.optimizer.state.get(p, {}).get("momentum_buffer") for p in learner.protected]
    if all(buffer is None for buffer in found):
        return None
    return [torch.zeros_like(p) if b is None else b for p, b in zip(learner.protected, found, strict=True)]
