"""One attempt at a run and what became of it: the same for this process, local processes, Ray and Slurm.

A job travels to a worker as plain JSON values (`packed`), because a worker builds everything from the settings: parts
that are named by a module or a file are loaded there, from the directory and the module path of the caller.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orthocl.errors import OrthoclError
from orthocl.lab.executors.reporter import Reporter, Tell
from orthocl.lab.executors.shipping import files_of, put_down
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.checkpointer import InterruptedRun, PausedRun
from orthocl.lab.run.execute import RunObserver, RunOptions, execute
from orthocl.lab.run.seed_batches import execute_together
from orthocl.lab.store.record import Record
from orthocl.lab.store.run_lock import HEARTBEAT, TIMEOUT, ClaimedError
from orthocl.lab.store.store import Store

PATIENCE = TIMEOUT + 2 * HEARTBEAT
"""Seconds after which the claim of a process that died on another machine has certainly run out."""


@dataclass(frozen=True)
class Report:
    """What became of an attempt at a run.

    Args:
        kind: as for events of the same kind.
        text: reason, for people.
        trace: traceback of an error that is a bug in the code.
    """

    kind: Literal["finished", "unsupported", "failed", "paused", "interrupted", "elsewhere"]
    text: str = ""
    trace: str = ""


def never() -> bool:
    """A `stop` for attempts that are never stopped."""
    return False


def attempt(
    settings: RunSettings,
    store: Store,
    options: RunOptions,
    *,
    run: str = "",
    tell: Tell | None = None,
    stop: Callable[[], bool] = never,
    patience: float = 0.0,
) -> Report:
    """Execute or resume one run; errors become a report.

    Args:
        settings: what to run.
        store: as this machine sees it.
        options: how to run it.
        run: its id where the run was asked for.
        tell: receives the position of the run a few times a second, as the fields of an event.
        stop: asked now and then; when true, the run writes a checkpoint and ends.
        patience: seconds to wait for the claim of another process to end. After a machine dies, this is how long its
            claim may seem alive.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            observers = _observers(settings, store, options, run, tell)
            record = execute(settings, store, options=options, observers=observers, stop=stop)
            return _finished(record, run)
        except ClaimedError as error:
            if time.monotonic() >= deadline or stop():
                return report_on(error)
        except Exception as error:
            return report_on(error)
        time.sleep(min(2.0, patience))


def attempt_all(
    runs: Mapping[str, RunSettings],
    store: Store,
    options: RunOptions,
    *,
    tell: Tell,
    stop: Callable[[], bool] = never,
) -> list[Report]:
    """Execute some runs, by id, and report what became of each.

    Several runs are seeds of one setting. They are trained together if possible, otherwise one after another.
    """
    together = _attempt_together(runs, store, options, tell, stop) if len(runs) > 1 else {}
    reports = []
    for run, settings in runs.items():
        if run in together:
            report = together[run]
        elif stop():
            report = Report("interrupted", f"run {run} was stopped before it started")
        else:
            report = attempt(settings, store, options, run=run, tell=tell, stop=stop)
        tell(run=run, kind=report.kind, text=report.text)
        reports.append(report)
    return reports


def _attempt_together(
    runs: Mapping[str, RunSettings],
    store: Store,
    options: RunOptions,
    tell: Tell,
    stop: Callable[[], bool],
) -> dict[str, Report]:
    """The reports of runs that were executed together; none if each must be executed alone."""
    try:
        observers = [_observers(settings, store, options, run, tell) for run, settings in runs.items()]
        records = execute_together(
            list(runs.values()), store, options=options, observers=observers, stop=stop
        )
    except InterruptedRun as error:
        return dict.fromkeys(runs, report_on(error))
    except Exception:  # from one of them: executed alone it will report it, and the others continue
        traceback.print_exc()
        return {}
    if records is None:
        return {}
    return {run: _finished(record, run) for run, record in zip(runs, records, strict=True)}


def report_on(error: Exception) -> Report:
    """What an error in an attempt means for the run.

    >>> report_on(ValueError("too wide")).text
    'ValueError: too wide'
    """
    if isinstance(error, ClaimedError):
        return Report("elsewhere", str(error))
    if isinstance(error, PausedRun):
        return Report("paused", str(error))
    if isinstance(error, InterruptedRun):
        return Report("interrupted", str(error))
    if isinstance(error, OrthoclError):
        return Report("failed", str(error))
    trace = "".join(traceback.format_exception(error))
    return Report("failed", f"{type(error).__name__}: {error}", trace)


def _finished(record: Record, run: str) -> Report:
    if run not in ("", record.id):
        return Report("failed", "the data of its stream are not the same on the machine that made it")
    return Report(record.status, record.reason)


def _observers(
    settings: RunSettings, store: Store, options: RunOptions, run: str, tell: Tell | None
) -> list[RunObserver]:
    observers: list[RunObserver] = [] if tell is None else [Reporter(tell, run, settings)]
    if options.trackers:
        from orthocl.lab.reporting.trackers import make_trackers  # imported here because few runs have any

        observers += make_trackers(options.trackers, store.directory)
    if options.forecast:
        from orthocl.lab.run.forecasts import ForecastObserver  # likewise

        observers.append(ForecastObserver())
    if options.certificate:
        from orthocl.lab.run.certificates import CertificateObserver  # likewise

        observers.append(CertificateObserver())
    return observers


# ---- packing jobs for a worker ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Runs by id, with the store and the options to execute them with."""

    runs: Mapping[str, RunSettings]
    store: Store
    options: RunOptions


def packed(job: Job) -> dict[str, Any]:
    """A job as plain JSON values, labels and files of parts included, with the caller's directory and module path."""
    runs = {run: settings.resolved() for run, settings in job.runs.items()}
    return {
        "runs": {
            run: settings.to_dict()
            | {"stream_label": settings.stream_label, "method_label": settings.method_label}
            for run, settings in runs.items()
        },
        "files": files_of(runs.values()),
        "store": str(job.store.directory.absolute()),
        "options": vars(job.options) | {"trackers": list(job.options.trackers)},
        "directory": str(Path.cwd()),
        "path": [str(Path(entry).absolute()) for entry in sys.path],
    }


def unpacked(values: Mapping[str, Any]) -> Job:
    """What `packed` packed.

    >>> from orthocl.lab.experiment.settings import MethodSettings, StreamSettings
    >>> run = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("sgd"), method_label="plain")
    >>> job = unpacked(packed(Job({"1": run}, Store("store"), RunOptions())))
    >>> job.runs["1"].label
    'rotated-mnist-mini / plain / seed 0'
    """
    options = RunOptions(**{**values["options"], "trackers": tuple(values["options"]["trackers"])})
    found = put_down(values["runs"], values["files"])
    runs = {run: RunSettings.from_dict(settings) for run, settings in found.items()}
    return Job(runs, Store(values["store"]), options)


def work_where_the_caller_does(values: Mapping[str, Any]) -> None:
    """Go to the caller's directory, if it is on this machine, and find modules where the caller finds them.

    Only for processes that do nothing else, before the job is unpacked.
    """
    with suppress(OSError):
        os.chdir(values["directory"])
    path: Sequence[str] = values["path"]
    sys.path.extend(entry for entry in path if entry not in sys.path)
