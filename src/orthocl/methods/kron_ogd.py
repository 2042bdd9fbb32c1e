"""Kronecker-OGD: between OGD and GPM.

Relatives: Duncker, Driscoll, Shenoy, Sahani, Sussillo. Organizing Recurrent Network Dynamics by Task-computation to
Enable Continual Learning. NeurIPS 2020 (projects from both sides, which protects more); Kao, Jensen, van de Ven,
Bernacchia, Hennequin. Natural Continual Learning. NeurIPS 2021 (a Kronecker-factored metric instead of a projector).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from orthocl.methods.gpm import GPM
from orthocl.methods.layer_bases import LayerBases, Seen
from orthocl.methods.learner import Learner
from orthocl.tangents.growing import padded


@dataclass
class KronOGD(GPM):
    """Remove from each layer's step what meets old inputs AND old output derivatives: d <- d - V V^T d U U^T.

    With the same bases U of inputs and V of output derivatives three methods differ in what they protect:

        span { V C_n U^T }   within   span(V) x span(U)   within   R^o x span(U)
            OGD                       Kronecker-OGD                     GPM

    Args:
        memory_per_task: samples that are used when a task ends; they are not kept.
        threshold: share of the energy of inputs, and of that of derivatives, that the bases hold after each task.
        increase: added to the threshold for every further task, up to 1.
    """

    name: ClassVar[str] = "kron-ogd"
    needs_derivatives: ClassVar[bool] = True

    minimum: ClassVar[Mapping[str, float]] = {**GPM.minimum}
    outputs: LayerBases = field(default_factory=LayerBases, init=False, repr=False)

    def protected(self, weight: str, displacement: Tensor) -> Tensor:
        """The part of a layer's displacement that is removed."""
        basis = self.outputs.bases[weight].to(displacement.dtype)
        return basis @ (basis.mT @ super().protected(weight, displacement))

    def grow(self, learner: Learner, earlier: Mapping[str, tuple[int, ...]]) -> None:
        """Derivatives by new outputs are zero for earlier samples."""
        super().grow(learner, earlier)
        for weight, inputs in self.inputs.bases.items():
            size = len(learner.parameters[weight]) // len(inputs)
            known = self.outputs.bases.get(weight, inputs.new_zeros(len(inputs), size, 0))
            self.outputs.bases[weight] = padded(known, (size, known.shape[2]), axis=1)

    def remember(self, seen: Seen) -> None:
        """Extend both bases of one layer."""
        super().remember(seen)
        self.outputs.grow(seen.names, seen.derivatives, self.share)

    def monitor(self, learner: Learner) -> dict[str, float]:
        """Protected directions: pairs of an input and an output direction."""
        pairs = [
            basis.shape[0] * basis.shape[2] * self.outputs.bases[weight].shape[2]
            for weight, basis in self.inputs.bases.items()
        ]
        return {"rank": float(sum(pairs)), "input_directions": float(self.inputs.directions)}
