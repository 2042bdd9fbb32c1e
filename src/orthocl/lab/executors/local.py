"""LocalExecutor: one process per run on this machine, N at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from types import FrameType, TracebackType
from typing import Any

from orthocl.errors import StoreError
from orthocl.lab.executors.interface import (
    FINAL_KINDS,
    Event,
    EventKind,
    OnEvent,
    Outcome,
    check_not_negative,
    gather,
    pending,
)
from orthocl.lab.executors.process import WorkerProcess
from orthocl.lab.executors.worker import Job, attempt_job
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunOptions
from orthocl.lab.store.run_lock import alive_claim, describe
from orthocl.lab.store.store import Store

POLL_SECONDS = 0.5
WAIT_SECONDS = 1.0


@dataclass(frozen=True)
class LocalExecutor:
    """Executes runs on this machine.

    Ctrl-C lets every run write a checkpoint and stops; a second Ctrl-C stops at once. Either way, and after any crash,
    the same call resumes. A run whose process dies has failed; the others continue.

    Args:
        jobs: processes at a time. Each executes one run. 0 executes all runs one after another in this process, which
            suits debuggers.
    """

    jobs: int = 1

    def __post_init__(self) -> None:
        check_not_negative(jobs=self.jobs)

    def run_all(
        self, runs: Sequence[RunSettings], store: Store, *, options: RunOptions, on_event: OnEvent
    ) -> list[Outcome]:
        """Execute all runs that have no record yet. One outcome per run, in order; failures do not stop it."""
        ids, todo = pending(runs, store, options, on_event)
        session = _Session(store, options, on_event, todo)
        session.queue.extend(todo)
        if todo and self.jobs:
            threads = options.threads or threads_per_run(min(self.jobs, len(todo)))
            session.options = replace(options, threads=threads)
            session.work(self.jobs)
        else:
            session.work_here()
        return gather(ids, runs, store, todo, session.failures)


def threads_per_run(jobs: int) -> int:
    """Threads for each of N runs at a time, so that together they use the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    share = max(1, cores // jobs)
    return min(share, int(allowed)) if allowed.isdecimal() and int(allowed) > 0 else share


@dataclass
class _Session:
    """One call of `run_all`: the runs still to start, the processes, and the runs claimed by others."""

    store: Store
    options: RunOptions
    on_event: OnEvent
    todo: dict[str, RunSettings]
    failures: dict[str, str] = field(default_factory=dict)
    queue: deque[str] = field(default_factory=deque)
    workers: dict[Connection, WorkerProcess] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)
    stopping: bool = False

    def work(self, slots: int) -> None:
        """Execute all queued runs in processes, a fixed number at a time."""
        try:
            with _Interrupts() as interrupts:
                while self.workers or ((self.queue or self.elsewhere) and not self.stopping):
                    try:
                        if interrupts.seen and not self.stopping:
                            self._stop()
                        self._advance(slots)
                    except KeyboardInterrupt:
                        if self.stopping or interrupts.seen:
                            raise
                        self._stop()  # raised by a callback
        finally:
            for worker in self.workers.values():
                worker.kill()
        if self.stopping or interrupts.seen:
            raise KeyboardInterrupt

    def work_here(self) -> None:
        """Execute all runs one after another in this process, those of others once they have given them up."""
        with _Interrupts() as interrupts:
            while (self.queue or self.elsewhere) and not interrupts.seen:
                if not self.queue:
                    self._wait_for_others()
                    continue
                attempt_job(self._job(self.queue.popleft()), tell=self.hear, stop=lambda: interrupts.seen)
        if interrupts.seen:
            raise KeyboardInterrupt

    def hear(self, *, run: str, kind: EventKind, **fields: Any) -> None:
        """Pass on an event of a run, and note what it means."""
        if kind == "failed":
            self.failures[run] = fields["text"]
        elif kind == "elsewhere":
            self.elsewhere.add(run)
        self.on_event(Event(kind, run, self.todo[run], **fields))

    def _advance(self, slots: int) -> None:
        if self.queue and len(self.workers) < slots and not self.stopping:
            self._start(self.queue.popleft())
        elif self.workers:
            ready = wait_for(list(self.workers), POLL_SECONDS)
            for worker in [self.workers[channel] for channel in self.workers if channel in ready]:
                self._receive(worker)
        elif self.elsewhere:
            self._wait_for_others()

    def _job(self, run: str) -> Job:
        return Job(run, self.todo[run], self.store, self.options)

    def _start(self, run: str) -> None:
        """Have a process execute a run, unless others are executing it."""
        owner = alive_claim(self.store.folder(run))
        if owner is not None:
            self.hear(run=run, kind="elsewhere", text=f"being executed by {describe(owner)}")
            return
        worker = WorkerProcess.start(self._job(run))
        self.workers[worker.channel] = worker

    def _receive(self, worker: WorkerProcess) -> None:
        event = worker.receive()
        if event is not None:
            worker.reported = event["kind"] in FINAL_KINDS
            self.hear(**event)
            return
        del self.workers[worker.channel]
        code = worker.wait()
        if not worker.reported:
            self._ended_without_a_word(worker.run, code)

    def _ended_without_a_word(self, run: str, code: int) -> None:
        try:
            record = self.store.record(run)
        except StoreError as error:
            self.hear(run=run, kind="failed", text=str(error))
            return
        if record is not None:
            self.hear(run=run, kind=record.status, text=record.reason)
        elif self.stopping and code >= 0:
            self.hear(run=run, kind="interrupted", text=f"run {run} was stopped before it started")
        elif code < 0:
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            self.hear(run=run, kind="failed", text=f"its process was ended by {name}{hint}")
        else:
            self.hear(run=run, kind="failed", text=f"its process ended with exit code {code}")

    def _wait_for_others(self) -> None:
        """Check whether others have finished their runs, or died and left them to us."""
        for run in sorted(self.elsewhere):
            try:
                record = self.store.record(run)
            except StoreError as error:
                self.elsewhere.discard(run)
                self.hear(run=run, kind="failed", text=str(error))
                continue
            if record is not None:
                self.elsewhere.discard(run)
                self.hear(run=run, kind=record.status, text=record.reason)
            elif alive_claim(self.store.folder(run)) is None:
                self.elsewhere.discard(run)
                self.queue.append(run)
        if self.elsewhere and not self.queue:
            time.sleep(WAIT_SECONDS)

    def _stop(self) -> None:
        self.stopping = True
        for worker in self.workers.values():
            worker.stop()
        for run in sorted(worker.run for worker in self.workers.values() if not worker.reported)[:1]:
            text = "stopping: waiting for checkpoints (Ctrl-C again to stop at once)"
            self.on_event(Event("stopping", run, self.todo[run], text=text))


class _Interrupts:
    """Ctrl-C while runs are executed: the first is only noted, the second raises KeyboardInterrupt.

    An exception raised at an arbitrary moment could cut an event in two, lose a process that is just starting, or keep
    a run in this process from writing a checkpoint.
    """

    def __init__(self) -> None:
        self.seen = False
        self._ours = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )

    def __enter__(self) -> _Interrupts:
        if self._ours:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
