"""What the runs cost: time and memory of every method on every stream."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orthocl.formatting import size_text, time_text
from orthocl.lab import Record
from orthocl.lab.reporting.groups import RunGroup, group_runs
from orthocl.lab.reporting.price import Price, plain_sgd, price
from orthocl.paper.evidence import Pair
from orthocl.paper.page import WordTable

HEADINGS = ("stream", "method", "runs", "time of a run (median)", "training, times SGD", "memory", "remarks")


def cost_table(pairs: Sequence[Pair]) -> WordTable:
    """Median time and largest memory of a run, and what its training costs in that of plain SGD."""
    groups = [group for group in group_runs(pairs) if group.finished]
    rows = [HEADINGS]
    for group in groups:
        cost = _price(group, groups)
        time = statistics.median(_seconds(record) for record in group.finished)
        memory = max(record.memory for record in group.finished)
        rows.append(
            (
                group.stream,
                group.label,
                str(len(group.finished)),
                time_text(time),
                str(cost),
                size_text(memory),
                cost.notes,
            )
        )
    return WordTable("Cost", tuple(rows))


def whole_time(records: Sequence[Record]) -> float:
    """Seconds of computing behind some records."""
    return sum(_seconds(record) for record in records)


def _price(group: RunGroup, groups: Sequence[RunGroup]) -> Price:
    """Against plain SGD on the same stream and network, evaluated equally often."""
    same = ("train.evaluate_every", "net.settings.hidden")
    rivals = [
        other
        for other in groups
        if other.stream == group.stream
        and all(other.settings.get(name) == group.settings.get(name) for name in same)
    ]
    return price(group, plain_sgd(rivals))


def _seconds(record: Record) -> float:
    return float(record.provenance.get("seconds", {}).get("total", 0.0))
