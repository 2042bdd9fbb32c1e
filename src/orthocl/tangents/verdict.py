"""What a plan means: times of a plain SGD step, and what to protect instead if that is too many."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from orthocl.formatting import size_text
from orthocl.tangents.memory_plan import LayerPlan, Plan

AFFORDABLE = 1.5
"""Times of a plain SGD step that are worth no word of warning."""


@dataclass(frozen=True)
class PlainStep:
    """One step of plain SGD.

    Args:
        madds: multiply-adds, forward and backward.
        seconds: on this machine, or None if it was not timed.
    """

    madds: int
    seconds: float | None = None


def plain_step(model: nn.Module, example: Tensor, batch_size: int, *, timed: bool = True) -> PlainStep:
    """Count, and time, a step of plain SGD on a batch of zeros; the model is left as it was.

    Args:
        model: the network.
        example: inputs, of which the first counts.
        batch_size: samples in the batch.
        timed: whether to measure seconds too: the median of three steps by the clock of this process.

    >>> plain_step(nn.Linear(10, 2), torch.zeros(1, 10), batch_size=4, timed=False)
    PlainStep(madds=240, seconds=None)
    """
    with FlopCounterMode(display=False) as counter:
        _forward(model, example[:1])
    madds = 3 * batch_size * counter.get_total_flops() // 2  # the backward pass is two products for each one
    if not timed:
        return PlainStep(madds)
    batch = example[:1].expand(batch_size, *example.shape[1:])
    seconds = [_timed(model, batch) for _ in range(4)]
    return PlainStep(madds, median(seconds[1:]))


def _forward(model: nn.Module, inputs: Tensor) -> Tensor:
    modes = [(module, module.training) for module in model.modules()]
    try:
        outputs = model.eval()(inputs)  # so that running statistics stay
    finally:
        for module, training in modes:
            module.training = training
    return outputs if isinstance(outputs, Tensor) else next(iter(outputs))


def _timed(model: nn.Module, batch: Tensor) -> float:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    start = time.process_time()
    torch.autograd.grad(_forward(model, batch).square().mean(), weights, allow_unused=True)
    return time.process_time() - start


def times_plain(found: Plan, plain: PlainStep, layers: Sequence[LayerPlan] | None = None) -> float:
    """How many plain steps a protected step costs, on the plan's choice.

    Args:
        found: the plan.
        plain: a plain step.
        layers: only these are protected; all by default.
    """
    path = found.choice or "project"
    if layers is None:
        return 1 + found.costs[path].madds / max(plain.madds, 1)
    rows = found.rows
    each = sum(layer.step if path == "adapter" else layer.projection for layer in layers)
    solve = rows**2 if path == "adapter" else 2 * rows**2
    extra = each * rows + sum(layer.fixed_madds for layer in layers) + solve
    return 1 + extra / max(plain.madds, 1)


def cheap_part(found: Plan, plain: PlainStep, most: float = AFFORDABLE) -> tuple[LayerPlan, ...]:
    """The layers that can be protected for at most this many plain steps: the most weights for their price first."""

    def price(layer: LayerPlan) -> float:
        return max(layer.step, layer.projection) / max(layer.parameters, 1)

    chosen: list[LayerPlan] = []
    for layer in sorted(found.layers, key=price):
        if times_plain(found, plain, [*chosen, layer]) <= most:
            chosen.append(layer)
    return tuple(layer for layer in found.layers if layer in chosen)


def moment_text(seconds: float) -> str:
    """A time that may be short.

    >>> moment_text(0.00123), moment_text(0.823), moment_text(2.5), moment_text(130.0)
    ('1.2 ms', '820 ms', '2.5 s', '130 s')
    """
    number, unit = (1000 * seconds, "ms") if seconds < 1 else (seconds, "s")
    return f"{float(f'{number:.2g}'):g} {unit}"


def verdict(found: Plan, plain: PlainStep) -> list[str]:
    """Whether a plan is affordable, and what to protect if it is not, in sentences."""
    path = found.choice
    if path is None:
        return []
    times = times_plain(found, plain)
    seconds = ""
    if plain.seconds is not None:
        took, takes = moment_text(plain.seconds), moment_text(plain.seconds * times)
        seconds = f": about {takes}, where a plain one took {took} here"
    size = size_text(found.costs[path].nbytes)
    lines = [f"fits in {size}; a step is {times:.2g} times the arithmetic of a plain one{seconds}"]
    if times <= AFFORDABLE:
        return lines
    part = cheap_part(found, plain)
    if part and len(part) < len(found.layers):
        weights = sum(layer.parameters for layer in part)
        names = ", ".join(layer.name for layer in part[:8]) + (", ..." if len(part) > 8 else "")
        nbytes = int(sum(layer.bytes_per_row * found.rows + layer.fixed_bytes for layer in part))
        lines.append(
            f"instead, protect {names} ({weights / found.parameters:.0%} of the weights, {size_text(nbytes)} and the "
            f"matrix of the memory) and freeze the rest: {times_plain(found, plain, part):.2g} times"
        )
    if found.energy == 1.0:
        lines.append("or keep 99 % of the tangents' energy in two small bases a layer: --energy 0.99")
    return lines
