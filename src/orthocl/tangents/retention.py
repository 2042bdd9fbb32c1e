"""What a change of the weights did to outputs: measured, to first order, and bounded along the path between them.

Write w(s) = w + s d for the straight path from the weights before to the weights after, g(s) for the outputs there,
stacked into one vector. With slopes g'(s_k) at points 0 = s_0 < ... < s_K = 1,

    g(1) - g(0) = g'(0) + [T - g'(0)] + [g(1) - g(0) - T],   T the trapezoidal sum of the slopes.

The first term is the first-order change: what projection makes zero. If L is the largest |g'(s_k+1) - g'(s_k)| /
(s_k+1 - s_k), the second is at most L / 2: the curvature term. The third, the remainder, is measured. So

    |g(1) - g(0)| <= |g'(0)| + L / 2 + |remainder|

always holds for the samples it is computed on, by the triangle inequality. With the true Lipschitz constant of g'
instead of the measured L the remainder is not needed (Taylor); a small remainder says that the points are close
enough for L to be believed, and more points are taken while it is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from orthocl.errors import DataError, UnsupportedError
from orthocl.nets.heads import find_heads, use_head
from orthocl.tangents.collect import differentiable

Weights = Mapping[str, Tensor]
Outputs = Callable[[object], Tensor]
FEWEST_POINTS = 4
MOST_POINTS = 16
SMALL = 0.1
"""Share of the bound that the remainder may have before more points are taken."""
BATCH = 64


@dataclass(frozen=True)
class Probe:
    """Samples on which outputs are compared.

    Args:
        name: what reports call them, such as "task 1".
        inputs: for the model.
        targets: class labels, or None where there are none.
        head: head of a multi-head model.
        remembered: whether the method has used these samples, so that they are not independent of the weights.
    """

    name: str
    inputs: Tensor
    targets: Tensor | None = None
    head: str | None = None
    remembered: bool = False

    def __post_init__(self) -> None:
        if not len(self.inputs):
            raise DataError(f"the samples {self.name!r} are empty: give at least one")
        if self.targets is not None and len(self.targets) != len(self.inputs):
            raise DataError(
                f"{self.name!r}: {len(self.inputs)} inputs but {len(self.targets)} targets: give one target per input"
            )


@dataclass(frozen=True)
class Change:
    """Change of some outputs, as a share of their size before: |g(1) - g(0)| / |g(0)| and the terms of its bound.

    Args:
        measured: the change itself.
        first_order: |g'(0)|, what a projection that keeps its promise makes zero.
        curvature: L / 2.
        remainder: what the measured slopes do not explain.
        statistics: change by buffers, such as batch statistics, on their own.
        bound: the sum of the last four: never below `measured`, up to rounding.
    """

    measured: float
    first_order: float
    curvature: float
    remainder: float
    statistics: float
    bound: float


@dataclass(frozen=True)
class Comparison:
    """Outputs of a probe before and after, and what is known about the way between.

    Args:
        before: outputs, (samples, outputs).
        after: likewise.
        at_new_statistics: outputs before, with the buffers of after.
        slopes: g'(s_k), (points, samples, outputs), at equal distances.
    """

    before: Tensor
    after: Tensor
    at_new_statistics: Tensor
    slopes: Tensor

    def change(self, select: Callable[[Tensor], Tensor] = lambda outputs: outputs) -> Change:
        """The change of all outputs, or of a linear selection of them such as one logit per sample."""
        size = max(float(select(self.before).norm()), 1e-300)
        slopes = torch.stack([select(slope) for slope in self.slopes])
        intervals = len(slopes) - 1
        trapezoid = (slopes[1:] + slopes[:-1]).sum(0) / (2 * intervals)
        lipschitz = max(float((b - a).norm()) * intervals for a, b in pairwise(slopes))
        rest = select(self.after) - select(self.at_new_statistics) - trapezoid
        statistics = float((select(self.at_new_statistics) - select(self.before)).norm()) / size
        terms = (float(slopes[0].norm()) / size, lipschitz / 2 / size, float(rest.norm()) / size, statistics)
        measured = float((select(self.after) - select(self.before)).norm()) / size
        return Change(measured, *terms, sum(terms))


@dataclass(frozen=True)
class Path:
    """The way between two sets of weights of one model.

    Args:
        start: parameters before, those that moved.
        step: their displacement.
        buffers_before: floating buffers before, those that moved.
        buffers_after: likewise, after.
    """

    start: Weights
    step: Weights
    buffers_before: Weights
    buffers_after: Weights

    @staticmethod
    def between(model: nn.Module, before: Weights, after: Weights) -> Path:
        """From state dicts of the model; what they share is compared, and a key that one lacks is an error."""
        wrong = sorted(set(before) ^ set(after))
        if wrong:
            raise DataError(
                f"the weights before and after have different names, such as {wrong[0]!r}: compare two states of the "
                "same model, with adapters merged or attached in both"
            )
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        moved = [name for name in before if name in parameters and not torch.equal(before[name], after[name])]
        kept = [
            name
            for name in before
            if name in buffers
            and before[name].is_floating_point()
            and not torch.equal(before[name], after[name])
        ]
        return Path(
            {name: before[name].detach() for name in moved},
            {name: after[name].detach() - before[name].detach() for name in moved},
            {name: before[name].detach() for name in kept},
            {name: after[name].detach() for name in kept},
        )

    @property
    def length(self) -> float:
        """|d|."""
        squares = [float(part.double().square().sum()) for part in self.step.values()]
        return math.sqrt(sum(squares))

    def at(self, share: float) -> dict[str, Tensor]:
        """Parameters at a share of the way, as leaves that gradients reach."""
        return {
            name: (start + share * self.step[name]).detach().requires_grad_()
            for name, start in self.start.items()
        }


def compare(model: nn.Module, path: Path, probe: Probe, outputs: Outputs | None = None) -> Comparison:
    """Outputs of a probe at both ends of a path, and their slopes along it, the model in eval mode.

    Args:
        model: the model; its own weights stay as they are.
        path: from `Path.between`; weights that did not move are the model's own.
        probe: the samples.
        outputs: what the model returns -> (samples, outputs); by default a tensor, or the attribute `logits`.
    """
    read = outputs or tensor_outputs
    heads = find_heads(model)
    head = probe.head if probe.head is not None and heads is not None else None
    with _comparable(model), use_head(model, head or (heads.selected if heads is not None else "")):
        ends = [
            _outputs(model, {**path.at(share), **buffers}, probe.inputs, read)
            for share, buffers in (
                (0.0, path.buffers_before),
                (1.0, path.buffers_after),
                (0.0, path.buffers_after),
            )
        ]
        count = FEWEST_POINTS
        while True:
            slopes = torch.stack(
                [_slope(model, path, k / count, probe.inputs, read, ends[0]) for k in range(count + 1)]
            )
            found = Comparison(ends[0], ends[1], ends[2], slopes)
            change = found.change()
            if change.remainder <= SMALL * change.bound or count >= MOST_POINTS:
                return found
            count *= 2


def tensor_outputs(found: object) -> Tensor:
    """The outputs of a model that returns a tensor, or an object or dict with `logits`; one row per sample."""
    if isinstance(found, Mapping):
        found = found.get("logits", found)
    found = getattr(found, "logits", found)
    if not isinstance(found, Tensor):
        raise UnsupportedError(
            f"expected the model to return a tensor or an object with `logits`, got a {type(found).__name__}: wrap it "
            "in a module that returns the outputs to compare"
        )
    return found.reshape(len(found), -1)


@contextmanager
def _comparable(model: nn.Module) -> Iterator[None]:
    """Eval mode, gradients on, and attention by formulas that can be differentiated twice."""
    with differentiable(model, {}), sdpa_kernel(SDPBackend.MATH):
        yield


def _outputs(model: nn.Module, weights: Weights, inputs: Tensor, read: Outputs) -> Tensor:
    with torch.no_grad():
        parts = [read(functional_call(model, dict(weights), (batch,))) for batch in inputs.split(BATCH)]
    return torch.cat(parts).detach().double()


def _slope(model: nn.Module, path: Path, share: float, inputs: Tensor, read: Outputs, like: Tensor) -> Tensor:
    """J d at one point of the path: the vector-Jacobian product is linear in its vector; differentiate that."""
    if not path.step:
        return torch.zeros_like(like)
    parts = []
    for batch in inputs.split(BATCH):
        leaves = path.at(share)
        found = read(functional_call(model, {**leaves, **path.buffers_after}, (batch,)))
        vector = torch.zeros_like(found, requires_grad=True)
        gradient = torch.autograd.grad(
            found, list(leaves.values()), vector, create_graph=True, allow_unused=True
        )
        terms = [
            (part * path.step[name]).sum()
            for name, part in zip(leaves, gradient, strict=True)
            if part is not None
        ]
        total = torch.stack(terms).sum() if terms else found.sum() * 0
        (slope,) = torch.autograd.grad(total, vector, allow_unused=True)
        parts.append(torch.zeros_like(found) if slope is None else slope)
    return torch.cat(parts).detach().double()
