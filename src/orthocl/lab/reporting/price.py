"""What a method costs in time: processor time of a training step, against plain SGD's on the same stream.

By the clock on the wall two runs cannot be compared: the machine was busy during one of them and quiet during the
other, or slept. So there is a price only where the runs themselves measured the time that their processors worked.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orthocl.formatting import counted
from orthocl.lab.reporting.groups import LOGGING, RunGroup
from orthocl.lab.run.execute import total_steps
from orthocl.lab.store.record import Record

LEAST_SECONDS = 1.0
"""A run whose training took less processor time is too short to tell."""


@dataclass(frozen=True)
class Price:
    """Processor time of a training step relative to plain SGD's.

    Args:
        times: the ratio; NaN if it is unknown.
        work: how the amounts of work differ, such as "1 epoch a task, SGD 5".
        remark: what else a reader must know; if the ratio is unknown, why.
    """

    times: float = math.nan
    work: str = ""
    remark: str = ""

    @property
    def notes(self) -> str:
        """Work and remark."""
        return "; ".join(filter(None, (self.work, self.remark)))

    def __str__(self) -> str:
        """Such as "2.9x"; empty if unknown."""
        if not math.isfinite(self.times):
            return ""
        return f"{self.times:.1f}x" if self.times < 10 else f"{self.times:.0f}x"


def price(group: RunGroup, plain: RunGroup | None) -> Price:
    """The processor time of a step of a group relative to that of plain SGD, if the two can be compared."""
    if plain is None:
        return Price(remark="there is no plain SGD to compare with")
    if not group.finished or _circumstances(group.finished[0]) != _circumstances(plain.finished[0]):
        return Price(remark="its network, data or machine are not those of plain SGD")
    if _together(group) != _together(plain):
        return Price(remark="seeds that are computed together have no time of their own")
    remark = "" if _processors(group) == _processors(plain) else "partly on other processors"
    own, base = _of_a_step(group.finished), _of_a_step(plain.finished)
    if not (math.isfinite(own) and math.isfinite(base)):
        return Price(remark="the runs did not measure processor time, or were too short to")
    return Price(own / base, _work(group, plain), remark)


def plain_sgd(groups: Sequence[RunGroup]) -> RunGroup | None:
    """The group of plain SGD with which most others can be compared; of several, the most accurate."""
    found = [group for group in groups if group.finished and group.finished[0].settings.method.name == "sgd"]
    return max(
        found,
        key=lambda group: (
            sum(comparable(group, other) for other in groups),
            statistics.fmean(record.metric("aac") for record in group.finished),
        ),
        default=None,
    )


def comparable(group: RunGroup, other: RunGroup) -> bool:
    """Whether two groups have the same data, network and training, so that only the method is another."""
    return _training(group) == _training(other)


def _training(group: RunGroup) -> dict[str, object]:
    parts = {
        name: value
        for name, value in group.settings.items()
        if name.startswith(("net.", "train.")) and name != LOGGING
    }
    return {**parts, "data": group.settings.get("data"), "train.batch_size": _batch_size(group.records[0])}


def _batch_size(record: Record) -> int:
    """Of a step: some methods set their own."""
    own = record.settings.method.settings.get("batch_size")
    return int(own or record.settings.train.batch_size)


def _work(group: RunGroup, plain: RunGroup) -> str:
    """How the work of two groups differs."""
    own, base = group.finished[0], plain.finished[0]
    epochs, most = own.settings.train.epochs, base.settings.train.epochs
    texts = [] if epochs == most else [f"{counted(epochs, 'epoch')} a task, SGD {most}"]
    if _batch_size(own) != _batch_size(base):
        texts.append(f"batches of {_batch_size(own)}, SGD {_batch_size(base)}")
    return "; ".join(texts)


def _circumstances(record: Record) -> tuple[object, ...]:
    """What must be equal for the steps of two runs to differ in the method alone."""
    machine = record.provenance.get("machine", {})
    return (
        record.stream.get("fingerprint"),
        record.settings.net.name,
        record.result.parameters,
        *(machine.get(name) for name in ("system", "architecture", "cpus", "threads")),
    )


def _together(group: RunGroup) -> set[int]:
    return {int(record.provenance.get("together", 1)) for record in group.finished}


def _processors(group: RunGroup) -> set[str]:
    return {str(record.provenance.get("machine", {}).get("vector_instructions")) for record in group.finished}


def _of_a_step(records: Sequence[Record]) -> float:
    """Processor time of a training step, median over runs; NaN if it is unknown."""
    found = []
    for record in records:
        spent = float(record.provenance.get("seconds", {}).get("processor", 0.0))
        steps = sum(total_steps(record.settings, record.result.samples, _batch_size(record)))
        whole = not record.provenance.get("resumes", 0)  # a resumed run has lost count of some steps
        if spent >= LEAST_SECONDS and steps and whole:
            found.append(spent / steps)
    return statistics.median(found) if found else math.nan
