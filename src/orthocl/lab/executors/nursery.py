"""A process that imports torch once and then forks one process per job: what `LocalExecutor` starts.

A job is a run, or some runs that are trained together.

It speaks JSON lines: jobs and "stop" on standard input, events on standard output. When its input closes, because the
process that started it is gone however that came about, it ends its children and itself.

Forking here is safe because nothing but imports has happened: no thread, no tensor arithmetic. It saves the seconds
that importing torch takes for every run, and needs no main module to import again, so that scripts may start runs at
their top level.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from orthocl.errors import OrthoclError
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.checkpointer import InterruptedRun, PausedRun
from orthocl.lab.run.execute import RunObserver, RunOptions, execute, total_steps
from orthocl.lab.run.seed_batches import execute_together
from orthocl.lab.store.run_lock import ClaimedError
from orthocl.lab.store.store import Store
from orthocl.methods import Learner
from orthocl.streams import Stream
from orthocl.training import Progress

REPORT_SECONDS = 0.25
STOPS = (signal.SIGINT, signal.SIGTERM)
LINE = 500  # bytes: a line so short is written to a pipe in one piece, whoever else writes


class Reporter(RunObserver):
    """Sends where a run stands, a few times a second."""

    def __init__(self, tell: Callable[..., None], run: str, settings: RunSettings):
        self.tell, self.run, self.settings = tell, run, settings
        self.steps: list[int] = []
        self.accuracy: float | None = None
        self.next = 0.0

    def on_run(self, run: str, settings: RunSettings, folder: Path) -> None:
        """The run is ours."""
        self.tell(run=run, kind="started")

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Count the steps of each task."""
        self.steps = total_steps(
            self.settings, [len(task.train) for task in stream], learner.method.batch_size
        )
        self._measure(progress)
        self._send(progress, None)

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """Send the position, unless that was done just now."""
        now = time.monotonic()
        if now >= self.next:
            self.next = now + REPORT_SECONDS
            self._send(progress, loss)

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Send the accuracy so far."""
        self._measure(progress)
        self._send(progress, None)

    def _measure(self, progress: Progress) -> None:
        learnt = len(progress.accuracies) - 1
        if learnt:
            self.accuracy = sum(progress.accuracies[-1][:learnt]) / learnt

    def _send(self, progress: Progress, loss: float | None) -> None:
        task = min(progress.task, len(self.steps))
        done = progress.task > len(self.steps)
        self.tell(
            run=self.run,
            kind="progress",
            task=task,
            tasks=len(self.steps),
            step=self.steps[task - 1] if done else progress.step,
            steps=self.steps[task - 1],
            loss=loss,
            accuracy=self.accuracy,
        )


def send(channel: int, **event: Any) -> None:
    """Write one event as a line, shortening its text if need be."""
    line = json.dumps(event)
    if len(line) >= LINE and "text" in event:
        event["text"] = event["text"][: max(0, len(event["text"]) - 2 * (len(line) - LINE) - 20)] + "..."
        line = json.dumps(event)
    with suppress(BrokenPipeError):
        os.write(channel, line.encode() + b"\n")


@dataclass
class Child:
    """A process that makes runs."""

    runs: list[str]
    pid: int
    alive: int
    """Read end of a pipe whose other end only the child holds: it closes when the child ends."""


def main() -> None:
    """Serve until the input closes and all children have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the children handle it
    channel = os.dup(1)
    os.dup2(2, 1)
    children: dict[int, Child] = {}
    pending = b""
    torch.optim.SGD([torch.nn.Parameter(torch.empty(1))], lr=1.0)  # the first optimizer imports half of torch
    gc.freeze()  # what was imported stays: runs need not look at it, nor copy it
    gc.enable()
    send(channel, kind="ready", run="")
    while True:
        readable, _, _ = select.select([0, *children], [], [])
        for source in readable:
            if source != 0:
                child = children.pop(source)
                os.close(source)
                send(channel, kind="exit", run="", runs=child.runs, code=wait(child.pid))
                continue
            block = os.read(0, 65536)
            if not block:
                for child in children.values():
                    os.kill(child.pid, signal.SIGKILL)
                return
            *lines, pending = (pending + block).split(b"\n")
            for line in lines:
                _obey(json.loads(line), children, channel)


def _obey(command: dict[str, Any], children: dict[int, Child], channel: int) -> None:
    if command.get("stop"):
        for child in children.values():
            os.kill(child.pid, signal.SIGTERM)
        return
    alive, held = os.pipe()
    signal.pthread_sigmask(
        signal.SIG_BLOCK, STOPS
    )  # until the child can handle them: a stop may follow at once
    pid = os.fork()
    if pid == 0:
        for other in (alive, 0, *children):
            os.close(other)
        _child(command, channel)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    os.close(held)
    children[alive] = Child(list(command["runs"]), pid, alive)


def _child(job: dict[str, Any], channel: int) -> NoReturn:
    """Make the runs of a job and never return."""
    stopping = threading.Event()
    for number in STOPS:
        signal.signal(number, lambda *_: stopping.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    code = 1
    store = Store(job["store"])
    runs = {run: RunSettings.from_dict(settings) for run, settings in job["runs"].items()}
    log = store.folder(next(iter(runs))) / "output.log"
    try:
        _redirect(log)
        options = RunOptions(**{**job["options"], "trackers": tuple(job["options"]["trackers"])})
        work = _Work(store, options, partial(send, channel), stopping.is_set)
        code = 0 if work.make(runs) else 1
    except BaseException as error:
        traceback.print_exc()
        for run in runs:
            send(channel, run=run, kind="failed", text=f"{type(error).__name__}: {error}")
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
            if not log.stat().st_size:
                log.unlink()
        os._exit(code)


@dataclass
class _Work:
    """How a child makes its runs and says what became of them."""

    store: Store
    options: RunOptions
    tell: Callable[..., None]
    stop: Callable[[], bool]

    def make(self, runs: Mapping[str, RunSettings]) -> bool:
        """Make all runs: together if there are several, else or if that fails one after another."""
        if len(runs) > 1:
            try:
                watchers = [self._observers(run, settings) for run, settings in runs.items()]
                made = execute_together(
                    list(runs.values()), self.store, options=self.options, observers=watchers, stop=self.stop
                )
                if made is not None:
                    return True
            except InterruptedRun as error:
                kind = "paused" if isinstance(error, PausedRun) else "interrupted"
                for run in runs:
                    self.tell(run=run, kind=kind, text=str(error))
                return False
            except Exception:  # of one of them: made alone, it will say so, and the others go on
                traceback.print_exc()
        successes = [self._alone(run, settings) for run, settings in runs.items()]
        return all(successes)

    def _alone(self, run: str, settings: RunSettings) -> bool:
        try:
            observers = self._observers(run, settings)
            execute(settings, self.store, options=self.options, observers=observers, stop=self.stop)
            return True
        except ClaimedError as error:
            self.tell(run=run, kind="elsewhere", text=str(error))
        except PausedRun as error:
            self.tell(run=run, kind="paused", text=str(error))
        except InterruptedRun as error:
            self.tell(run=run, kind="interrupted", text=str(error))
        except OrthoclError as error:
            self.tell(run=run, kind="failed", text=str(error))
        except Exception as error:
            traceback.print_exc()
            self.tell(run=run, kind="failed", text=f"{type(error).__name__}: {error}")
        return False

    def _observers(self, run: str, settings: RunSettings) -> list[RunObserver]:
        observers: list[RunObserver] = [Reporter(self.tell, run, settings)]
        if self.options.trackers:
            from orthocl.lab.reporting.trackers import make_trackers

            observers += make_trackers(self.options.trackers, self.store.directory)
        return observers


def _redirect(log: Path) -> None:
    """Send what libraries print to the run's own file, away from the progress view."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def wait(pid: int) -> int:
    """Exit code of a child; negative for the number of the signal that ended it."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
