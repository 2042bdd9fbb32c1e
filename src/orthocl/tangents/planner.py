"""Planner: what a memory will cost, before training.

One sample's shapes are sent through the collection (`survey`), so the plan knows what will be stored for each layer;
the rest is the arithmetic of `costs`. No memory is needed, so models on torch's meta device can be planned too.
With energy < 1 and several example inputs, those are actually collected, and their measured errors are part of the
plan. Three ways of taking an OGD step are priced, at the memory's final size:

    dense     the published algorithm: an orthonormal basis of m explicit gradients, two passes over it a step
    project   factors and Cholesky factor; the update is projected (any optimizer)
    adapter   factors and inverse; linear layers carry the tangent adapter (SGD, momentum, Nesterov)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isqrt
from typing import Literal

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError
from orthocl.formatting import size_text
from orthocl.nets.heads import find_heads
from orthocl.nets.inputs import Inputs, Targets, each_tensor, sample_count, take, tensors
from orthocl.nets.outputs import Outputs, read_outputs
from orthocl.streams.batches import LABELS, SplitBatch, default_split
from orthocl.tangents import plan_text
from orthocl.tangents.blocks import Block, Factored, Kind, Patches
from orthocl.tangents.cholesky import PANEL as CHOLESKY_PANEL
from orthocl.tangents.collect import collect
from orthocl.tangents.compress import Compression
from orthocl.tangents.costs import LayerShape, Step, projection_madds, step_of, step_on
from orthocl.tangents.drift import probe_count
from orthocl.tangents.remembering import TOKENS, Remembering, Variant
from orthocl.tangents.survey import survey

Path = Literal["dense", "project", "adapter"]
# The paths that this library takes; "dense" is only for comparison.
OURS: tuple[Path, ...] = ("project", "adapter")
# Example inputs whose tangents are actually compressed, to measure the errors.
MEASURED = 32


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


def plan(
    model: nn.Module,
    example_input: Inputs,
    *,
    tasks: int,
    memory_per_task: int,
    batch_size: int = 32,
    parameters: Mapping[str, nn.Parameter] | None = None,
    variant: Variant = "gtl",
    budget: int | None = None,
    samples_per_task: int | None = None,
    energy: float = 1.0,
    outputs: Outputs = None,
    batch: SplitBatch | None = None,
    tokens: int = TOKENS,
) -> Plan:
    """What remembering `memory_per_task` samples of each of `tasks` tasks will cost.

    Args:
        model: the network, with any head selected.
        example_input: a batch of inputs, a tensor, a tuple or a dict; with `batch`, or where a dict has "labels", a
            batch as the loader gives it. Only the shape of its first sample counts, unless tangents are compressed.
        tasks: tasks of the stream.
        memory_per_task: samples remembered per task.
        batch_size: samples per training step.
        parameters: the protected parameters; by default all that require gradients, except output heads.
        variant: which outputs are remembered.
        budget: bytes that the memory may take.
        samples_per_task: training samples of a task, to price the cached input kernel.
        energy: share of the tangents' energy to keep; 1.0 is exact.
        outputs: (model, inputs) -> the outputs that are meant, or a dict of such functions, as for `attach`.
        batch: a batch -> inputs and targets, as for `attach`.
        tokens: positions per sample for variant "tokens".

    >>> from orthocl.nets import MLP
    >>> found = plan(MLP((1, 32, 32), outputs=10), torch.zeros(1, 1, 32, 32), tasks=15, memory_per_task=100)
    >>> found.rows, found.choice, found.costs["adapter"].nbytes / found.costs["dense"].nbytes < 0.04
    (1500, 'adapter', True)
    """
    for name, value in (("tasks", tasks), ("memory_per_task", memory_per_task), ("batch_size", batch_size)):
        if value < 1:
            raise SettingsError(f"{name} must be at least 1, got {value}")
    inputs, targets = _example(model, example_input, batch)
    if sample_count(inputs) == 0:
        raise DataError("expected an example input with at least one sample, got none")
    protected = protected_parameters(model) if parameters is None else dict(parameters)
    if not protected:
        raise SettingsError("nothing to plan: the model has no parameters that require gradients")
    rules = Compression(energy=energy, rows=tasks * memory_per_task, batch_size=batch_size)
    blocks, last, logits, errors = _blocks(
        model, inputs, targets, protected, Remembering(variant, outputs, tokens), rules
    )
    rows = tasks * memory_per_task * logits
    item = next(iter(protected.values())).element_size()
    owners = {id(weight): module for module in model.modules() for weight in module.parameters(False)}
    pixels = sum(part[0].numel() for part in tensors(inputs))
    layers = tuple(
        _layer(block, owners.get(id(protected[block.names[0]])), batch_size, logits, pixels, last)
        for block in blocks
    )
    stored = int(sum(layer.bytes_per_row for layer in layers)) * memory_per_task * logits
    probes = tasks * probe_count(memory_per_task, stored) * pixels * item
    if rules.exact:
        probes += tasks * stored * probe_count(memory_per_task, stored) // memory_per_task
    costs = _costs(layers, rows, item, probes)
    columns = rows // logits  # rows of one sample share their input
    cacheable = layers[0].adapted and layers[0].inputs == pixels
    samples = samples_per_task if samples_per_task is not None and cacheable else 0
    return Plan(
        rows, logits, tasks, memory_per_task, batch_size, layers, costs,
        samples * columns * item, batch_size * pixels * columns if samples else 0, budget, energy,
        None if errors is None else float(errors.mean()), None if errors is None else float(errors.max()),
        probes,
    )  # fmt: skip


def _costs(layers: Sequence[LayerPlan], rows: int, item: int, probes: int) -> dict[Path, Cost]:
    """What each path costs with so many tangents of weights of `item` bytes, and the bytes of the probes of drift."""
    weights = sum(layer.parameters for layer in layers)
    factors = int(sum(layer.bytes_per_row * rows + layer.fixed_bytes for layer in layers)) + probes
    cholesky = 4 * rows * (rows + CHOLESKY_PANEL)
    bases = sum(layer.fixed_madds for layer in layers)
    projection = sum(layer.projection for layer in layers) * rows + bases
    copied = sum(layer.copied for layer in layers) * rows
    return {
        "dense": Cost(rows * weights * item, 2 * rows * weights),
        "project": Cost(factors + cholesky, 2 * projection + 2 * rows**2),
        # Besides those: one triangle of the inverse, the starting weights, and factors in another order.
        "adapter": Cost(
            factors + cholesky + (rows * (rows + 1) // 2 + weights + copied) * item,
            sum(layer.step for layer in layers) * rows + bases + rows**2,
        ),
    }


def _example(model: nn.Module, example: Inputs, batch: SplitBatch | None) -> tuple[Inputs, Targets | None]:
    if batch is not None:
        return batch(example)
    if not isinstance(example, Tensor | tuple) and any(name in example for name in LABELS):
        return default_split(model)(example)
    return (example if isinstance(example, Tensor | tuple) else dict(example)), None


def _blocks(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets | None,
    protected: Mapping[str, nn.Parameter],
    remember: Remembering,
    rules: Compression,
) -> tuple[list[Block], set[str] | None, int, Tensor | None]:
    """Blocks to price, the weights with one output a row (None: to be seen in the block), rows a sample, errors."""
    real = not next(iter(protected.values())).is_meta
    if real and not rules.exact and sample_count(inputs) > 1:
        return _collected(model, inputs, targets, protected, remember, rules)
    try:
        blocks, last = survey(model, inputs, protected, remember, rules, targets)
    except Exception:  # control flow that needs values, tensors that are not buffers: a model may do anything
        if not real:
            raise
        return _collected(model, take(inputs, slice(0, 1)), targets, protected, remember, Compression())
    return blocks, last, blocks[0].rows, None


def _collected(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets | None,
    protected: Mapping[str, nn.Parameter],
    remember: Remembering,
    rules: Compression,
) -> tuple[list[Block], None, int, Tensor | None]:
    """Blocks of a few real samples."""
    few = take(inputs, slice(0, MEASURED))
    count = sample_count(few)
    if targets is None:
        with torch.no_grad():
            targets = remember.stand_in(read_outputs(model, few, None, remember.outputs))
    tangents = collect(
        model,
        few,
        each_tensor(targets, lambda part: part[:count]),
        parameters=protected,
        variant=remember.variant,
        outputs=remember.outputs,
        tokens=remember.tokens,
        compression=rules,
    )
    return list(tangents.blocks), None, tangents.rows // count, tangents.errors


def _layer(
    block: Block, module: nn.Module | None, batch_size: int, logits: int, pixels: int, last: set[str] | None
) -> LayerPlan:
    name = block.names[0].removesuffix(".weight").removesuffix(".bias")
    projection, fixed = projection_madds(block)
    if last is not None and isinstance(block, Factored):
        way: Step = "by output" if block.names[0] in last else step_on(module, block.parameters, batch_size)
    else:
        way = step_of(block, module, batch_size, next(iter(block.tensors().values())).dtype)[0]
    step, inputs = projection, 0
    if isinstance(block, Patches):
        inputs = block.width[0]
    copied = 0
    if isinstance(block, Factored):
        inputs = block.inputs.shape[1]
        copied = {"adapter": 0, "by output": inputs}.get(way, block.deltas.shape[1])
    if way == "adapter" and isinstance(module, nn.Linear):
        shape = LayerShape(inputs, module.out_features, 1, inputs, block.parameters)
        step = shape.adapter(batch_size, first=inputs == pixels)
    if way == "by output":
        step = 2 * inputs
    bases = block.shared_bytes
    return LayerPlan(
        name, block.parameters, block.kind, way == "adapter", (block.nbytes - bases) / block.rows, projection, step,
        inputs, way == "by output", copied, bases, fixed,
    )  # fmt: skip


def protected_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is protected by default: all that is trained, except output heads."""
    found = find_heads(model)
    heads = set() if found is None else {parameter for _, parameter in found.head_parameters()}
    return {n: p for n, p in model.named_parameters() if p.requires_grad and p not in heads}


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
