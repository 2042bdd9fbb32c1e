"""LocalExecutor: one process per run (or per few runs that are trained together) on this machine, N at a time."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orthocl.errors import OrthoclError, SettingsError
from orthocl.lab.executors.interface import Event, Kind, OnEvent, Outcome, gather, pending
from orthocl.lab.executors.nursery import Reporter
from orthocl.lab.executors.start import start
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.checkpointer import InterruptedRun, PausedRun
from orthocl.lab.run.execute import RunObserver, RunOptions, execute
from orthocl.lab.run.seed_batches import group
from orthocl.lab.store.run_lock import ClaimedError, alive_claim, describe
from orthocl.lab.store.store import Store

WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class LocalExecutor:
    """Makes runs on this machine.

    Ctrl-C lets every run write a checkpoint and stops; a second Ctrl-C stops at once. Either way, and after any crash,
    the same call goes on where it was.

    Args:
        jobs: processes at a time. Each makes one run, or some seeds of plain training together where that is faster.
            0 makes all runs one after another in this very process, which is what debuggers like (and the only way
            on systems that cannot fork).
    """

    jobs: int = 1

    def __post_init__(self) -> None:
        if self.jobs < 0:
            raise SettingsError(f"jobs must be 0 or more, got {self.jobs}")

    def run_all(
        self, runs: Sequence[RunSettings], store: Store, *, options: RunOptions, on_event: OnEvent
    ) -> list[Outcome]:
        """Make all runs that have no record yet. One outcome per run, in the order given; failures do not stop it."""
        ids, todo = pending(runs, store, options, on_event)
        failures: dict[str, str] = {}
        if todo and self.jobs and hasattr(os, "fork"):
            # Trackers keep one run per process.
            queue = deque([(run,) for run in todo] if options.trackers else group(todo, self.jobs))
            threads = options.threads or threads_per_run(min(self.jobs, len(queue)))
            job = _Job(store, replace(options, threads=threads), on_event, todo, self.jobs, failures, queue)
            job.work()
        elif todo:
            _one_after_another(todo, store, options, on_event, failures)
        return gather(ids, runs, store, todo, failures)


def threads_per_run(jobs: int) -> int:
    """Threads for each of N runs at a time, so that together they use the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    share = max(1, cores // jobs)
    return min(share, int(allowed)) if allowed.isdigit() and int(allowed) > 0 else share


@dataclass
class _Job:
    """One call of `run_all`: a nursery, the runs in it, those to come (in groups) and those that others are making."""

    store: Store
    options: RunOptions
    on_event: OnEvent
    todo: dict[str, RunSettings]
    slots: int
    failures: dict[str, str]
    queue: deque[tuple[str, ...]]
    running: set[str] = field(default_factory=set)
    processes: int = 0
    elsewhere: set[str] = field(default_factory=set)
    stopping: bool = False

    def work(self) -> None:
        self.nursery = start()
        try:
            while self.running or ((self.queue or self.elsewhere) and not self.stopping):
                try:
                    self._advance()
                except KeyboardInterrupt:
                    if self.stopping:
                        raise
                    self._stop()
        finally:
            self.nursery.close()
        if self.stopping:
            raise KeyboardInterrupt

    def _advance(self) -> None:
        while self.queue and self.processes < self.slots and not self.stopping:
            self._start(self.queue.popleft())
        if self.running:
            self._listen()
        elif self.elsewhere and not self.queue:
            self._wait_for_others()

    def _start(self, runs: tuple[str, ...]) -> None:
        """Have a process make these runs, except those that others are making."""
        ours = {}
        for run in runs:
            owner = alive_claim(self.store.folder(run))
            if owner is not None:
                self._leave_to_others(run, f"being made by {describe(owner)}")
            else:
                ours[run] = self.todo[run].to_dict()
        if ours:
            self.running |= ours.keys()
            self.processes += 1
            directory = str(self.store.directory.absolute())
            self._tell({"runs": ours, "store": directory, "options": asdict(self.options)})

    def _listen(self) -> None:
        """Take one event from the nursery."""
        line = self.nursery.events.readline()
        if not line:
            raise OrthoclError(self._obituary())
        event: dict[str, Any] = json.loads(line)
        run, kind = event.pop("run"), event.pop("kind")
        if kind == "exit":
            self.processes -= 1
            for run in event["runs"]:
                self._ended(run, event["code"])
        elif kind == "elsewhere":
            self._leave_to_others(run, event["text"])
        elif kind == "failed":
            self._fail(run, event["text"])
        elif kind in ("started", "progress", "paused", "interrupted"):
            self.on_event(Event(kind, run, self.todo[run], **event))

    def _ended(self, run: str, code: int) -> None:
        self.running.discard(run)
        record = self.store.record(run)
        if record is not None:
            self.on_event(Event(record.status, run, self.todo[run], text=record.reason))
        elif code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            self._fail(run, f"its process was ended by {name}{hint}")

    def _fail(self, run: str, reason: str) -> None:
        noted = self.store.failure(run)
        self.failures[run] = str(noted["reason"]) if noted is not None else reason
        self.on_event(Event("failed", run, self.todo[run], text=self.failures[run]))

    def _leave_to_others(self, run: str, text: str) -> None:
        self.elsewhere.add(run)
        self.on_event(Event("elsewhere", run, self.todo[run], text=text))

    def _wait_for_others(self) -> None:
        """Look whether others have finished their runs, or died and left them to us."""
        for run in sorted(self.elsewhere):
            record = self.store.record(run)
            if record is not None:
                self.elsewhere.discard(run)
                self.on_event(Event(record.status, run, self.todo[run], text=record.reason))
            elif alive_claim(self.store.folder(run)) is None:
                self.elsewhere.discard(run)
                self.queue.append((run,))
        if self.elsewhere and not self.queue:
            time.sleep(WAIT_SECONDS)

    def _stop(self) -> None:
        self.stopping = True
        for run in sorted(self.running)[:1]:
            text = "stopping: waiting for checkpoints (Ctrl-C again to stop at once)"
            self.on_event(Event("stopping", run, self.todo[run], text=text))
        self._tell({"stop": True})

    def _tell(self, command: dict[str, Any]) -> None:
        try:
            self.nursery.commands.write(json.dumps(command).encode() + b"\n")
            self.nursery.commands.flush()
        except BrokenPipeError as error:
            raise OrthoclError(self._obituary()) from error

    def _obituary(self) -> str:
        code = self.nursery.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"the process that makes the runs {how}: the same command goes on where it was"


def _one_after_another(
    todo: dict[str, RunSettings],
    store: Store,
    options: RunOptions,
    on_event: OnEvent,
    failures: dict[str, str],
) -> None:
    def tell(*, kind: Kind, run: str, **position: Any) -> None:
        on_event(Event(kind, run, todo[run], **position))

    for run, settings in todo.items():
        try:
            observers: list[RunObserver] = [Reporter(tell, run, settings)]
            if options.trackers:
                from orthocl.lab.reporting.trackers import make_trackers

                observers += make_trackers(options.trackers, store.directory)
            record = execute(settings, store, options=options, observers=observers)
            on_event(Event(record.status, run, settings, text=record.reason))
        except ClaimedError as error:
            on_event(Event("elsewhere", run, settings, text=str(error)))
        except PausedRun as error:
            on_event(Event("paused", run, settings, text=str(error)))
        except InterruptedRun as error:
            on_event(Event("interrupted", run, settings, text=str(error)))
        except OrthoclError as error:
            failures[run] = str(error)
            on_event(Event("failed", run, settings, text=str(error)))
