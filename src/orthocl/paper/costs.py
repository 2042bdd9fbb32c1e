"""What the runs cost: time and memory of every method on every stream."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orthocl.formatting import size_text, time_text
from orthocl.lab import Record
from orthocl.lab.reporting.groups import group_runs
from orthocl.lab.reporting.price import comparable, plain_sgd, price
from orthocl.paper.evidence import Pair
from orthocl.paper.page import WordTable

HEADINGS = (
    *("stream", "method", "runs", "time of a run (median)"),
    *("processor time of a step, times SGD", "memory with caches", "remarks"),
)
PRICE, REMARKS = 4, 6


def cost_table(pairs: Sequence[Pair]) -> WordTable:
    """Median time and largest memory of a run, and, where it was measured, what a step costs in that of plain SGD."""
    groups = [group for group in group_runs(pairs) if group.finished]
    rows = [HEADINGS]
    for group in groups:
        rivals = [other for other in groups if other.stream == group.stream and comparable(group, other)]
        cost = price(group, plain_sgd(rivals))
        time = statistics.median(_seconds(record) for record in group.finished)
        memory = max(record.memory for record in group.finished)
        runs, known = str(len(group.finished)), bool(str(cost))
        rows.append(
            (
                *(group.stream, group.label, runs, time_text(time), str(cost), size_text(memory)),
                cost.notes if known else "",
            )
        )
    priced = any(row[PRICE] for row in rows[1:])
    kept = [
        row if priced else tuple(text for at, text in enumerate(row) if at not in (PRICE, REMARKS))
        for row in rows
    ]
    return WordTable("Cost", tuple(kept))


def whole_time(records: Sequence[Record]) -> float:
    """Seconds of computing behind some records."""
    return sum(_seconds(record) for record in records)


def _seconds(record: Record) -> float:
    return float(record.provenance.get("seconds", {}).get("total", 0.0))
