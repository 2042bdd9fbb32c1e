"""What is done on the machine that makes a run for another one: shared by the executors for clusters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orthocl.errors import OrthoclError, SettingsError
from orthocl.lab.executors.nursery import Reporter
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.checkpointer import InterruptedRun
from orthocl.lab.run.execute import RunObserver, RunOptions, execute
from orthocl.lab.store.run_lock import HEARTBEAT, TIMEOUT, ClaimedError
from orthocl.lab.store.store import Store

PATIENCE = TIMEOUT + 2 * HEARTBEAT
"""Seconds after which the claim of a process that died on another machine has certainly run out."""


@dataclass(frozen=True)
class Report:
    """What came of an attempt at a run."""

    kind: Literal["finished", "unsupported", "failed", "interrupted", "elsewhere"]
    text: str = ""


def make_run(
    settings: RunSettings,
    store: Store,
    options: RunOptions,
    *,
    run: str = "",
    tell: Callable[..., None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    patience: float = 0.0,
) -> Report:
    """Make one run, or go on with it, whatever happens: errors become a report.

    Args:
        settings: what to run.
        store: as this machine sees it.
        options: how to run it.
        run: its id where the run was asked for.
        tell: gets the position of the run a few times a second, as the fields of an event.
        stop: asked now and then; when true, the run writes a checkpoint and ends.
        patience: seconds to wait for the claim of another process to end. After a machine died this is how long its
            claim may seem alive.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            observers: list[RunObserver] = [] if tell is None else [Reporter(tell, run, settings)]
            if options.trackers:
                from orthocl.lab.reporting.trackers import make_trackers

                observers += make_trackers(options.trackers, store.directory)
            record = execute(settings, store, options=options, observers=observers, stop=stop)
            if run not in ("", record.id):
                return Report("failed", "the data of its stream are not the same on the machine that made it")
            return Report(record.status, record.reason)
        except ClaimedError as error:
            if time.monotonic() > deadline or stop():
                return Report("elsewhere", str(error))
            time.sleep(min(2.0, patience))
        except InterruptedRun as error:
            return Report("interrupted", str(error))
        except OrthoclError as error:
            return Report("failed", str(error))
        except Exception as error:
            return Report("failed", f"{type(error).__name__}: {error}")


def finished_tasks(folder: Path) -> list[list[float]]:
    """The rows of accuracies after each task that a run, finished or not, has measured so far."""
    return measured_rows(folder)[1:]


def measured_rows(folder: Path) -> list[list[float]]:
    """The rows of accuracies so far, the one at initialisation first."""
    rows = []
    with suppress(OSError):
        for text in (folder / "progress.jsonl").read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):
                line = json.loads(text)
                if "after_task" in line:
                    rows.append(line["accuracies"])
    return rows


def packed(settings: RunSettings, options: RunOptions) -> dict[str, Any]:
    """A run as plain values, for the way to another machine; labels included."""
    labels = {"stream_label": settings.stream_label, "method_label": settings.method_label}
    return {
        "settings": settings.to_dict() | labels,
        "options": vars(options) | {"trackers": list(options.trackers)},
    }


def unpacked(job: dict[str, Any]) -> tuple[RunSettings, RunOptions]:
    """What `packed` packed.

    >>> from orthocl.lab.experiment.settings import MethodSettings, StreamSettings
    >>> run = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("sgd"), method_label="plain")
    >>> unpacked(packed(run, RunOptions()))[0].label
    'rotated-mnist-mini / plain / seed 0'
    """
    options = RunOptions(**{**job["options"], "trackers": tuple(job["options"]["trackers"])})
    return RunSettings.from_dict(job["settings"]), options


def check_positive(**values: float | None) -> None:
    """Refuse settings that are not above zero; None is allowed."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise SettingsError(f"{name} must be above 0, got {value}")


def check_not_negative(**values: float) -> None:
    """Refuse settings below zero."""
    for name, value in values.items():
        if value < 0:
            raise SettingsError(f"{name} must be 0 or more, got {value}")
