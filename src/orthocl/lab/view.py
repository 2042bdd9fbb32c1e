"""Progress of many runs for people: one live view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from orthocl.lab.executors.interface import Event

LINE_SECONDS = 20.0
ENDINGS = ("finished", "unsupported", "failed", "interrupted", "known")
WORDS = {
    "finished": "[green]done[/]",
    "unsupported": "[yellow]unsupported[/]",
    "failed": "[red]failed[/]",
    "interrupted": "[yellow]stopped[/]",
}


class View(Protocol):
    """Shows events while a `with` block lasts."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_event(self, event: Event) -> None:
        """Show an event."""


def make_view(runs: int, console: Console) -> View:
    """The live view for a terminal, plain lines for anything else."""
    return LiveView(runs, console) if console.is_terminal else LineView(runs, console)


class LiveView:
    """A bar for all runs together and one for each that is being made."""

    def __init__(self, runs: int, console: Console):
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[where]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            refresh_per_second=5,
        )
        self.whole = self.progress.add_task("[bold]all runs[/]", total=runs, where=f"0/{runs}")
        self.bars: dict[str, TaskID] = {}
        self.runs, self.ended = runs, 0

    def __enter__(self) -> LiveView:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def on_event(self, event: Event) -> None:
        """Show an event."""
        label = escape(event.settings.label)
        if event.kind == "started":
            self.bars[event.run] = self.progress.add_task(label, total=None, where="starting")
        elif event.kind == "progress" and event.run in self.bars:
            self.progress.update(
                self.bars[event.run],
                total=event.tasks,
                completed=event.task - 1 + event.step / max(1, event.steps),
                where=position(event),
            )
        elif event.kind in ("note", "elsewhere"):
            self.progress.console.print(f"{label}: {escape(event.text)}", highlight=False)
        if event.kind in ENDINGS:
            if event.run in self.bars:
                self.progress.remove_task(self.bars.pop(event.run))
            if event.kind in ("unsupported", "failed"):
                self.progress.console.print(
                    f"{WORDS[event.kind]} {label}: {escape(event.text)}", highlight=False
                )
            self.ended += event.kind != "interrupted"
            self.progress.update(self.whole, completed=self.ended, where=f"{self.ended}/{self.runs}")


class LineView:
    """A line when a run begins, ends, and every so often in between."""

    def __init__(self, runs: int, console: Console):
        self.console, self.runs, self.ended, self.known = console, runs, 0, 0
        self.spoken: dict[str, float] = {}

    def __enter__(self) -> LineView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.known:
            self._say(f"{self.known} of {self.runs} runs were there already")

    def on_event(self, event: Event) -> None:
        """Print an event, if it is worth a line."""
        label = escape(event.settings.label)
        if event.kind == "known":
            self.known += 1
            self.ended += 1
        elif event.kind == "started":
            self.spoken[event.run] = time.monotonic()
            self._say(f"started {label}")
        elif event.kind == "progress":
            now = time.monotonic()
            if now - self.spoken.get(event.run, 0.0) >= LINE_SECONDS:
                self.spoken[event.run] = now
                self._say(f"        {label}: {position(event)}")
        elif event.kind in ENDINGS:
            self.ended += event.kind != "interrupted"
            reason = f": {escape(event.text)}" if event.text else ""
            self._say(f"{WORDS[event.kind]} {label} ({self.ended}/{self.runs}){reason}")
        else:
            self._say(f"{label}: {escape(event.text)}")

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def position(event: Event) -> str:
    """Where a run stands, in a few words."""
    parts = [f"task {event.task}/{event.tasks}"]
    if event.loss is not None:
        parts.append(f"loss {event.loss:.3f}")
    if event.accuracy is not None:
        parts.append(f"accuracy {100 * event.accuracy:.1f} %")
    return ", ".join(parts)
