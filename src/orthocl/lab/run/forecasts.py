"""Forecasts of forgetting in the laboratory: before each task of a run, what learning it will do to the earlier ones.

They are written to `forecasts.json` in the run's folder, each before its task is learnt, and what was measured is added
afterwards. They have no influence on the run or its record.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from orthocl.errors import OrthoclError
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunObserver
from orthocl.methods.learner import Learner
from orthocl.storage import write_atomically
from orthocl.streams.base import Stream
from orthocl.training import Progress
from orthocl.training.forecasting import Forecaster

FILE = "forecasts.json"


class ForecastObserver(RunObserver):
    """Watches a run, forecasts every task from the second on, and measures what came of it."""

    def on_run(self, run: str, settings: RunSettings, folder: Path) -> None:
        """A run begins or is resumed."""
        self._settings, self._path = settings, folder / FILE
        self._earlier = read_forecasts(folder)["forecasts"]
        self._forecaster: Forecaster | None = None

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Take up the memory of the tasks that are learnt already: of a resumed run, at today's weights."""
        if any(task.kind != "classification" for task in stream):
            self._give_up("forecasts are made for classification only")
            return
        self._forecaster = Forecaster(
            self._settings.train,
            memory_per_task=int(self._settings.method.settings.get("memory_per_task", 100)),
        )
        self._watch(lambda watcher: watcher.on_start(learner, stream, progress))

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Measure the task just learnt, and forecast the next, before it is learnt."""
        self._watch(lambda watcher: watcher.on_task(learner, progress))

    def _watch(self, work: Callable[[Forecaster], None]) -> None:
        if self._forecaster is None:
            return
        try:
            with torch.random.fork_rng(devices=[]):  # dropout must draw what it would draw without forecasts
                work(self._forecaster)
        except OrthoclError as error:
            self._give_up(str(error))
            return
        self._write(self._forecaster)

    def _give_up(self, reason: str) -> None:
        self._forecaster = None
        write_atomically(self._path, json.dumps({"note": reason, "forecasts": []}).encode())

    def _write(self, watcher: Forecaster) -> None:
        measured = watcher.measured
        rows: list[dict[str, Any]] = [
            {
                "task": each.task,
                "earlier": each.earlier,
                "rule": each.rule,
                "change": each.change,
                "drop": each.drop,
                "measured_change": measured.get((each.task, each.earlier), (None, None))[0],
                "measured_drop": measured.get((each.task, each.earlier), (None, None))[1],
            }
            for each in watcher.forecasts
        ]
        done = {row["task"] for row in rows}
        rows = [row for row in self._earlier if row["task"] not in done] + rows
        write_atomically(self._path, json.dumps({"note": "", "forecasts": rows}, indent=1).encode())


def read_forecasts(folder: Path) -> dict[str, Any]:
    """What the observer wrote for a run; nothing if it did not watch."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"note": "", "forecasts": []}
    return found
