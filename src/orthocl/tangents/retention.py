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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from orthocl.errors import DataError
from orthocl.nets.heads import find_heads, use_head
from orthocl.nets.inputs import Inputs, Targets, sample_count, take
from orthocl.nets.outputs import Outputs, read_outputs
from orthocl.tangents.collect import differentiable

Weights = Mapping[str, Tensor]
Read = Callable[[nn.Module, Inputs, Any], Tensor]
"""(model, inputs, targets) -> the numbers to compare, (samples, outputs)."""
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
        inputs: for the model: a tensor, a tuple or a dict of them.
        targets: class labels, or None where there are none.
        head: head of a multi-head model.
        remembered: whether the method has used these samples, so that they are not independent of the weights.
    """

    name: str
    inputs: Inputs
    targets: Targets | None = None
    head: str | None = None
    remembered: bool = False

    def __post_init__(self) -> None:
        if not len(self):
            raise DataError(f"the samples {self.name!r} are empty: give at least one")
        if self.targets is not None and sample_count(self.targets) != len(self):
            raise DataError(
                f"{self.name!r}: {len(self)} inputs but {sample_count(self.targets)} targets: give one target per input"
            )

    def __len__(self) -> int:
        return sample_count(self.inputs)

    def batches(self) -> Iterator[tuple[Inputs, Targets | None]]:
        """Inputs and targets, a few samples at a time."""
        for start in range(0, len(self), BATCH):
            rows = slice(start, start + BATCH)
            yield take(self.inputs, rows), None if self.targets is None else take(self.targets, rows)


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

    def change(self) -> Change:
        """The change of the outputs and the terms of its bound."""
        size = max(float(self.before.norm()), 1e-300)
        intervals = len(self.slopes) - 1
        trapezoid = (self.slopes[1:] + self.slopes[:-1]).sum(0) / (2 * intervals)
        lipschitz = max(float((b - a).norm()) * intervals for a, b in pairwise(self.slopes))
        rest = self.after - self.at_new_statistics - trapezoid
        statistics = float((self.at_new_statistics - self.before).norm()) / size
        first_order = float(self.slopes[0].norm()) / size
        terms = (first_order, lipschitz / 2 / size, float(rest.norm()) / size, statistics)
        return Change(float((self.after - self.before).norm()) / size, *terms, sum(terms))


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


class _Read(nn.Module):
    """A model and what is read of it as one module, so that its weights can be replaced in a call."""

    def __init__(self, model: nn.Module, read: Read):
        super().__init__()
        self.model, self.read = model, read

    def forward(self, inputs: Inputs, targets: Targets | None) -> Tensor:
        return self.read(self.model, inputs, targets)

    def at(self, weights: Weights, inputs: Inputs, targets: Targets | None) -> Tensor:
        named = {f"model.{name}": value for name, value in weights.items()}
        found: Tensor = functional_call(self, named, (inputs, targets))
        return found


def every_output(model: nn.Module, inputs: Inputs, targets: Any, outputs: Outputs = None) -> Tensor:
    """All outputs that are meant, one row per sample, those of several names side by side."""
    found = read_outputs(model, inputs, targets, outputs)
    parts = [found] if isinstance(found, Tensor) else list(found.values())
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1)


def compare(model: nn.Module, path: Path, probe: Probe, read: Read = every_output) -> Comparison:
    """Outputs of a probe at both ends of a path, and their slopes along it, the model in eval mode.

    Args:
        model: the model; its own weights stay as they are.
        path: from `Path.between`; weights that did not move are the model's own.
        probe: the samples.
        read: what to compare; by default every output.
    """
    whole = _Read(model, read)
    with _comparable(model), use_head(model, _head(model, probe)):
        ends = [
            _outputs(whole, {**path.at(share), **buffers}, probe)
            for share, buffers in (
                (0.0, path.buffers_before),
                (1.0, path.buffers_after),
                (0.0, path.buffers_after),
            )
        ]
        count = FEWEST_POINTS
        while True:
            slopes = [_slope(whole, path, k / count, probe) for k in range(count + 1)]
            found = Comparison(ends[0], ends[1], ends[2], torch.stack(slopes))
            change = found.change()
            if change.remainder <= SMALL * change.bound or count >= MOST_POINTS:
                return found
            count *= 2


def outputs_at(model: nn.Module, weights: Weights, probe: Probe, read: Read = every_output) -> Tensor:
    """Outputs of a probe with other weights, the model in eval mode; weights that are not named are the model's own."""
    with _comparable(model), use_head(model, _head(model, probe)):
        return _outputs(_Read(model, read), weights, probe)


def _head(model: nn.Module, probe: Probe) -> str:
    heads = find_heads(model)
    head = probe.head if probe.head is not None or heads is None else heads.selected
    return head or ""


@contextmanager
def _comparable(model: nn.Module) -> Iterator[None]:
    """Eval mode, gradients on, and attention by formulas that can be differentiated twice."""
    with differentiable(model, {}), sdpa_kernel(SDPBackend.MATH):
        yield


def _outputs(whole: _Read, weights: Weights, probe: Probe) -> Tensor:
    with torch.no_grad():
        parts = [whole.at(weights, inputs, targets) for inputs, targets in probe.batches()]
    return torch.cat(parts).detach().double()


def _slope(whole: _Read, path: Path, share: float, probe: Probe) -> Tensor:
    """J d at one point of the path: the vector-Jacobian product is linear in its vector; differentiate that."""
    parts = []
    for inputs, targets in probe.batches():
        leaves = path.at(share)
        found = whole.at({**leaves, **path.buffers_after}, inputs, targets)
        vector = torch.zeros_like(found, requires_grad=True)
        gradient: Sequence[Tensor | None] = (
            torch.autograd.grad(found, list(leaves.values()), vector, create_graph=True, allow_unused=True)
            if leaves and found.requires_grad
            else ()
        )
        terms = [
            (part * path.step[name]).sum()
            for name, part in zip(leaves, gradient, strict=False)
            if part is not None and part.requires_grad
        ]
        slope = torch.autograd.grad(torch.stack(terms).sum(), vector)[0] if terms else torch.zeros_like(found)
        parts.append(slope)
    return torch.cat(parts).detach().double()
