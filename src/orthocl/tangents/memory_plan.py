"""A plan: what a memory costs, layer by layer and path by path, what fits a budget and what to change.

Paths are the ways of taking a step that `planner` prices.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isqrt
from typing import Literal

from orthocl.formatting import size_text
from orthocl.tangents import plan_text
from orthocl.tangents.blocks import Kind
from orthocl.tangents.cholesky import PANEL as CHOLESKY_PANEL
from orthocl.tangents.dense_rows import plain_steps

Path = Literal["dense", "project", "adapter"]
# The paths that this library takes; "dense" is only for comparison.
OURS: tuple[Path, ...] = ("project", "adapter")


@dataclass(frozen=True)
class LayerPlan:
    """The share of one layer.

    Args:
        name: its first parameter's name, without ".weight".
        parameters: protected weights and biases.
        kind: how its tangents are stored.
        adapted: whether the adapter path puts an adapter on it (else its weights are moved directly).
        bytes_per_row: stored per tangent.
        projection: multiply-adds per tangent of one projection.
        step: multiply-adds per tangent of one training step on the adapter path.
        inputs: numbers of one input position, where they are known.
        sorted: whether the adapter path keeps a copy of its factors sorted by output: the last layer, where each
            tangent has one output.
        copied: numbers per tangent that the adapter path copies, in another order.
        fixed_bytes: stored regardless of the number of tangents: the bases of a compressed layer.
        fixed_madds: multiply-adds of one projection whatever the number of tangents.
    """

    name: str
    parameters: int
    kind: Kind
    adapted: bool
    bytes_per_row: float
    projection: int
    step: int
    inputs: int = 0
    sorted: bool = False
    copied: int = 0
    fixed_bytes: int = 0
    fixed_madds: int = 0


@dataclass(frozen=True)
class Cost:
    """Bytes held during training and multiply-adds per training step, besides those of plain SGD."""

    nbytes: int
    madds: int


@dataclass(frozen=True, repr=False)
class Plan:
    """What a memory of `rows` tangents costs.

    Args:
        rows: tangents in memory after the last task.
        rows_per_sample: tangents per remembered sample (the number of outputs for variant "all").
        tasks: tasks of the stream.
        memory_per_task: samples remembered per task.
        batch_size: samples per step.
        layers: one entry per stored block.
        costs: path -> cost.
        cache_bytes: what caching the first layer's input kernel for a whole task would add to the adapter
            path; 0 if unknown or not applicable.
        cache_saves: multiply-adds per step that the cache saves.
        budget: bytes that may be used, or None.
        energy: share of the tangents' energy that is kept.
        error_mean, error_worst: relative errors of the example inputs' tangents where those were measured.
        probe_bytes: of the samples and tangents that are kept apart to measure drift; part of the costs.
        explicit: parameters whose gradients are computed sample by sample and stored whole -> bytes of one tangent.
    """

    rows: int
    rows_per_sample: int
    tasks: int
    memory_per_task: int
    batch_size: int
    layers: tuple[LayerPlan, ...]
    costs: Mapping[Path, Cost]
    cache_bytes: int = 0
    cache_saves: int = 0
    budget: int | None = None
    energy: float = 1.0
    error_mean: float | None = None
    error_worst: float | None = None
    probe_bytes: int = 0
    explicit: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        price = (
            f"{self.choice}, {size_text(self.costs[self.choice].nbytes)}" if self.choice else "nothing fits"
        )
        return f"Plan({self.rows:,} tangents of {self.parameters:,} weights: {price})"

    def __str__(self) -> str:
        return plan_text.as_text(self)

    def _repr_html_(self) -> str:
        return plan_text.as_html(self)

    @property
    def parameters(self) -> int:
        """Protected weights."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def choice(self) -> Path | None:
        """The cheapest step among this library's paths that fit the budget, or None if none does."""
        fitting = [path for path in OURS if self.budget is None or self.costs[path].nbytes <= self.budget]
        return min(fitting, key=lambda path: self.costs[path].madds, default=None)

    @property
    def leanest(self) -> int:
        """Bytes of the path that needs the least."""
        return min(self.costs[path].nbytes for path in OURS)

    @property
    def caches(self) -> bool:
        """Whether the budget leaves room for the input kernel too."""
        if self.cache_bytes == 0 or self.choice != "adapter":
            return False
        return self.budget is None or self.costs["adapter"].nbytes + self.cache_bytes <= self.budget

    @property
    def explicit_steps(self) -> float:
        """Plain steps that it takes to differentiate each sample of a task on its own, where that is needed."""
        return plain_steps(self.memory_per_task, self.rows_per_sample) if self.explicit else 0.0

    def largest_memory(self) -> int:
        """The most samples per task that fit the budget (on the leanest path)."""
        if self.budget is None:
            return self.memory_per_task
        linear = sum(layer.bytes_per_row for layer in self.layers) + 4 * CHOLESKY_PANEL
        # linear m + 4 m^2 <= budget: the Cholesky factor is half of a float64 matrix, and a little.
        left = self.budget - self.probe_bytes - sum(layer.fixed_bytes for layer in self.layers)
        rows = (isqrt(int(linear * linear) + 16 * left) - int(linear)) // 8 if left > 0 else 0
        return int(rows) // (self.tasks * self.rows_per_sample)

    def advice(self) -> list[str]:
        """What to change if nothing fits the budget; empty if something does."""
        if self.choice is not None or self.budget is None:
            return []
        leanest = self.leanest
        found = [
            f"needs {size_text(leanest)}, {size_text(leanest - self.budget)} more than the budget of "
            f"{size_text(self.budget)}"
        ]
        most = self.largest_memory()
        if most:
            found.append(f"remember {most} samples per task instead of {self.memory_per_task}")
        if self.rows_per_sample > 1:
            found.append(f"remember one output per sample (variant 'gtl') instead of {self.rows_per_sample}")
        largest = max(self.layers, key=lambda layer: layer.bytes_per_row)
        found.append("store factors in bfloat16: half of their bytes")
        found.append(
            f"leave {largest.name} unprotected and frozen: {size_text(int(largest.bytes_per_row * self.rows))} less"
        )
        return found

    def warning(self, available: int | None = None) -> str | None:
        """A sentence if the leanest path does not fit in the memory that is available now, else None."""
        free = available_bytes() if available is None else available
        leanest = self.leanest
        if free is None or leanest <= free:
            return None
        return (
            f"remembering {self.memory_per_task} samples for each of {self.tasks} tasks will need "
            f"{size_text(leanest)}, and {size_text(free)} are available: "
            f"`orthocl.plan(...)` says what to change"
        )


def available_bytes() -> int | None:
    """Memory now available to programs on this machine, or None where the system does not say."""
    with (
        suppress(OSError),
        open("/proc/meminfo") as lines,
    ):  # Linux: includes what the page cache would release
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
