"""LayerProjection: the base of methods that keep each layer's update away from the inputs it has seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from orthocl.errors import warn
from orthocl.methods.base import Gradient, Method
from orthocl.methods.layer_bases import LayerBases, Seen, look, matrix, parts
from orthocl.methods.learner import Learner
from orthocl.methods.memory import draw
from orthocl.methods.moving_buffers import moved_buffers, warn_of_buffers
from orthocl.tangents.recording import readable_layers


@dataclass
class LayerProjection(Method, ABC):
    """Remove from each layer's displacement what lies in a basis of the inputs that the layer has seen.

    Biases are counted as the weight of a further input of 1. Parameters that belong to no such layer (norm layers,
    embeddings) are held fixed after the first task, as in the code of GPM's authors.

    Args:
        memory_per_task: samples whose inputs are used when a task ends; they are not kept.
    """

    projects: ClassVar[bool] = True

    needs_derivatives: ClassVar[bool] = False
    """Whether the basis depends on the layers' output derivatives too, not on their inputs alone."""

    memory_per_task: int = 100
    minimum: ClassVar[Mapping[str, float]] = {"memory_per_task": 0}
    inputs: LayerBases = field(default_factory=LayerBases, init=False, repr=False)

    @property
    def protects(self) -> bool:
        """Whether there is anything to take out of the weights."""
        return bool(self.inputs.bases)

    def inside(self, learner: Learner, displacement: Gradient) -> Gradient:
        """The part of each layer's displacement that old inputs see; all of it for parameters of no such layer."""
        named = dict(zip(learner.parameters, displacement, strict=True))
        found: dict[str, Tensor] = {}
        for weight, basis in self.inputs.bases.items():
            bias = self.inputs.biases.get(weight)
            given = matrix(named, weight, bias, len(basis))
            whole = given.to(torch.promote_types(given.dtype, basis.dtype))
            found |= parts(self.protected(weight, whole).to(given.dtype), weight, bias, named)
        return [found.get(name, part) for name, part in named.items()]

    def protected(self, weight: str, displacement: Tensor) -> Tensor:
        """The part of a layer's displacement [d_W, d_b] that is removed."""
        basis = self.inputs.bases[weight].to(displacement.dtype)
        return (displacement @ basis) @ basis.mT

    def end_task(self, learner: Learner) -> None:
        """Extend the bases by what the task's inputs add."""
        warn_of_buffers(moved_buffers(learner), None)
        piece = draw(learner, self.memory_per_task)
        if not len(piece):
            return
        for seen in look(learner, piece, inputs_only=not self.needs_derivatives):
            self.remember(seen)
        if not self.inputs.directions:
            warn(
                f"{self.name} keeps not one direction of the inputs that its layers have seen: it protects nothing. "
                "Let it keep more (its threshold or ratio), or look for layers whose inputs are all zero"
            )

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """More outputs of a layer see the same inputs; of a new layer no input has been seen, so it may move freely."""
        if not self.inputs.bases:
            return
        for layer in readable_layers(learner.model, learner.parameters):
            weight, bias = layer.names.get("weight"), layer.names.get("bias")
            if weight is not None and weight not in earlier and weight not in self.inputs.bases:
                like = learner.parameters[weight]
                width = like[0].numel() + (bias is not None)
                self.inputs.bases[weight] = like.detach().new_zeros(1, width, 0)
                if bias is not None:
                    self.inputs.biases[weight] = bias

    def weights_changed(self, learner: Learner) -> str | None:
        """The samples are not kept: their inputs to layers behind the first cannot be looked at again."""
        if not self.inputs.directions:
            return None
        return (
            f"what {self.name} protects are the inputs that layers saw with the earlier weights, and behind a changed "
            "layer they are others now. Change weights inside the block, before it ends"
        )

    @abstractmethod
    def remember(self, seen: Seen) -> None:
        """Change the basis of one layer by what it has seen of the task."""

    def monitor(self, learner: Learner) -> dict[str, float]:
        """Protected directions: for each input direction as many as the layer has outputs."""
        sizes = {name: len(p) for name, p in learner.parameters.items()}
        rank = sum(b.shape[2] * sizes[weight] for weight, b in self.inputs.bases.items())
        return {"rank": float(rank), "input_directions": float(self.inputs.directions)}
