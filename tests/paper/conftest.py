from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from orthocl.lab import Record, Result, RunSettings
from orthocl.lab.experiment.settings import run_id
from orthocl.paper.evidence import Evidence
from orthocl.paper.items import get_item, item_runs

LEARNT = 0.95


def make_record(run: RunSettings, final: float | Sequence[float] = 0.8, **parts: Any) -> Record:
    """A record made by hand: every task is learnt to 95 %, and its accuracy drops to `final` during the last task."""
    tasks = run.resolved().stream.tasks or 0
    ends = [final] * (tasks - 1) + [LEARNT] if isinstance(final, float) else list(final)
    rows = [[0.1] * tasks]
    for after in range(1, tasks):
        rows.append([LEARNT if task <= after else 0.1 for task in range(1, tasks + 1)])
    rows.append(ends)
    values = {
        "accuracies": rows,
        "memorised": [
            {task: 1.0 if task == after else 0.9 for task in range(1, after + 1)}
            for after in range(1, tasks + 1)
        ],
        "curves": [],
        "monitors": [{"memory_bytes": 1024.0, "drift_cosine": 0.9} for _ in range(tasks)],
        "losses": [[0.5]] * tasks,
        "parameters": 113_610,
        "samples": [60_000] * tasks,
    }
    seconds = parts.pop("seconds", 10.0)
    settings = run.resolved()
    return Record(
        id=run_id(settings, "f"),
        settings=settings,
        stream={"name": settings.stream.name, "fingerprint": "f", "settings": {}, "tasks": []},
        result=Result(**{**values, **parts}),
        provenance={"seconds": {"total": seconds}},
    )


@pytest.fixture
def record_for() -> Callable[..., Record]:
    """A record made by hand for given settings."""
    return make_record


@pytest.fixture
def evidence_of() -> Callable[..., Evidence]:
    """Evidence of an item, with a record for every run for which `make` gives one."""

    def build(
        name: str,
        make: Callable[[RunSettings], Record | None],
        seeds: Sequence[int] = (),
        scale: Any = "full",
    ) -> Evidence:
        runs = item_runs(get_item(name), scale, seeds=seeds).runs
        pairs = [(run, made) for run in runs if (made := make(run)) is not None]
        return Evidence(tuple(runs), tuple(pairs))

    return build
