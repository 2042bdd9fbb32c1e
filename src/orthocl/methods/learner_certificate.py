"""The retention certificate of a learner: its remembered samples and those that the user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from orthocl.errors import DataError, TrainingError
from orthocl.formatting import size_text
from orthocl.methods.base import Method
from orthocl.methods.certificate import Certificate, certify
from orthocl.methods.composite import Composite
from orthocl.methods.learner import Learner
from orthocl.methods.memory import Remembered, SampleMemory
from orthocl.methods.protection_report import Watch
from orthocl.nets.heads import find_heads
from orthocl.nets.inputs import Inputs, Targets, each_tensor, sample_count, take
from orthocl.streams.base import Split, Task
from orthocl.streams.batches import as_split
from orthocl.tangents.retention import Probe, Read, Weights

Samples = Probe | Task | Split | Dataset[Any] | DataLoader[Any] | tuple[Inputs, Targets]


def learner_certificate(
    learner: Learner,
    probes: Mapping[str, Samples] | None = None,
    *,
    before: Weights | None = None,
    samples: int = 512,
    confidence: float = 0.95,
    together: bool = True,
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
    chosen: list[Probe] = remembered_probes(learner) + named_probes(learner, probes or {}, samples)
    found = certify(
        learner.model,
        start,
        _now(learner, start),
        chosen,
        method=learner.method.name,
        protected=_protected(learner),
        outputs=learner.outputs,
        confidence=confidence,
        together=together,
    )
    measured = learner.method.monitor(learner)
    leaks = [value for name, value in measured.items() if name.rpartition(".")[2] == "leak"]
    drift = {name: value for name, value in measured.items() if "drift_" in name}
    return replace(
        found,
        leak=max(leaks, default=None),
        protects=_protects(learner.method),
        drift=drift,
        stored=learner.method.nbytes(),
        unprotected=tuple(_unprotected(learner, start)),
        notes=found.notes + _large_memory(learner),
    )


def _large_memory(learner: Learner) -> tuple[str, ...]:
    """A note if the memory takes more than the model."""
    stored = learner.method.nbytes()
    own = sum(part.numel() * part.element_size() for part in learner.model.parameters())
    if stored <= own:
        return ()
    settings = learner.method.settings()
    ways = {
        "memory_per_task": "remember fewer samples (memory_per_task=)",
        "energy": "compress them (energy=0.99)",
    }
    known = " or ".join(way for name, way in ways.items() if name in settings)
    return (
        f"The memory is larger than the model ({size_text(stored)} against {size_text(own)})"
        + (f": {known} if that is too much." if known else "."),
    )


def _protects(method: Method) -> str:
    """What a leak is measured against, where the memory is compressed with losses."""
    members = list(method.members.values()) if isinstance(method, Composite) else [method]
    energy = min((float(getattr(member, "energy", 1.0)) for member in members), default=1.0)
    if energy >= 1:
        return ""
    return f"the compressed memory, which holds {energy:.0%} of the energy of the tangents to protect, not all of it"


def _now(learner: Learner, start: Weights) -> dict[str, Tensor]:
    """The present values of what is compared: buffers that are not saved are among them."""
    model = learner.model
    now = {**model.state_dict(), **dict(model.named_parameters()), **dict(model.named_buffers())}
    missing = [name for name in start if name not in now]
    if missing:
        raise DataError(
            f"the model has no weights {missing[0]!r} any more: give before= a state of the model as it is"
        )
    return {name: now[name] for name in start}


def _unprotected(learner: Learner, start: Weights) -> list[str]:
    """Parameters that moved and that the method does not protect."""
    return [
        name
        for name, parameter in learner.model.named_parameters()
        if name not in learner.parameters
        and name in start
        and not torch.equal(start[name].to(parameter.device), parameter)
    ]


def remembered_probes(learner: Learner) -> list[Probe]:
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
    memory, watch = getattr(method, "memory", None), getattr(method, "watcher", None)
    if isinstance(memory, SampleMemory):
        return list(memory)
    return [piece for piece, _ in watch.probes.values()] if isinstance(watch, Watch) else []


def _protected(learner: Learner) -> Read | None:
    """What a projecting method remembers of a sample."""
    remembering = getattr(learner.method, "remembering", None)
    return remembering(learner) if learner.method.projects and callable(remembering) else None


def named_probes(learner: Learner, probes: Mapping[str, Samples], most: int) -> list[Probe]:
    """At most so many samples of each of some named sets, for the learner's model."""
    heads = find_heads(learner.model)
    found = []
    for name, data in probes.items():
        if isinstance(data, Probe):
            found.append(replace(data, name=name))
            continue
        head = data.head if isinstance(data, Task) else name if heads and name in heads.names else None
        inputs, targets = _samples(learner, data, most)
        found.append(
            Probe(
                name,
                learner.to_model(inputs),
                each_tensor(targets, lambda part: part.to(learner.device)),
                head,
            )
        )
    return found


def _samples(learner: Learner, data: Any, most: int) -> tuple[Inputs, Targets]:
    """At most so many samples, drawn with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(data, tuple):
        inputs, targets = data
        index = torch.randperm(sample_count(inputs), generator=generator)[:most].sort()[0]
        return take(inputs, index), take(targets, index)
    split = data.test if isinstance(data, Task) else as_split(data, learner.batch, learner.model, generator)
    return split.samples(torch.randperm(len(split), generator=generator)[:most].sort()[0])
