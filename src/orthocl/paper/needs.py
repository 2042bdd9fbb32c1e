"""What an item needs: data, runs and hours, and how much of it is already there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orthocl.formatting import counted, size_text, time_text
from orthocl.lab import RunOptions, RunSettings, Store, forecast
from orthocl.paper.evidence import Evidence
from orthocl.streams import STREAMS
from orthocl.streams.datasets import ENTRIES, status

BIRDS = "orthocl data fetch cub200; orthocl data fetch alexnet; orthocl data prepare cub200"


@dataclass(frozen=True)
class DataNeed:
    """A data set that runs need.

    Args:
        name: of the data set.
        present: whether it is there.
        size: bytes: on disk if it is there, of its files if they are known, else 0.
        how: where it is, or how to get it.
    """

    name: str
    present: bool
    size: int
    how: str

    def text(self) -> str:
        """One line."""
        size = f", {size_text(self.size)}" if self.size else ""
        return f"{self.name}{size}: {self.how if self.present else f'not there; {self.how}'}"


@dataclass(frozen=True)
class Needs:
    """What an item needs.

    Args:
        data: its data sets.
        runs: how many runs it consists of.
        finished: how many of them have a record.
        possible: those without a record whose data are there.
        seconds: about how long they take on one core; None if not requested or unknown.
    """

    data: tuple[DataNeed, ...]
    runs: int
    finished: int
    possible: tuple[RunSettings, ...]
    seconds: float | None

    def lines(self, jobs: int = 1) -> list[str]:
        """For people."""
        lines = [f"data: {need.text()}" for need in self.data]
        missing = self.runs - self.finished
        blocked = missing - len(self.possible)
        text = f"{counted(self.runs, 'run')}: {self.finished} in the store, {missing} to make"
        if blocked:
            text += f", {blocked} of them without their data"
        lines.append(text)
        if self.seconds:
            at_once = max(1, min(jobs, len(self.possible)))
            lines.append(
                f"about {time_text(self.seconds)} of computing on one core, {time_text(self.seconds / at_once)} with "
                f"{at_once} at a time"
            )
        return lines


def needed_data(runs: Sequence[RunSettings], data_root: str | Path | None = None) -> tuple[DataNeed, ...]:
    """The data sets of these runs, each once."""
    names = list(dict.fromkeys(data for run in runs if (data := STREAMS[run.stream.name].data)))
    if not set(names) - {"mnist-mini"}:
        return tuple(DataNeed(name, True, 0, "comes with the package") for name in names)
    rows = {row.name: row for row in status(data_root)}
    found = []
    for name in names:
        row = rows["cub200 features" if name == "cub200" else name]
        if row.state in ("verified", "unverified"):
            found.append(DataNeed(name, True, row.size, f"in {row.where}" if row.where else row.detail))
            continue
        editions = ENTRIES[name].editions if name in ENTRIES else ()
        size = sum(file.size for file in editions[0].files) if editions else 0
        how = BIRDS if name == "cub200" else f"orthocl data fetch {name}"
        found.append(DataNeed(name, False, size, how if row.state == "missing" else row.detail))
    return tuple(found)


def find_needs(
    evidence: Evidence, store: Store, data_root: str | Path | None = None, timed: bool = True
) -> Needs:
    """What is needed for the runs of some evidence that have no record yet.

    Args:
        evidence: runs and records.
        store: where the time of similar runs is looked up.
        data_root: folder of the data sets.
        timed: also say how long it takes, which may need a few steps of training.
    """
    data = needed_data(evidence.runs, data_root) if evidence.runs else ()
    there = {"", *(need.name for need in data if need.present)}
    possible = tuple(run for run in evidence.missing if STREAMS[run.stream.name].data in there)
    seconds = None
    if timed and possible:
        options = RunOptions(data_root=None if data_root is None else str(data_root))
        times = [plan.seconds for plan in forecast(possible, store, options)]
        seconds = sum(time for time in times if time) if any(times) else None
    return Needs(data, len(evidence.runs), len(evidence.pairs), possible, seconds)
