"""LiveTable: what a terminal shows of the runs under way, fitted to the terminal whenever it is drawn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from orthocl.lab.executors.interface import Event

SLACK = 3
"""Columns left free: a terminal that writes ^C after the last line must not begin a new one."""
WIDTHS = {"task": 10, "accuracy": 17, "loss": 13, "time": 8, "left": 13}
PRIORITY = ("task", "time", "accuracy", "bar", "left", "loss")
SHOWN = ("label", "bar", "task", "accuracy", "loss", "time", "left")
SHORTEST_BAR, LONGEST_BAR, SHORTEST_LABEL = 8, 40, 24


@dataclass
class Line:
    """A run in progress."""

    label: str
    since: float
    at: Event | None = None
    loss: float | None = None
    first: tuple[float, float] = (0.0, 0.0)
    """When it was first heard of, and how much of it was done then: a resumed run begins in the middle."""

    @property
    def done(self) -> float:
        """Share of the run that is done."""
        if self.at is None or not self.at.tasks:
            return 0.0
        return (self.at.task - 1 + self.at.step / max(1, self.at.steps)) / self.at.tasks


class LiveTable:
    """What is going on; rich draws it."""

    def __init__(self, labels: Sequence[str], clock: Callable[[], float] = time.monotonic):
        self.runs, self.clock = len(labels), clock
        self.widest = max(map(len, labels), default=0)
        self.began = clock()
        self.lines: dict[str, Line] = {}
        self.endings: Counter[str] = Counter()
        self.resumed = 0.0
        self.first: float | None = None

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self.began

    def on_event(self, event: Event) -> None:
        """Take note of an event."""
        if event.kind == "started":
            self.first = self.clock() if self.first is None else self.first
            self.lines[event.run] = Line(event.settings.label, self.clock())
        elif event.kind == "progress" and event.run in self.lines:
            line = self.lines[event.run]
            fresh = line.at is None
            line.at = event
            line.loss = line.loss if event.loss is None else event.loss
            if fresh:
                line.first = (self.clock(), line.done)
                self.resumed += line.done
        elif event.kind in ("known", "finished", "unsupported", "failed", "paused", "interrupted"):
            self.lines.pop(event.run, None)
            self.endings[event.kind] += 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """As many lines as fit."""
        shown = fitting(self.widest, options.max_width - SLACK)
        table = Table.grid(
            *(Column(width=width, no_wrap=True, justify=_justify(name)) for name, width in shown.items())
        )
        whole = self._whole()
        if "left" not in shown:
            whole["accuracy"] = whole["left"]  # the number that people most want to see
        table.add_row(*(whole[name] for name in shown))
        room = max(1, options.size.height - 3)
        lines = list(self.lines.values())
        if len(lines) > room:
            lines, hidden = lines[: room - 1], len(lines) - room + 1
        else:
            hidden = 0
        for line in lines:
            cells = self._cells(line, shown["label"] - 1)
            table.add_row(*(cells[name] for name in shown))
        yield table
        if hidden:
            yield Text(f"and {hidden} more", style="dim")

    def _whole(self) -> dict[str, RenderableType]:
        """All runs together."""
        ended = self.endings.total() - self.endings["interrupted"]
        done = ended + sum(line.done for line in self.lines.values())
        made = done - self.endings["known"] - self.resumed
        since = 0.0 if self.first is None else self.clock() - self.first
        left = _left(since, made, self.runs - done)
        failed = self.endings["failed"]
        return {
            "label": Text("all runs", style="bold"),
            "bar": ProgressBar(total=max(1, self.runs), completed=done),
            "task": f"{ended - failed}/{self.runs}",
            "accuracy": Text(f"{failed} failed" if failed else "", style="red"),
            "loss": "",
            "time": _clock_text(self.elapsed()),
            "left": left if self.lines or ended else Text("starting", style="dim"),
        }

    def _cells(self, line: Line, width: int) -> dict[str, RenderableType]:
        """One run; a label that is too long loses its beginning."""
        at, now = line.at, self.clock()
        label = line.label if len(line.label) <= width else "…" + line.label[len(line.label) - width + 1 :]
        accuracy = None if at is None else at.accuracy
        return {
            "label": Text(label),
            "bar": ProgressBar(total=1.0, completed=line.done),
            "task": "starting" if at is None else f"task {at.task}/{at.tasks}",
            "accuracy": "" if accuracy is None else f"accuracy {100 * accuracy:.1f} %",
            "loss": "" if line.loss is None else f"loss {line.loss:{'.3f' if line.loss < 1000 else '.1e'}}",
            "time": _clock_text(now - line.since),
            "left": ""
            if at is None
            else _left(now - line.first[0], line.done - line.first[1], 1 - line.done),
        }


def fitting(label: int, width: int) -> dict[str, int]:
    """The columns that fit a terminal, in order, with their widths.

    >>> fitting(29, 117)
    {'label': 30, 'bar': 26, 'task': 10, 'accuracy': 17, 'loss': 13, 'time': 8, 'left': 13}
    >>> fitting(29, 77)
    {'label': 30, 'bar': 12, 'task': 10, 'accuracy': 17, 'time': 8}
    >>> fitting(60, 77)
    {'label': 42, 'task': 10, 'accuracy': 17, 'time': 8}
    >>> fitting(29, 37)
    {'label': 27, 'task': 10}
    """
    most = max(
        SHORTEST_LABEL, width // 2
    )  # what a long label says last, such as the seed, is what tells runs apart
    chosen = {"label": max(SHORTEST_LABEL // 2, min(label + 1, most, width - WIDTHS["task"]))}
    room = width - chosen["label"]
    for name in PRIORITY:
        needed = WIDTHS.get(name, SHORTEST_BAR + 1)
        if needed <= room:
            chosen[name] = needed
            room -= needed
    if "bar" in chosen:
        chosen["bar"] = min(LONGEST_BAR, chosen["bar"] + room)
    else:
        chosen["label"] += max(0, min(room, label + 1 - chosen["label"]))
    return {name: chosen[name] for name in SHOWN if name in chosen}


def _left(seconds: float, done: float, rest: float) -> str:
    """The time left, once enough is done to tell."""
    if done <= 0.02 or seconds < 1.0 or rest <= 0:
        return ""
    return f"{_clock_text(seconds * rest / done)} left"


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _justify(name: str) -> Literal["left", "right"]:
    return "left" if name in ("label", "bar") else "right"
