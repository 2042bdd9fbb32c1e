"""`orthocl runs list`: the runs of a store by date, with the settings that tell them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from orthocl.cli.help_only import HELP_ONLY
from orthocl.errors import StoreError
from orthocl.formatting import plain_text, time_text

if not HELP_ONLY:
    from orthocl.lab.experiment.grid import flat
    from orthocl.lab.reporting.groups import differing, labels, value_text
    from orthocl.lab.store.store import Store

MOST_COMPARED = 1000
"""Settings are read from one file per run: of more runs than this they are not compared."""
HEADS = ("id", "when", "stream", "method", "seed", "state", "AAC %", "time", "differs in")


@dataclass(frozen=True)
class Line:
    """One run.

    Args:
        id: of the run.
        when: when something last happened to it, in seconds since 1970.
        stream: what tables call its stream.
        method: what tables call its method.
        seed: as text; "?" if unknown.
        state: finished, unfinished, failed, ...
        aac: average accuracy.
        seconds: that it took.
        differs: settings in which runs of the same stream and method differ.
    """

    id: str
    when: float
    stream: str
    method: str
    seed: str
    state: str
    aac: float | None = None
    seconds: float | None = None
    differs: str = ""

    def cells(self) -> list[str]:
        """For people."""
        when = datetime.fromtimestamp(self.when).strftime("%Y-%m-%d %H:%M") if self.when else "?"
        aac = "" if self.aac is None else f"{100 * self.aac:.2f}"
        seconds = "" if self.seconds is None else time_text(self.seconds)
        texts = (self.stream, self.method, self.seed, self.state, aac, seconds, self.differs)
        return [self.id[:8], when, *map(plain_text, texts)]

    def values(self) -> dict[str, Any]:
        """For scripts."""
        when = datetime.fromtimestamp(self.when).astimezone().isoformat(timespec="seconds")
        return asdict(self) | {"when": when if self.when else None}


def find_lines(store: Store, stream: str = "*", method: str = "*", last: int | None = None) -> list[Line]:
    """The runs whose stream and method match, the newest last.

    Args:
        store: where they are.
        stream: pattern of what tables call the stream.
        method: pattern of what tables call the method.
        last: only this many, the newest.
    """
    found = [
        line
        for line in _lines(store)
        if fnmatchcase(line.stream, stream) and fnmatchcase(line.method, method)
    ]
    found.sort(key=lambda line: (line.when, line.id))
    chosen = found if last is None else found[len(found) - min(last, len(found)) :]
    return _compared(store, chosen) if len(chosen) <= MOST_COMPARED else chosen


def _lines(store: Store) -> Iterator[Line]:
    summaries = {line.id: line for line in store.index()}
    newest = {line.setting: line for line in sorted(summaries.values(), key=lambda line: line.finished)}
    for run in store.ids():
        when, known = _when(store, run), summaries.get(run)
        if known is not None:
            seed = "?" if known.status == "damaged" else str(known.seed)
            named = newest[known.setting] if known.setting else known  # as tables do: one setting, one name
            when = _finished(known.finished, when)
            yield Line(run, when, named.stream, named.method, seed, known.status, known.aac, known.seconds)
            continue
        try:
            settings = store.settings(run)
            yield Line(run, when, *labels(settings), str(settings.seed), str(store.state(run)))
        except StoreError:
            yield Line(run, when, "?", "?", "?", "damaged")


def _finished(text: str, written: float) -> float:
    """When a record says that its run finished: a copied file is younger. Its own file knows fractions of a second."""
    try:
        finished = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return written
    return written if finished <= written < finished + 2 else finished


def _when(store: Store, run: str) -> float:
    """When the newest of a run's files was written."""
    times = [0.0]
    with suppress(OSError):
        times.append(store.folder(run).stat().st_mtime)
        for name in ("record.json", "settings.json"):
            with suppress(OSError):
                times.append((store.folder(run) / name).stat().st_mtime)
    return max(times)


def _compared(store: Store, lines: Sequence[Line]) -> list[Line]:
    """The same lines with the settings in which runs of equal labels differ, besides the seed."""
    tables: dict[str, dict[str, Any]] = {}
    for line in lines:
        with suppress(StoreError):
            values = flat(store.settings(line.id).to_dict())
            tables[line.id] = {key: value for key, value in values.items() if key != "seed"}
    groups: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line.id in tables:
            groups.setdefault((line.stream, line.method), []).append(line.id)
    keys = {labels: differing([tables[run] for run in runs]) for labels, runs in groups.items()}
    return [
        replace(line, differs=_settings_text(tables[line.id], keys[line.stream, line.method]))
        if line.id in tables
        else line
        for line in lines
    ]


def _settings_text(values: dict[str, Any], keys: Sequence[str]) -> str:
    return " ".join(f"{key}={value_text(values[key])}" for key in keys if key in values)


def lines_text(lines: Sequence[Line]) -> Iterator[str]:
    """Lines of text in columns.

    Plain text, not a table of rich: ten thousand lines should take a moment, and go through grep unharmed.
    """
    rows = [list(HEADS), *(line.cells() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = (HEADS.index("AAC %"), HEADS.index("time"))
    for row in rows:
        cells = (
            cell.rjust(width) if place in numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
