"""Snapshots: the weights after each fit, and what they say about how each task was forgotten."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from orthocl.methods.certifiable import changeable
from orthocl.methods.certificate import are_classes, upper_limit
from orthocl.methods.learner import Learner
from orthocl.methods.over_time import OverTime, Remaining
from orthocl.tangents.retention import Probe, Weights, every_output, outputs_at

Snapshots = dict[int, dict[str, Tensor]]
"""Number of a task -> the trainable weights and statistics after its fit, in main memory."""


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """What training can change, as it is now, in main memory."""
    return {name: value.cpu() for name, value in changeable(model).items()}


def over_time(learner: Learner, probes: Sequence[Probe], snapshots: Snapshots, confidence: float) -> OverTime:
    """How well the samples of each probe were known after each fit.

    A probe called "task 3" belongs to the third fit: what came before is left out, and what it lost is counted from
    there.
    """
    fits = {number: _fitting(learner.model, weights) for number, weights in snapshots.items()}
    rows = [_remaining(learner, probe, fits, confidence) for probe in probes]
    return OverTime(tuple(snapshots), tuple(rows))


def _fitting(model: nn.Module, weights: Weights) -> dict[str, Tensor] | None:
    """The weights on the model's devices; None if they are those of another model."""
    now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if any(name not in now or now[name].shape != value.shape for name, value in weights.items()):
        return None
    return {name: value.to(now[name]) for name, value in weights.items()}


def _remaining(
    learner: Learner, probe: Probe, fits: Mapping[int, Weights | None], confidence: float
) -> Remaining:
    own = re.fullmatch(r"task (\d+)", probe.name)
    learnt = int(own[1]) if own else 0
    name = f"{probe.name}, remembered" if probe.remembered else probe.name
    read = partial(every_output, outputs=learner.outputs)
    found = [
        None if weights is None or number < learnt else outputs_at(learner.model, weights, probe, read)
        for number, weights in fits.items()
    ]
    known = [outputs for outputs in found if outputs is not None]
    labels = probe.targets
    if not known or not isinstance(labels, Tensor) or not are_classes(known[0], labels):
        values = [None if one is None else float((one - known[0]).norm() / known[0].norm()) for one in found]
        return Remaining(name, len(probe), tuple(values), classes=False)
    labels = labels.to(known[0].device)
    right = [None if one is None else one.argmax(1) == labels for one in found]
    values = [None if one is None else float(one.double().mean()) for one in right]
    whole = Remaining(name, len(probe), tuple(values), classes=True)
    if fits.get(learnt) is None:
        return whole
    first, last = (right[list(fits).index(number)] for number in (learnt, list(fits)[-1]))
    if not isinstance(first, Tensor) or not isinstance(last, Tensor):
        return whole
    lost = int((first & ~last).sum())
    limit = None if probe.remembered else upper_limit(lost, len(probe), confidence)
    return Remaining(name, len(probe), tuple(values), True, lost, limit)
