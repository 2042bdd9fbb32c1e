"""LayerBases: orthonormal bases of what layers have seen, for methods that protect whole layers instead of outputs.

For a layer z = W a + b the inputs are counted as [a, 1] where the bias is protected, so that weight and bias are one
matrix [W, b], and the output derivatives as they are. Both come from the recorded sums of outer products that tangents
are made of (`tangents/collect.py`): convolutions bring one input per position, each group has its own bases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from orthocl.errors import UnsupportedError
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered
from orthocl.nets.heads import use_head
from orthocl.tangents.blocks import Patches, accurate, extended
from orthocl.tangents.collect import read_layers
from orthocl.tangents.range_finder import spectrum
from orthocl.tangents.remembering import fitting_variant

# Positions of a layer's inputs that are used; of more, a random subset, as in the GPM authors' code.
MOST_ROWS = 20_000


@dataclass(frozen=True)
class Seen:
    """What one layer has seen: inputs (groups, n, i or i + 1) and output derivatives (groups, n, o)."""

    names: tuple[str, ...]
    inputs: Tensor
    derivatives: Tensor


def look(learner: Learner, piece: Remembered, *, inputs_only: bool) -> list[Seen]:
    """What the layers see of remembered samples at the current weights, through the head of their task.

    Args:
        learner: a model and its method.
        piece: the samples.
        inputs_only: the derivatives are not used, so that samples may influence each other's outputs.

    Raises:
        UnsupportedError: if not one layer can be read, because nothing would be protected.
    """
    variant = fitting_variant(piece.targets)
    with use_head(learner.model, piece.head):
        layers = read_layers(
            learner.model,
            piece.inputs,
            piece.targets,
            parameters=learner.parameters,
            variant=variant,
            outputs=learner.outputs,
            inputs_only=inputs_only,
        )
    if not layers:
        raise UnsupportedError(
            f"{learner.method.name} protects what linear and convolutional layers have seen, and none of the protected "
            "parameters' layers could be read. "
            + (
                "Protect such layers, or use ogd"
                if inputs_only
                else "Either there is none, or the model mixes samples (batch statistics in eval mode, such as "
                "BatchNorm with track_running_stats=False): the derivatives of a single sample do not exist then. "
                "Use gpm, which needs the inputs alone"
            )
        )
    return [_seen(layer) for layer in layers]


def _seen(layer: Patches) -> Seen:
    inputs, derivatives = layer.sides(slice(None), accurate(layer.deltas.dtype))
    if layer.bias:
        inputs = torch.cat([inputs, torch.ones_like(inputs[..., :1])], 3)
    flat = [part.transpose(0, 1).flatten(1, 2) for part in (inputs, derivatives)]
    count = flat[0].shape[1]
    if count > MOST_ROWS:
        chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:MOST_ROWS].to(
            flat[0].device
        )
        flat = [part[:, chosen] for part in flat]
    return Seen(layer.names, flat[0], flat[1])


@dataclass
class LayerBases:
    """One basis per layer, (groups, width, k), by the name of its weight."""

    bases: dict[str, Tensor] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    """Weight -> bias, where the bias is protected too."""

    def grow(self, names: Sequence[str], rows: Tensor, share: float) -> Tensor:
        """Extend a layer's basis until it holds a share of the rows' energy; returns what the new directions hold.

        Args:
            names: weight and, where it is protected, bias.
            rows: (groups, n, width).
            share: of the rows' squared norm, at least.
        """
        if len(names) == 2:
            self.biases[names[0]] = names[1]
        known = self.bases.get(names[0], rows.new_zeros(len(rows), rows.shape[2], 0)).to(rows.dtype)
        rest = rows - (rows @ known) @ known.mT
        allowed = (1 - share) * float(rows.double().square().sum())
        found = spectrum(rest, allowed / 8)
        values = found.values.double()
        # Largest first; groups share one size, so what one leaves out is counted in all.
        left = values.sum(0).flip(0).cumsum(0).flip(0) + found.unresolved
        count = int((left > allowed + 1e-12 * float(values.sum())).sum())
        self.bases[names[0]] = extended(known, found.vectors[..., :count])
        return values[:, : self.bases[names[0]].shape[2] - known.shape[2]]

    @property
    def directions(self) -> int:
        """Directions of all layers' bases together."""
        return sum(basis.shape[0] * basis.shape[2] for basis in self.bases.values())

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and JSON values."""
        return {"bases": dict(self.bases), "biases": dict(self.biases)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.bases, self.biases = dict(state["bases"]), dict(state["biases"])


def matrix(gradient: Mapping[str, Tensor], weight: str, bias: str | None, groups: int) -> Tensor:
    """A layer's gradient as [g_W, g_b], (groups, o, i or i + 1)."""
    flat = gradient[weight].reshape(groups, gradient[weight].shape[0] // groups, -1)
    return flat if bias is None else torch.cat([flat, gradient[bias].reshape(groups, -1, 1)], 2)


def parts(found: Tensor, weight: str, bias: str | None, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `matrix`."""
    if bias is None:
        return {weight: found.reshape(like[weight].shape)}
    return {
        weight: found[..., :-1].reshape(like[weight].shape),
        bias: found[..., -1].reshape(like[bias].shape),
    }
