"""What a method costs in time, against plain SGD on the same stream.

Seconds of two runs cannot be compared: the machine was busy during one of them and quiet during the other, or slept.
But every run on a stream evaluates the same network on the same test data equally often, and it does so between the
tasks that it learns. Time of training divided by time of evaluation is therefore free of the machine's load, and the
median over seeds of a run that slept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from orthocl.formatting import counted
from orthocl.lab.reporting.groups import RunGroup
from orthocl.lab.store.record import Record

LEAST_SECONDS = 0.05
"""Evaluations of a run that take less are no clock."""


@dataclass(frozen=True)
class Price:
    """Training time relative to plain SGD's.

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
    """The training time of a group relative to that of plain SGD, if the two can be compared."""
    if plain is None:
        return Price(remark="there is no plain SGD to compare with")
    if not group.finished or _clock(group.finished[0]) != _clock(plain.finished[0]):
        return Price(remark="its network, data, evaluations or machine are not those of plain SGD")
    epochs, most = (one.finished[0].settings.train.epochs for one in (group, plain))
    work = "" if epochs == most else f"{counted(epochs, 'epoch')} a task, SGD {most}"
    remark = "" if _processors(group) == _processors(plain) else "partly on other processors"
    own, base = _evaluations(group.finished), _evaluations(plain.finished)
    if not (math.isfinite(own) and math.isfinite(base) and base > 0):
        return Price(remark="the runs were too short to time")
    return Price(own / base, work, remark)


def plain_sgd(groups: Sequence[RunGroup]) -> RunGroup | None:
    """The best group of plain SGD, by average accuracy."""
    found = [group for group in groups if group.finished and group.finished[0].settings.method.name == "sgd"]
    return max(
        found,
        key=lambda group: statistics.fmean(record.metric("aac") for record in group.finished),
        default=None,
    )


def _clock(record: Record) -> tuple[object, ...]:
    """What must be equal for the evaluations of two runs to be the same work on the same kind of machine."""
    machine = record.provenance.get("machine", {})
    return (
        record.stream.get("fingerprint"),
        record.settings.net.name,
        record.result.parameters,
        record.settings.train.evaluate_every,
        *(machine.get(name) for name in ("system", "architecture", "cpus", "threads")),
    )


def _processors(group: RunGroup) -> set[str]:
    return {str(record.provenance.get("machine", {}).get("vector_instructions")) for record in group.finished}


def _evaluations(records: Sequence[Record]) -> float:
    """Training time in units of the run's own evaluations, median over runs; NaN if unknown."""
    found = []
    for record in records:
        seconds = record.provenance.get("seconds", {})
        clock = float(seconds.get("evaluate", 0.0))
        if clock >= LEAST_SECONDS:
            found.append(
                (float(seconds.get("train", math.nan)) + float(seconds.get("remember", 0.0))) / clock
            )
    return statistics.median(found) if found else math.nan
