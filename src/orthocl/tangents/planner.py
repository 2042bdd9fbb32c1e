"""Planner: what a memory will cost, before training.

One sample's shapes are sent through the collection (`survey`), so the plan knows what will be stored for each layer;
the rest is the arithmetic of `costs`. No memory is needed, so models on torch's meta device can be planned too.
With energy < 1 and several example inputs, those are actually collected, and their measured errors are part of the
plan. Three ways of taking an OGD step are priced, at the memory's final size:

    dense     the published algorithm: an orthonormal basis of m explicit gradients, two passes over it a step
    project   factors and Cholesky factor; the weights are projected after each step (any optimizer)
    adapter   factors and inverse; linear layers carry the tangent adapter (SGD, momentum, Nesterov)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from orthocl.errors import DataError, SettingsError
from orthocl.nets.heads import find_heads
from orthocl.nets.inputs import Inputs, Targets, each_tensor, layout, sample_count, take, tensors
from orthocl.nets.modes import evaluating
from orthocl.nets.outputs import Outputs, read_outputs
from orthocl.streams.batches import LABELS, SplitBatch, default_split
from orthocl.tangents.blocks import Block, Factored, Patches
from orthocl.tangents.cholesky import PANEL as CHOLESKY_PANEL
from orthocl.tangents.collect import collect
from orthocl.tangents.compress import Compression
from orthocl.tangents.costs import LayerShape, Step, projection_madds, step_of, step_on
from orthocl.tangents.drift import probe_count
from orthocl.tangents.memory_plan import Cost, LayerPlan, Path, Plan
from orthocl.tangents.remembering import TOKENS, Remembering, Variant
from orthocl.tangents.survey import Survey, survey
from orthocl.tangents.tangents import Tangents

# Example inputs whose tangents are actually compressed, to measure the errors.
MEASURED = 32
_PLANNED: WeakKeyDictionary[nn.Module, tuple[object, Plan]] = WeakKeyDictionary()


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
    if batch is None and not _is_batch(example_input):
        raise SettingsError(
            "expected example_input as a batch of inputs, such as torch.zeros(1, 3, 32, 32), or a tuple or dict of "
            f"tensors, got {example_input!r:.80}"
        )
    inputs, targets = _example(model, example_input, batch)
    if sample_count(inputs) == 0:
        raise DataError("expected an example input with at least one sample, got none")
    protected = protected_parameters(model) if parameters is None else dict(parameters)
    if not protected:
        raise SettingsError("nothing to plan: the model has no parameters that require gradients")
    rules = Compression(energy=energy, rows=tasks * memory_per_task, batch_size=batch_size)
    found, logits, errors = _surveyed(
        model, inputs, targets, protected, Remembering(variant, outputs, tokens), rules
    )
    rows = tasks * memory_per_task * logits
    item = next(iter(protected.values())).element_size()
    owners = {id(weight): module for module in model.modules() for weight in module.parameters(False)}
    pixels = sum(part[0].numel() for part in tensors(inputs))
    layers = tuple(
        _layer(block, owners.get(id(protected[block.names[0]])), batch_size, logits, pixels, found.last)
        for block in found.blocks
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
        probes, found.explicit,
    )  # fmt: skip


def planned(
    model: nn.Module, shown: Inputs, *, tasks: int, parameters: Mapping[str, nn.Parameter], **settings: Any
) -> Plan:
    """As `plan` without a budget or an input kernel, for a model that is planned again and again as tasks arrive.

    Args:
        model: the network.
        shown: an example of its inputs, with their targets if `settings` has a `batch`.
        tasks: tasks of the stream so far.
        parameters: the protected parameters.
        settings: those of `plan`.
    """
    heads = find_heads(model)
    shapes = [(name, parameter.shape, parameter.dtype) for name, parameter in parameters.items()]
    examples = [shown] if isinstance(shown, Tensor | dict) else shown
    # Not the settings themselves: a function among them may hold the model.
    asked = [(name, s if isinstance(s, str | int | float) else id(s)) for name, s in settings.items()]
    now = [shapes, [layout(part) for part in examples], None if heads is None else heads.selected, asked]
    before, found = _PLANNED.get(model, (None, None))
    if found is None or before != now:
        found = plan(model, shown, tasks=tasks, parameters=parameters, **settings)
        _PLANNED[model] = now, found
    return found if found.tasks == tasks else _with_tasks(found, tasks)


def _with_tasks(found: Plan, tasks: int) -> Plan:
    """The same plan for another number of tasks."""
    rows = tasks * found.memory_per_task * found.rows_per_sample
    item = found.costs["dense"].nbytes // (found.rows * found.parameters)
    probes = found.probe_bytes // found.tasks * tasks
    costs = _costs(found.layers, rows, item, probes)
    return replace(found, rows=rows, tasks=tasks, costs=costs, probe_bytes=probes)


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
        "project": Cost(factors + cholesky, projection + 2 * rows**2),
        # Besides those: one triangle of the inverse, the starting weights, and factors in another order.
        "adapter": Cost(
            factors + cholesky + (rows * (rows + 1) // 2 + weights + copied) * item,
            sum(layer.step for layer in layers) * rows + bases + rows**2,
        ),
    }


def _is_batch(example: object) -> bool:
    if isinstance(example, tuple):
        return bool(example) and all(isinstance(part, Tensor) for part in example)
    return isinstance(example, Tensor | Mapping)


def _example(model: nn.Module, example: Inputs, batch: SplitBatch | None) -> tuple[Inputs, Targets | None]:
    if batch is not None:
        return batch(example)
    if not isinstance(example, Tensor | tuple) and any(name in example for name in LABELS):
        return default_split(model)(example)
    return (example if isinstance(example, Tensor | tuple) else dict(example)), None


def _surveyed(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets | None,
    protected: Mapping[str, nn.Parameter],
    remember: Remembering,
    rules: Compression,
) -> tuple[Survey, int, Tensor | None]:
    """What is to be priced, rows of a sample, and errors where they were measured."""
    real = not next(iter(protected.values())).is_meta
    try:
        found = survey(model, inputs, protected, remember, rules, targets)
    except Exception:  # control flow that needs values, tensors that are not buffers: a model may do anything
        if not real:
            raise
        found = None
    if real and not rules.exact and sample_count(inputs) > 1:
        tangents, count = _collected(model, inputs, targets, protected, remember, rules), MEASURED
    elif found is None:
        one = take(inputs, slice(0, 1))
        tangents, count = _collected(model, one, targets, protected, remember, Compression()), 1
    else:
        return found, found.blocks[0].rows, None
    explicit = {} if found is None else found.explicit
    rows = tangents.rows // min(count, sample_count(inputs))
    return Survey(list(tangents.blocks), None, explicit), rows, tangents.errors


def _collected(
    model: nn.Module,
    inputs: Inputs,
    targets: Targets | None,
    protected: Mapping[str, nn.Parameter],
    remember: Remembering,
    rules: Compression,
) -> Tangents:
    """Tangents of a few real samples."""
    few = take(inputs, slice(0, MEASURED))
    count = sample_count(few)
    if targets is None:
        with evaluating(model), torch.no_grad():
            targets = remember.stand_in(read_outputs(model, few, None, remember.outputs))
    return collect(
        model,
        few,
        each_tensor(targets, lambda part: part[:count]),
        parameters=protected,
        variant=remember.variant,
        outputs=remember.outputs,
        tokens=remember.tokens,
        compression=rules,
    )


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
