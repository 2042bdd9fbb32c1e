"""The data of the report page: everything that it draws, once, as JSON values.

Accuracies are packed, three characters a number (`pack`), because a page of 1,000 runs would otherwise be mostly
digits: of each run what follows the learning of a task, of each group the mean of what comes before it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from orthocl.formatting import plain_text
from orthocl.lab.executors.interface import Outcome
from orthocl.lab.reporting.findings import Finding, find
from orthocl.lab.reporting.groups import RunGroup, differing, family, group_runs, value_text
from orthocl.lab.reporting.live_runs import LiveRun
from orthocl.lab.reporting.page_extras import certificates, dense_ogd, forecasts, theory_of_streams
from orthocl.lab.reporting.page_words import MEANINGS, MONITORS
from orthocl.lab.reporting.price import plain_sgd, price
from orthocl.lab.reporting.table import DEFAULT_METRICS, LOWER_IS_BETTER, NOT_PERCENT, Table, table_of, title
from orthocl.lab.store.record import Record, package_version
from orthocl.palette import method_style

FORMAT = 1
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
LEVELS = len(LETTERS) ** 3 - 1
MANY_GROUPS = 250
"""From here on a page keeps only the last of a group's monitors, and no curves within tasks, to stay small."""
MOST_POINTS = 120
"""Points of a curve within tasks."""


@dataclass(frozen=True)
class PageInput:
    """What a page is made of.

    Args:
        pairs: (run with its labels, record).
        title: heading.
        description: a sentence or two below it.
        metrics: columns of the table; the usual ones by default.
        failures: runs that failed.
        folder: of the store, where forecasts, certificates and theory are looked for.
        command: that makes the runs again.
        live: runs that have no record yet, for a page that is served while they go on.
    """

    pairs: Sequence[tuple[Any, Record]]
    title: str
    description: str = ""
    metrics: Sequence[str] = ()
    failures: Sequence[Outcome] = ()
    folder: Path | None = None
    command: str = ""
    live: Sequence[LiveRun] = field(default=())


@dataclass(frozen=True)
class PageData:
    """The values of a page, and what its static part needs of them."""

    values: dict[str, Any]
    groups: list[RunGroup]
    table: Table
    findings: list[Finding]


def page_data(given: PageInput) -> PageData:
    """Everything that a page shows."""
    groups = group_runs(given.pairs)
    asked = tuple(given.metrics) or DEFAULT_METRICS
    metrics = tuple(dict.fromkeys((*asked, "aac", "forgetting", "seconds", "memory")))
    aside = {"seconds"} - set(asked)
    table, findings = table_of(groups, metrics), find(groups)
    low, high = _range(groups)
    varying = set(differing([group.settings for group in groups]))
    streams = [finding.stream for finding in findings]
    brief = len(groups) > MANY_GROUPS
    plain = {name: plain_sgd([group for group in groups if group.stream == name]) for name in streams}

    def packed(numbers: Iterable[float]) -> str:
        return pack(numbers, low, high)

    values = {
        "format": FORMAT,
        "title": plain_text(given.title),
        "description": " ".join(given.description.split()),
        "version": package_version("orthocl"),
        "range": [low, high],
        "metrics": [_metric(name, name not in aside) for name in metrics],
        "streams": [_stream(finding, groups) for finding in findings],
        "common": {name: value for name, value in groups[0].settings.items() if name not in varying}
        if groups
        else {},
        "groups": [
            {
                "stream": streams.index(group.stream),
                **_labels(group),
                "settings": {name: group.settings.get(name) for name in group.settings if name in varying},
                "marks": [mark[:1] for mark in row.marks],
                "note": row.note,
                "warning": row.warning,
                "tasks": len(group.finished[0].result.accuracies) - 1 if group.finished else 0,
                **_measured(group, metrics, packed, brief),
                **_price(group, plain[group.stream]),
                **({"dense": dense} if (dense := dense_ogd(group)) else {}),
                **({"forecasts": found} if (found := forecasts(group, given.folder)) else {}),
            }
            for group, row in zip(groups, table.rows, strict=True)
        ],
        "monitors": MONITORS,
        "failures": [{"label": _failed_label(one), "reason": one.reason} for one in given.failures],
        "certificates": certificates(groups, given.folder),
        "theory": theory_of_streams(groups, given.folder),
        **_provenance([record for group in groups for record in group.records]),
        "command": given.command,
        "live": [run.to_values() for run in given.live],
    }
    return PageData(values, groups, table, findings)


def to_script(values: Mapping[str, Any]) -> str:
    """JSON that may stand inside a script element: no text in it can end the element."""
    text = json.dumps(_finite(values), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def pack(numbers: Iterable[float], low: float = 0.0, high: float = 1.0) -> str:
    """Numbers between two bounds, three characters each; three spaces for one that is not finite.

    >>> pack([0.0, 0.5, 1.0, math.nan])
    'AAAgAA___   '
    """
    parts = []
    for number in numbers:
        if not math.isfinite(number):
            parts.append("   ")
            continue
        level = min(LEVELS, max(0, round((number - low) / (high - low) * LEVELS)))
        parts.append(LETTERS[level >> 12] + LETTERS[level >> 6 & 63] + LETTERS[level & 63])
    return "".join(parts)


def _range(groups: Sequence[RunGroup]) -> tuple[float, float]:
    """0 to 1 for accuracies; wider where tasks are regressions, whose score may be negative."""
    low, high = 0.0, 1.0
    for group in groups:
        for record in group.finished:
            for row in record.result.accuracies:
                low, high = min(low, *row), max(high, *row)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (-1.0, 1.0)


def _metric(name: str, shown: bool) -> dict[str, Any]:
    """A column; one that is not shown waits in the list of columns."""
    unit = name if name in NOT_PERCENT else "percent"
    better = "lower" if name in (*LOWER_IS_BETTER, *NOT_PERCENT) else "higher"
    return {
        "name": name,
        "title": title(name),
        "unit": unit,
        "better": better,
        "meaning": MEANINGS.get(name, ""),
        "shown": shown,
    }


def _failed_label(failed: Outcome) -> str:
    """A failed run with its network, which its label need not name."""
    net = failed.settings.net
    settings = " ".join(f"{name}={value_text(value)}" for name, value in net.settings.items())
    return plain_text(f"{failed.settings.label} ({' '.join(filter(None, (net.name, settings)))})")


def _stream(finding: Finding, groups: Sequence[RunGroup]) -> dict[str, Any]:
    own = [group for group in groups if group.stream == finding.stream]
    longest = max((list(group.records[0].stream.get("tasks", ())) for group in own), key=len, default=[])
    prints = dict.fromkeys(str(group.records[0].stream.get("fingerprint", "")) for group in own)
    return {
        "name": finding.stream,
        "headline": finding.headline,
        "tiles": [list(tile) for tile in finding.tiles],
        "tasks": [plain_text(task) for task in longest],
        "fingerprints": list(prints),
    }


def _labels(group: RunGroup) -> dict[str, Any]:
    colour, marker = method_style(group.method)
    known = {"method": group.method, "label": group.label, "colour": colour, "marker": marker}
    return known | {"family": family(group.method), "settled": family(group.label) == group.label}


def _price(group: RunGroup, plain: RunGroup | None) -> dict[str, Any]:
    cost = price(group, plain)
    known = {"times": _short(cost.times, 3)} if str(cost) else {}
    return known | ({"priced": cost.notes} if cost.notes else {})


def _measured(
    group: RunGroup, metrics: Sequence[str], packed: Callable[[Iterable[float]], str], brief: bool
) -> dict[str, Any]:
    """Runs, and means over them."""
    finished = group.finished
    found: dict[str, Any] = {"runs": [_run(record, metrics, packed) for record in group.records]}
    if not finished:
        return found
    rows = np.mean([record.result.accuracies for record in finished], axis=0)
    found["before"] = packed(value for after, row in enumerate(rows) for value in row[after:])
    monitors = [_monitor_means(finished, task) for task in range(len(finished[0].result.monitors))]
    found["monitors"] = monitors[-1:] if brief else monitors
    if not brief:
        found |= _memorised(finished, packed) | _curves(group.with_curves, packed)
    return found


def _run(record: Record, metrics: Sequence[str], packed: Callable[[Iterable[float]], str]) -> dict[str, Any]:
    done = record.status == "finished"
    rows = record.result.accuracies
    return {
        "id": record.id,
        "seed": record.settings.seed,
        "hash": record.result_hash[:16],
        "resumes": record.provenance.get("resumes", 0),
        "values": [_short(record.metric(name)) for name in metrics] if done else [],
        "after": packed(value for after, row in enumerate(rows) for value in row[:after]) if done else "",
    }


def _monitor_means(records: Sequence[Record], task: int) -> dict[str, float]:
    """What the method reported after a task, mean over seeds; sizes of nothing are left out."""
    rows = [record.result.monitors[task] for record in records if task < len(record.result.monitors)]
    names = dict.fromkeys(name for row in rows for name in row)
    means = {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
    return {name: _short(value, 4) for name, value in means.items() if name != "memory_bytes" or value}


def _memorised(records: Sequence[Record], packed: Callable[[Iterable[float]], str]) -> dict[str, Any]:
    tables = [record.result.memorised for record in records]
    if not any(row for table in tables for row in table):
        return {}
    length = min(len(table) for table in tables)
    means = [
        float(np.mean([table[after].get(task, math.nan) for table in tables]))
        for after in range(length)
        for task in range(1, after + 2)
    ]
    return {"memorised": packed(means)}


def _curves(records: Sequence[Record], packed: Callable[[Iterable[float]], str]) -> dict[str, Any]:
    """Accuracies within tasks, mean over seeds."""
    tables = [record.result.curves for record in records]
    if not tables or len({len(table) for table in tables}) > 1:
        return {}
    stride = -(-len(tables[0]) // MOST_POINTS)
    kept = [table[stride - 1 :: stride] for table in tables]
    means = np.mean([[point["accuracies"] for point in table] for table in kept], axis=0)
    where = [[point["task"], point["step"]] for point in kept[0]]
    return {"curves": {"at": where, "values": packed(means.ravel().tolist())}}


def _provenance(records: Sequence[Record]) -> dict[str, Any]:
    seconds = [record.metric("seconds") for record in records]
    return {
        "finished": max((str(record.provenance.get("finished", "")) for record in records), default=""),
        "seconds": sum(value for value in seconds if math.isfinite(value)),
        "versions": _distinct(record.provenance.get("versions", {}) for record in records),
        "machines": _distinct(record.provenance.get("machine", {}) for record in records),
    }


def _distinct(values: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = {json.dumps(value, sort_keys=True, default=str): dict(value) for value in values if value}
    return list(found.values())


def _short(value: float, digits: int = 6) -> float:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else math.nan


def _finite(value: Any) -> Any:
    """JSON values in which numbers that are not finite are null and whole ones have no fraction."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value
