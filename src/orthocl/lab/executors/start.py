"""Starting the process that makes runs (`nursery`): a new interpreter, or a fork of one that has only imported so far.

A new interpreter is right wherever this process may have threads, or a state of torch that runs must not inherit. It
has to import torch first, which takes seconds; the command line, which has done nothing but that, forks instead.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import IO, NoReturn

from orthocl.errors import OrthoclError
from orthocl.lab.executors import nursery

# Importing torch makes a million objects and no garbage: a fifth of the time goes on looking for it.
# It ends at once: taking torch down tidily would take a quarter of a second.
INTERPRETER = (
    "import gc, os; gc.disable(); from orthocl.lab.executors.nursery import main; main(); os._exit(0)"
)


@dataclass
class Process:
    """A nursery that was started.

    Args:
        pid: its number.
        commands: its input.
        events: its output.
        wait: waits until it has ended; its exit code, negative for the number of the signal that ended it.
    """

    pid: int
    commands: IO[bytes]
    events: IO[bytes]
    wait: Callable[[], int]

    def close(self) -> None:
        """Have it end its children, if any are left, and itself."""
        with suppress(BrokenPipeError):  # it has ended already, and something was not yet told
            self.commands.close()
        self.wait()
        self.events.close()


_ahead: list[Process] = []


def fork_ahead() -> None:
    """Fork the process that the next `start` will return. Nothing but imports may have happened in this process."""
    if not _ahead and hasattr(os, "fork") and threading.active_count() == 1:
        _ahead.append(_fork())


def start() -> Process:
    """A process that makes runs, deaf to Ctrl-C, which reaches the whole group and is for the runs alone."""
    if _ahead:
        return _ahead.pop()
    with _deaf():
        process = subprocess.Popen(
            [sys.executable, "-c", INTERPRETER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    if process.stdin is None or process.stdout is None:  # never: asked for above
        raise OrthoclError("the process that would make the runs has no pipes")
    return Process(process.pid, process.stdin, process.stdout, process.wait)


def start_seconds() -> float:
    """Seconds until a new interpreter is ready to make runs, mostly for importing torch: measured by starting one."""
    clock = time.perf_counter()
    process = start()
    ready = process.events.readline()
    seconds = time.perf_counter() - clock
    process.close()
    if not ready:
        raise OrthoclError("the process that would make the runs died as it started")
    return seconds


def _fork() -> Process:
    (their_input, commands), (events, their_output) = os.pipe(), os.pipe()
    with _deaf():
        pid = os.fork()
        if pid == 0:
            os.dup2(their_input, 0)
            os.dup2(their_output, 1)
            for end in (their_input, commands, events, their_output):
                if end > 2:  # a command that was started without standard streams gets pipes in their places
                    os.close(end)
            _serve()
    os.close(their_input)
    os.close(their_output)
    wait = cache(partial(nursery.wait, pid))
    return Process(pid, os.fdopen(commands, "wb"), os.fdopen(events, "rb"), wait)


def _serve() -> NoReturn:
    code = 1
    try:
        gc.disable()
        nursery.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextmanager
def _deaf() -> Iterator[None]:
    """Ctrl-C is ignored for a while, by this thread's new processes for ever."""
    mine = threading.current_thread() is threading.main_thread()  # no other may say what to do with signals
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if mine else None
    try:
        yield
    finally:
        if mine:
            signal.signal(signal.SIGINT, before)
