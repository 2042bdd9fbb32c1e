"""Progress of many runs for people: a live table in a terminal, plain lines elsewhere.

Neither says why a run failed or is unsupported: the caller lists that once, at the end, where it will be seen.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from orthocl.formatting import counted, time_text
from orthocl.lab.executors.interface import Event
from orthocl.lab.reporting.live_progress import LiveTable

LINE_SECONDS = 20.0
ENDINGS = {
    "known": "",
    "finished": "[green]done[/]",
    "unsupported": "[yellow]unsupported[/]",
    "failed": "[red]failed[/]",
    "paused": "paused",
    "interrupted": "[yellow]stopped[/]",
}
"""The events that end a run, and the word for each."""


class Display(Protocol):
    """Shows events while a `with` block lasts."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_event(self, event: Event) -> None:
        """Show an event."""


def make_display(labels: Sequence[str], console: Console) -> Display:
    """The live table of runs with these labels for a terminal, plain lines for any other output."""
    return LiveDisplay(labels, console) if console.is_terminal else LineDisplay(len(labels), console)


class LiveDisplay:
    """One line for all runs together and one for each in progress, always the last lines of the terminal."""

    def __init__(self, labels: Sequence[str], console: Console):
        self.console = console
        self.table = LiveTable(labels)
        self.live = Live(self.table, console=console, refresh_per_second=5, transient=True)

    def __enter__(self) -> LiveDisplay:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()
        _say(self.console, closing(self.table.runs, self.table.endings, self.table.elapsed()))

    def on_event(self, event: Event) -> None:
        """Show an event."""
        label = escape(event.settings.label)
        self.table.on_event(event)
        if event.kind == "stopping":
            _say(self.console, escape(event.text))
        elif event.kind in ("note", "elsewhere"):
            _say(self.console, f"{label}: {escape(event.text)}")
        elif event.kind in ("unsupported", "failed"):
            _say(self.console, f"{ENDINGS[event.kind]} {label}")


class LineDisplay:
    """A line when a run begins, ends, and every so often in between."""

    def __init__(self, runs: int, console: Console):
        self.console, self.runs = console, runs
        self.endings: Counter[str] = Counter()
        self.spoken: dict[str, float] = {}
        self.clock = time.monotonic()

    def __enter__(self) -> LineDisplay:
        self.clock = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _say(self.console, closing(self.runs, self.endings, time.monotonic() - self.clock))

    def on_event(self, event: Event) -> None:
        """Print an event, if it is worth a line."""
        label = escape(event.settings.label)
        if event.kind in ENDINGS:
            self.endings[event.kind] += 1
            if event.kind != "known":
                _say(self.console, f"{ENDINGS[event.kind]} {label} ({ended(self.endings)}/{self.runs})")
        elif event.kind == "started":
            self.spoken[event.run] = time.monotonic()
            _say(self.console, f"started {label}")
        elif event.kind == "progress":
            now = time.monotonic()
            if now - self.spoken.get(event.run, 0.0) >= LINE_SECONDS:
                self.spoken[event.run] = now
                _say(self.console, f"        {label}: {position(event)}")
        elif event.kind == "stopping":
            _say(self.console, escape(event.text))
        else:
            _say(self.console, f"{label}: {escape(event.text)}")


def ended(endings: Counter[str]) -> int:
    """Runs that need no more work now; those that failed are counted apart."""
    return endings.total() - endings["interrupted"] - endings["failed"]


def closing(runs: int, endings: Counter[str], seconds: float) -> str:
    """The outcome of the runs, in one line.

    >>> closing(4, Counter(finished=2, known=1, failed=1), 75.0)
    '3 of 4 runs in 1 min 15 s; 1 already existed, 1 failed'
    """
    text = f"{ended(endings)} of {counted(runs, 'run')} in {time_text(seconds)}"
    known = endings["known"]
    parts = [f"{known} already existed"] if known else []
    parts += [f"{endings[kind]} {kind}" for kind in ("unsupported", "failed", "paused") if endings[kind]]
    return "; ".join([text, *([", ".join(parts)] if parts else [])])


def position(event: Event) -> str:
    """Where a run stands, in a few words."""
    parts = [f"task {event.task}/{event.tasks}"]
    if event.loss is not None:
        parts.append(f"loss {event.loss:.3f}")
    if event.accuracy is not None:
        parts.append(f"accuracy {100 * event.accuracy:.1f} %")
    return ", ".join(parts)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
