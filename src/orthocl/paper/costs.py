"""What the runs cost: time and memory of every method on every stream."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from orthocl.formatting import size_text, time_text
from orthocl.lab import Record
from orthocl.paper.evidence import Pair
from orthocl.paper.page import WordTable


def cost_table(pairs: Sequence[Pair]) -> WordTable:
    """Median time and largest memory of a run, by stream and method, in the order given."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for run, record in pairs:
        if record.status == "finished":
            groups.setdefault((run.stream_label, run.method_label), []).append(record)
    rows = [("stream", "method", "runs", "time of a run (median)", "times SGD", "memory of the method")]
    for (stream, method), records in groups.items():
        time = _median(records)
        plain = _median(groups.get((stream, "sgd"), []))
        ratio = f"{time / plain:.1f}" if plain else ""
        memory = max(record.memory for record in records)
        rows.append((stream, method, str(len(records)), time_text(time), ratio, size_text(memory)))
    return WordTable("Cost", tuple(rows))


def whole_time(records: Sequence[Record]) -> float:
    """Seconds of computing behind some records."""
    return sum(_seconds(record) for record in records)


def _seconds(record: Record) -> float:
    return float(record.provenance.get("seconds", {}).get("total", 0.0))


def _median(records: Sequence[Record]) -> float:
    times = [_seconds(record) for record in records]
    return statistics.median(times) if times else 0.0
