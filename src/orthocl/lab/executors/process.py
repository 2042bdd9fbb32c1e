"""Processes that execute runs on this machine: a fresh one for each run, forked from a server that has imported torch.

The server is the standard library's (`multiprocessing`, start method "forkserver"); where it does not exist, every
process is a new interpreter ("spawn"). A process sends its events through a pipe and is told to stop through it. When
the pipe closes because the process that started it is gone, for whatever reason, it ends at once.

The caller's main module is never imported again, so that a script may start runs at its top level, without
`if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from orthocl.errors import OrthoclError, SettingsError
from orthocl.lab.executors.worker import (
    Job,
    attempt_job,
    packed,
    report_on,
    unpacked,
    work_where_the_caller_does,
)
from orthocl.lab.store.store import Store

PRELOADED = ("orthocl.lab.executors.process", "torch._dynamo")
"""Imported once, by the server: all that runs need, and what torch imports only with its first optimizer."""
STOP = b"stop"


def start_method() -> str:
    """How processes are started on this system."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


@dataclass
class WorkerProcess:
    """A process that executes one run.

    Args:
        run: id of the run.
        channel: where its events arrive, and where it is told to stop.
        process: the process itself.
        reported: whether the end of the run was among the events received.
    """

    run: str
    channel: Connection
    process: BaseProcess
    reported: bool = False

    @classmethod
    def start(cls, job: Job | None) -> WorkerProcess:
        """Start a process that executes the run of a job; without a job it ends as soon as it is ready."""
        if multiprocessing.current_process().daemon:
            raise SettingsError(
                "this process is a daemon of multiprocessing, which may not start others: use jobs=0"
            )
        method = start_method()
        context: Any = multiprocessing.get_context(method)
        text = json.dumps(None if job is None else packed(job) | {"environment": dict(os.environ)})
        _open_standard_streams()
        if method == "forkserver":
            _start_server(context)
        mine, theirs = multiprocessing.Pipe()
        try:
            process = context.Process(target=serve, args=(theirs, text), name="orthocl-worker")
            # Processes inherit from the server that it ignores Ctrl-C; a new interpreter inherits it from this process.
            with _without_main_module(), nullcontext() if method == "forkserver" else _ignoring_interrupts():
                process.start()
        except BaseException as error:
            mine.close()
            if isinstance(error, EOFError | OSError):
                raise OrthoclError(
                    f"cannot start a process for runs ({error}): is any memory left? jobs=0 needs no process"
                ) from error
            raise
        finally:
            theirs.close()
        return cls(job.run if job else "", mine, process)

    def receive(self) -> dict[str, Any] | None:
        """The next event; None when the process has ended and all its events were received."""
        try:
            event: dict[str, Any] = json.loads(self.channel.recv_bytes())
            return event
        except (EOFError, OSError):
            return None

    def stop(self) -> None:
        """Ask it to write checkpoints and end."""
        with suppress(OSError):  # it has ended already
            self.channel.send_bytes(STOP)

    def wait(self) -> int:
        """Wait for it to end: its exit code, or minus the number of the signal that ended it."""
        self.process.join()
        self.channel.close()
        return self.process.exitcode or 0

    def kill(self) -> None:
        """End it at once, if it is still running."""
        self.process.kill()
        self.wait()


def start_seconds() -> float:
    """Seconds until a process is ready to execute runs, mostly spent importing torch: measured by starting one."""
    clock = time.perf_counter()
    worker = WorkerProcess.start(None)
    worker.receive()
    seconds = time.perf_counter() - clock
    code = worker.wait()
    if code:
        raise OrthoclError(f"a process for runs ended with exit code {code} while starting")
    return seconds


# ---- in the process itself ----------------------------------------------------------------------------------


def serve(channel: Connection, text: str) -> None:
    """Execute the run of a job, and report through the channel what becomes of it.

    Args:
        channel: to the process that asks for the run.
        text: the job, as JSON; "null" for none.
    """
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group, but is meant for the caller
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=_listen, args=(channel, stopping), name="orthocl-stop", daemon=True).start()

    def tell(**event: Any) -> None:
        with suppress(OSError):  # the caller is gone, and this process is about to end
            channel.send_bytes(json.dumps(event).encode())

    values = json.loads(text)
    if values is None:
        return
    os.environ.clear()  # the server may have been started in another environment
    os.environ.update(values["environment"])
    work_where_the_caller_does(values)
    with _output_to_file(Store(values["store"]).folder(values["run"])):
        try:
            report = attempt_job(unpacked(values), tell=tell, stop=stopping.is_set)
        except Exception as error:
            report = report_on(error)
            tell(run=values["run"], kind=report.kind, text=report.text)
        if report.trace:
            print(report.trace, file=sys.stderr)


def _listen(channel: Connection, stopping: threading.Event) -> None:
    """Wait for the request to stop; end the process when the caller is gone."""
    try:
        while True:
            if channel.recv_bytes() == STOP:
                stopping.set()
    except (EOFError, OSError):
        os._exit(1)


@contextmanager
def _output_to_file(folder: Path) -> Iterator[None]:
    """Send what libraries print to a file of the run, away from the progress display."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.log"
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            if not log.stat().st_size:
                log.unlink()


# ---- how it is started --------------------------------------------------------------------------------------


def _start_server(context: Any) -> None:
    """Start the server that forks the processes, unless it is already running."""
    from multiprocessing import forkserver  # not on every system

    context.set_forkserver_preload(list(PRELOADED))
    with _ignoring_interrupts():
        forkserver.ensure_running()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C for a moment; processes started in the meantime keep ignoring it."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may change it
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _without_main_module() -> Iterator[None]:
    """While a process is started, hide the main module: multiprocessing would import it again in the new process."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _open_standard_streams() -> None:
    """Open those that are closed: otherwise a pipe would get the number of one, and be mistaken for it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
