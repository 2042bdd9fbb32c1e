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


@dataclass(frozen=True)
class Job:
    """A run and its id, with the store and the options to execute it with."""

    run: str
    settings: RunSettings
    store: Store
    options: RunOptions


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


def attempt_job(job: Job, *, tell: Tell, stop: Callable[[], bool] = never) -> Report:
    """Execute or resume the run of a job, and tell what became of it too."""
    if stop():
        report = Report("interrupted", f"run {job.run} was stopped before it started")
    else:
        report = attempt(job.settings, job.store, job.options, run=job.run, tell=tell, stop=stop)
    tell(run=job.run, kind=report.kind, text=report.text)
    return report


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


def packed(job: Job) -> dict[str, Any]:
    """A job as plain JSON values, labels and files of parts included, with the caller's directory and module path."""
    settings = job.settings.resolved()
    labels = {"stream_label": settings.stream_label, "method_label": settings.method_label}
    return {
        "run": job.run,
        "settings": settings.to_dict() | labels,
        "files": files_of(settings),
        "store": str(job.store.directory.absolute()),
        "options": vars(job.options) | {"trackers": list(job.options.trackers)},
        "directory": str(Path.cwd()),
        "path": [str(Path(entry).absolute()) for entry in sys.path],
    }


def unpacked(values: Mapping[str, Any]) -> Job:
    """What `packed` packed.

    >>> from orthocl.lab.experiment.settings import MethodSettings, StreamSettings
    >>> run = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("sgd"), method_label="plain")
    >>> job = unpacked(packed(Job("1", run, Store("store"), RunOptions())))
    >>> job.settings.label
    'rotated-mnist-mini / plain / seed 0'
    """
    options = RunOptions(**{**values["options"], "trackers": tuple(values["options"]["trackers"])})
    settings = RunSettings.from_dict(put_down(values["settings"], values["files"]))
    return Job(values["run"], settings, Store(values["store"]), options)


def work_where_the_caller_does(values: Mapping[str, Any]) -> None:
    """Go to the caller's directory, if it is on this machine, and find modules where the caller finds them.

    Only for processes that do nothing else, before the job is unpacked.
    """
    with suppress(OSError):
        os.chdir(values["directory"])
    path: Sequence[str] = values["path"]
    sys.path.extend(entry for entry in path if entry not in sys.path)
