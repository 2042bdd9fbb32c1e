"""The retention certificate of a learner: its remembered samples and those that the user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from orthocl.errors import DataError, TrainingError
from orthocl.methods.base import Method
from orthocl.methods.certificate import Certificate, certify
from orthocl.methods.composite import Composite
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered, SampleMemory
from orthocl.methods.protection_report import Watch
from orthocl.nets.heads import find_heads
from orthocl.streams.arrays import DatasetSplit
from orthocl.streams.base import Split, Task
from orthocl.tangents.collect import remembered_outputs
from orthocl.tangents.retention import Probe, Weights

Samples = Probe | Task | Split | Dataset[Any] | tuple[Tensor, Tensor]


def learner_certificate(
    learner: Learner,
    probes: Mapping[str, Samples] | None = None,
    *,
    before: Weights | None = None,
    samples: int = 512,
    confidence: float = 0.95,
) -> Certificate:
    """What `learner.certificate` returns; see there."""
    if learner.task is not None:
        raise TrainingError(
            "a certificate compares the weights before and after a task: leave the `with learner.learning(data)` block "
            "first"
        )
    start = learner.started_from if before is None else before
    if not start:
        raise TrainingError(
            "nothing was learnt with this learner yet, so that there is no change to certify: learn a task first, or "
            "give before=model.state_dict() of an earlier time"
        )
    now = learner.model.state_dict()
    missing = [name for name in start if name not in now]
    if missing:
        raise DataError(
            f"the model has no weights {missing[0]!r} any more: give before= a state of the model as it is"
        )
    chosen: list[Probe] = _remembered(learner) + _named(learner, probes or {}, samples)
    found = certify(
        learner.model,
        start,
        {name: now[name] for name in start},
        chosen,
        method=learner.method.name,
        protect=_selector(learner.method),
        confidence=confidence,
    )
    measured = learner.method.monitor(learner)
    leaks = [value for name, value in measured.items() if name.rpartition(".")[2] == "leak"]
    drift = {name: value for name, value in measured.items() if "drift_" in name}
    outside = [
        name
        for name, parameter in learner.model.named_parameters()
        if name not in learner.parameters
        and name in start
        and not torch.equal(start[name].to(parameter.device), parameter)
    ]
    return replace(
        found,
        leak=max(leaks, default=None),
        drift=drift,
        stored=learner.method.nbytes(),
        unprotected=tuple(outside),
    )


def _remembered(learner: Learner) -> list[Probe]:
    """The remembered samples of all tasks but the latest, whose outputs are meant to have changed."""
    latest = learner.latest_task
    return [
        Probe(f"task {piece.task}", piece.inputs, piece.targets, piece.head, remembered=True)
        for piece in _pieces(learner.method)
        if piece.task != latest and len(piece)
    ]


def _pieces(method: Method) -> Sequence[Remembered]:
    if isinstance(method, Composite):
        found = {piece.task: piece for member in method.members.values() for piece in _pieces(member)}
        return list(found.values())
    memory, watch = getattr(method, "memory", None), getattr(method, "watch", None)
    if isinstance(memory, SampleMemory):
        return list(memory)
    return [piece for piece, _ in watch.probes.values()] if isinstance(watch, Watch) else []


def _selector(method: Method) -> Any:
    variant = getattr(method, "variant", None)
    if variant is None or not method.projects:
        return None
    return lambda outputs, targets: remembered_outputs(outputs, targets, variant)


def _named(learner: Learner, probes: Mapping[str, Samples], most: int) -> list[Probe]:
    heads = find_heads(learner.model)
    found = []
    for name, data in probes.items():
        if isinstance(data, Probe):
            found.append(replace(data, name=name))
            continue
        head = data.head if isinstance(data, Task) else name if heads and name in heads.names else None
        inputs, targets = _samples(data, most)
        found.append(Probe(name, learner.to_model(inputs), targets.to(learner.device), head))
    return found


def _samples(data: Any, most: int) -> tuple[Tensor, Tensor]:
    """At most so many samples, drawn with a fixed seed."""
    if isinstance(data, tuple):
        inputs, targets = data
        index = _drawn(len(inputs), most)
        return inputs[index], targets[index]
    split = data.test if isinstance(data, Task) else data if isinstance(data, Split) else DatasetSplit(data)
    return split.samples(_drawn(len(split), most))


def _drawn(count: int, most: int) -> Tensor:
    if count <= most:
        return torch.arange(count)
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:most]
