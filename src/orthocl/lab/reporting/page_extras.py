"""What stands beside records in a store: forecasts, certificates, theory of the streams; and dense OGD's price."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orthocl.lab.reporting.groups import RunGroup

FORECASTS = "forecasts.json"
CERTIFICATE = "certificate.json"
THEORY = "theory.json"
MOST_PAIRS = 400
"""Points of a group's forecasts."""
MOST_BYTES = 1_000_000


def forecasts(group: RunGroup, folder: Path | None) -> list[list[float | None]]:
    """[task, earlier task, expected and measured change of outputs, expected and measured drop] of a group's runs."""
    if folder is None:
        return []
    names = ("task", "earlier", "change", "measured_change", "drop", "measured_drop")
    rows: list[list[float | None]] = []
    for record in group.finished:
        content = _read(folder / "runs" / record.id / FORECASTS)
        for row in content.get("forecasts", []) if isinstance(content, dict) else []:
            if isinstance(row, dict) and row.get("measured_change") is not None:
                rows.append([_number(row.get(name)) for name in names])
    return rows[:MOST_PAIRS]


def certificates(groups: Sequence[RunGroup], folder: Path | None) -> list[dict[str, Any]]:
    """The retention certificates that lie beside records, with the run that they are about."""
    if folder is None:
        return []
    found = []
    for group in groups:
        for record in group.records:
            values = _read(folder / "runs" / record.id / CERTIFICATE)
            if isinstance(values, dict):
                about = {"stream": group.stream, "label": group.label, "seed": record.settings.seed}
                found.append(about | {"run": record.id, "certificate": values})
    return found


def theory_of_streams(groups: Sequence[RunGroup], folder: Path | None) -> list[dict[str, Any]]:
    """What was computed about the streams' data: dissimilarities, complexities, closed-form forgetting, bounds."""
    content = None if folder is None else _read(folder / THEORY)
    rows = content.get("streams", []) if isinstance(content, dict) else []
    prints = {str(group.records[0].stream.get("fingerprint", "")): group.stream for group in groups}
    names = ("kernel", "samples", "dissimilarity", "complexity", "forgetting", "bounds")
    return [
        {"stream": prints[row["fingerprint"]], **{name: row[name] for name in names if name in row}}
        for row in rows
        if isinstance(row, dict) and row.get("fingerprint") in prints
    ]


def dense_ogd(group: RunGroup) -> dict[str, float] | None:
    """What OGD as published would keep and compute for the same memory: explicit gradients of all weights.

    Returns:
        bytes: tangents times parameters, four bytes each.
        work: multiply-adds of a step, with the memory half full, relative to those of a plain step: two passes over
            the tangents (2 m p) and the step itself (3 batch p).
    """
    if not group.finished or group.finished[0].settings.method.name not in ("ogd", "ogd+"):
        return None
    record = group.finished[0]
    rows = max((row.get("tangents", 0.0) for row in record.result.monitors), default=0.0)
    if not rows or not record.result.parameters:
        return None
    batch = max(1, record.settings.train.batch_size)
    return {"bytes": 4.0 * rows * record.result.parameters, "work": 1.0 + rows / (3.0 * batch)}


def _read(path: Path) -> Any:
    """The content of a JSON file, or None if there is none that could be shown."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _number(value: Any) -> float | None:
    return float(f"{value:.4g}") if isinstance(value, int | float) else None
