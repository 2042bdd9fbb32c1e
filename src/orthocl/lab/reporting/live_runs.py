"""Runs that have no record yet, as far as they have got: for pages that are served while an experiment runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orthocl.errors import OrthoclError
from orthocl.formatting import plain_text
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.reporting.groups import labels
from orthocl.lab.store.store import Store
from orthocl.palette import method_style


@dataclass(frozen=True)
class LiveRun:
    """A run on its way.

    Args:
        id: of the run.
        settings: with its labels.
        state: "new", "running", "unfinished" or "failed".
        tasks: number of tasks of the stream; 0 if it is not known yet.
        accuracies: mean accuracy on the tasks learnt so far, after each task.
        reason: why it failed.
    """

    id: str
    settings: RunSettings
    state: str
    tasks: int = 0
    accuracies: tuple[float, ...] = ()
    reason: str = ""

    def to_values(self) -> dict[str, Any]:
        """As JSON values for the page."""
        stream, method = labels(self.settings)
        return {
            "id": self.id,
            "stream": stream,
            "method": method,
            "colour": method_style(method)[0],
            "seed": self.settings.seed,
            "state": self.state,
            "tasks": self.tasks,
            "done": len(self.accuracies),
            "accuracies": [round(value, 4) for value in self.accuracies],
            "reason": plain_text(self.reason),
        }


def live_runs(store: Store, runs: Iterable[tuple[str, RunSettings | None]]) -> list[LiveRun]:
    """Those of some runs that have no record; settings that are not given are read from the store."""
    found = []
    for run, settings in runs:
        folder = store.folder(run)
        if (folder / "record.json").exists():
            continue
        try:
            known = settings or store.settings(run)
        except OrthoclError:
            continue  # its folder was made a moment ago
        rows = store.progress(run)
        sofar = tuple(sum(row[:n]) / n for n, row in enumerate(rows[1:], start=1))
        tasks = len(rows[0]) if rows else known.stream.tasks or 0
        failure = store.failure(run) or {}
        found.append(LiveRun(run, known, store.state(run), tasks, sofar, str(failure.get("reason", ""))))
    return found
