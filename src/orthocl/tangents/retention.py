"""What a change of the weights did to outputs: measured, and taken apart along the path between them.

Write w(s) = w + s d for the straight path from the weights before to the weights after, g(s) for the outputs there,
stacked into one vector. With slopes g'(s_k) at points 0 = s_0 < ... < s_K = 1,

    g(1) - g(0) = g'(0) + [T - g'(0)] + [g(1) - g(0) - T],   T the trapezoidal sum of the slopes.

The first term is the first-order change: what projection makes zero. If L is the largest |g'(s_k+1) - g'(s_k)| /
(s_k+1 - s_k), the second is at most L / 2: the curvature term. The third, the remainder, is measured. So

    |g(1) - g(0)| <= |g'(0)| + L / 2 + |remainder|

always holds for the samples it is computed on, by the triangle inequality: the remainder contains the measured
change, so that the sum explains a change and limits nothing that was not measured. With the true Lipschitz constant
of g' instead of the measured L the remainder is not needed (Taylor); a small remainder says that the points are close
enough for L to be believed, and more points are taken while it is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from orthocl.errors import DataError
from orthocl.nets.heads import find_heads, use_head
from orthocl.nets.inputs import Inputs, Targets, sample_count, take, tensors
from orthocl.nets.outputs import Outputs, read_outputs
from orthocl.tangents.collect import differentiable

Weights = Mapping[str, Tensor]
Read = Callable[[nn.Module, Inputs, Any], Tensor]
"""(model, inputs, targets) -> the numbers to compare, (samples, outputs)."""
FEWEST_POINTS = 4
MOST_POINTS = 16
SMALL = 0.1
"""Share of the total that the remainder may have before more points are taken."""
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
        for what, values in (("inputs", self.inputs), ("targets", self.targets)):
            if values is not None and not all(bool(part.isfinite().all()) for part in tensors(values)):
                raise DataError(
                    f"the {what} of {self.name!r} hold values that are infinite or not numbers: nothing can be "
                    "certified on them. Leave these samples out"
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
    """Change of some outputs, as a share of their size before: |g(1) - g(0)| / |g(0)| and the terms that explain it.

    Args:
        measured: the change itself.
        first_order: |g'(0)|, what a projection that keeps its promise makes zero.
        curvature: L / 2.
        remainder: what the measured slopes do not explain.
        statistics: change by buffers, such as batch statistics, on their own.
        total: the sum of the last four: never below `measured`, up to rounding. It is no bound on anything unseen.
    """

    measured: float
    first_order: float
    curvature: float
    remainder: float
    statistics: float
    total: float


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
        """The change of the outputs and its terms."""
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
        end: the same parameters after.
        buffers_before: floating buffers before, those that moved.
        buffers_after: likewise, after.
    """

    start: Weights
    end: Weights
    buffers_before: Weights
    buffers_after: Weights

    @staticmethod
    def between(model: nn.Module, before: Weights, after: Weights) -> Path:
        """From state dicts of the model.

        Raises:
            DataError: names or shapes that differ, and weights that are infinite or not numbers.
        """
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
        for name in before:
            if before[name].shape != after[name].shape:
                raise DataError(
                    f"{name!r} has the shape {tuple(before[name].shape)} before and {tuple(after[name].shape)} after: "
                    "compare two states of the same model"
                )
        for when, weights in (("before", before), ("after", after)):
            # A buffer may be infinite by intention, such as a mask: only one that moved is compared.
            for name in [*(name for name in before if name in parameters), *kept]:
                if not bool(weights[name].isfinite().all()):
                    raise DataError(
                        f"{name!r} {when} the change holds values that are infinite or not numbers: a model that has "
                        "diverged is not certified. Compare weights from before it diverged"
                    )
        return Path(
            {name: before[name].detach() for name in moved},
            {name: after[name].detach() for name in moved},
            {name: before[name].detach() for name in kept},
            {name: after[name].detach() for name in kept},
        )

    @cached_property
    def step(self) -> Weights:
        """d, the displacement."""
        return {name: self.end[name] - start for name, start in self.start.items()}

    @property
    def length(self) -> float:
        """|d|."""
        squares = [float(part.double().square().sum()) for part in self.step.values()]
        return math.sqrt(sum(squares))

    def at(self, share: float) -> dict[str, Tensor]:
        """Parameters at a share of the way, as leaves that gradients reach; the ends are the weights themselves."""
        if share in (0, 1):
            parts = self.end if share else self.start
        else:
            parts = {name: start + share * self.step[name] for name, start in self.start.items()}
        return {name: part.detach().clone().requires_grad_() for name, part in parts.items()}


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

    Raises:
        DataError: outputs or slopes that are infinite or not numbers.
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
        for when, found in zip(("before", "after", "with the statistics of after"), ends, strict=True):
            _check_finite(found, f"the outputs {when} on {probe.name!r}")
        count = FEWEST_POINTS
        while True:
            slopes = torch.stack([_slope(whole, path, k / count, probe) for k in range(count + 1)])
            _check_finite(slopes, f"the derivatives of the outputs on {probe.name!r}")
            compared = Comparison(ends[0], ends[1], ends[2], slopes)
            change = compared.change()
            if change.remainder <= SMALL * change.total or count >= MOST_POINTS:
                return compared
            count *= 2


def outputs_at(model: nn.Module, weights: Weights, probe: Probe, read: Read = every_output) -> Tensor:
    """Outputs of a probe with other weights, the model in eval mode; weights that are not named are the model's own."""
    with _comparable(model), use_head(model, _head(model, probe)):
        return _outputs(_Read(model, read), weights, probe)


def _head(model: nn.Module, probe: Probe) -> str:
    heads = find_heads(model)
    head = probe.head if probe.head is not None or heads is None else heads.selected
    return head or ""


def _check_finite(values: Tensor, what: str) -> None:
    if not bool(values.isfinite().all()):
        raise DataError(
            f"{what} are infinite or not numbers: the change cannot be computed, so nothing is certified. Check that "
            "the model gives finite outputs on these samples with both sets of weights"
        )


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
