"""Evidence: the finished records that belong to an experiment's runs, found by their settings.

Records are matched by settings and seed, not by id: ids also cover the data, which a reader of kept records need not
have. The fingerprint of the data is in every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from orthocl.errors import StoreError, warn
from orthocl.lab import Record, RunSettings, Store
from orthocl.lab.experiment.settings import ACCEPTED_VERSIONS
from orthocl.metrics import memorised_variation, over_parameterisation
from orthocl.paper.samples import Sample

Pair = tuple[RunSettings, Record]
Measure = Callable[[Record], float]


@dataclass(frozen=True)
class Evidence:
    """Runs of an experiment with the records that there are.

    Args:
        runs: all runs that the experiment asks for, with their labels.
        pairs: (run with its labels, record) of those that have one.
        diverged: (run with its labels, what happened) of those whose loss did not stay finite.
    """

    runs: tuple[RunSettings, ...] = ()
    pairs: tuple[Pair, ...] = ()
    diverged: tuple[tuple[RunSettings, str], ...] = ()

    @property
    def missing(self) -> tuple[RunSettings, ...]:
        """The runs without a record, those that diverged among them: they may be tried again."""
        found = {id(run) for run, _ in self.pairs}
        return tuple(run for run in self.runs if id(run) not in found)

    @property
    def streams(self) -> list[str]:
        """Labels of the streams asked for, in order."""
        return list(dict.fromkeys(run.stream_label for run in self.runs))

    def methods(self, stream: str | None = None) -> list[str]:
        """Labels of the methods asked for (on one stream), in order."""
        chosen = (run for run in self.runs if stream in (None, run.stream_label))
        return list(dict.fromkeys(run.method_label for run in chosen))

    def records(self, stream: str, method: str) -> list[Record]:
        """The finished records of a method on a stream."""
        return [
            record
            for run, record in self.pairs
            if (run.stream_label, run.method_label) == (stream, method) and record.status == "finished"
        ]

    def sample(self, stream: str, method: str, measure: Measure) -> Sample:
        """A number over the seeds of a method on a stream."""
        return Sample({record.settings.seed: measure(record) for record in self.records(stream, method)})

    def diverged_seeds(self, stream: str, method: str) -> list[int]:
        """The seeds with which a method diverged on a stream."""
        return [
            run.seed for run, _ in self.diverged if (run.stream_label, run.method_label) == (stream, method)
        ]

    def only(self, streams: Iterable[str]) -> Evidence:
        """The part on some streams."""
        chosen = set(streams)
        return Evidence(
            tuple(run for run in self.runs if run.stream_label in chosen),
            tuple((run, record) for run, record in self.pairs if run.stream_label in chosen),
            tuple((run, reason) for run, reason in self.diverged if run.stream_label in chosen),
        )

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.runs + other.runs, self.pairs + other.pairs, self.diverged + other.diverged)


def seeds_behind(evidence: Evidence) -> str:
    """Over how many seeds our numbers are, stream by stream; the captions of the print speak of its own."""
    parts = []
    for stream in evidence.streams:
        counts = {len(evidence.records(stream, method)) for method in evidence.methods(stream)} - {0}
        if counts:
            many = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
            parts.append(f"{many} on {stream}")
    return f" (That is the print's caption; seeds of ours: {', '.join(parts)}.)" if parts else ""


class RecordIndex:
    """The records of a store, by settings and seed."""

    def __init__(self, store: Store):
        self._by_settings: dict[tuple[str, int], Record] = {}
        for record in store.records():
            if record.code in ACCEPTED_VERSIONS:
                key = record.settings.without_seed(), record.settings.seed
                self._by_settings[key] = record
        self._diverged = {
            (settings.without_seed(), settings.seed): reason for _, settings, reason in diverged_runs(store)
        }

    def __len__(self) -> int:
        return len(self._by_settings)

    @property
    def diverged(self) -> list[tuple[str, int]]:
        """Settings and seeds of the runs that diverged."""
        return list(self._diverged)

    def find(self, runs: Sequence[RunSettings]) -> Evidence:
        """The records of these runs."""
        pairs, diverged = [], []
        for run in runs:
            key = settings_key(run)
            record = self._by_settings.get(key)
            if record is not None:
                pairs.append((run, record))
            elif key in self._diverged:
                diverged.append((run, self._diverged[key]))
        return Evidence(tuple(runs), tuple(pairs), tuple(diverged))

    def records(self) -> list[Record]:
        """All records, in the order of their ids."""
        return sorted(self._by_settings.values(), key=lambda record: record.id)


def diverged_runs(store: Store) -> list[tuple[str, RunSettings, str]]:
    """Id, settings and reason of the runs without a record whose last attempt, with this code, diverged."""
    found = []
    for run in store.ids():
        failure = store.failure(run)
        if failure is None or not failure.get("diverged") or failure.get("code") not in ACCEPTED_VERSIONS:
            continue
        try:
            settings = store.settings(run)
        except StoreError as error:
            warn(f"left out: {error}")
            continue
        if store.state(run) == "failed":
            found.append((run, settings, failure["reason"]))
    return found


def settings_key(run: RunSettings) -> tuple[str, int]:
    """What makes two runs the same, data aside: their settings, and their seed."""
    return _without_seed(replace(run, seed=0)), run.seed


@lru_cache(maxsize=4096)
def _without_seed(run: RunSettings) -> str:
    """Resolving settings takes a millisecond or two, and most runs differ from others in their seed only."""
    return run.resolved().without_seed()


# ---- what is measured, in percent and with the signs of the print -------------------------------------------------


def aac(record: Record) -> float:
    """Average accuracy."""
    return 100 * record.metric("aac")


def bwt(record: Record) -> float:
    """Backward transfer."""
    return 100 * record.metric("bwt")


def fwt(record: Record) -> float:
    """Forward transfer."""
    return 100 * record.metric("fwt")


def afm(record: Record) -> float:
    """Average forgetting with the sign of the print: -F_T."""
    return -100 * record.metric("forgetting")


METRICS: dict[str, Measure] = {"aac": aac, "bwt": bwt, "fwt": fwt, "afm": afm}


def last_ten(record: Record) -> float:
    """Average accuracy on the tasks so far, mean over the last ten tasks: that of a single one moves by points."""
    rows = record.result.accuracies
    counts = range(max(1, len(rows) - 10), len(rows))
    return 100 * sum(sum(rows[count][:count]) / count for count in counts) / len(counts)


def final_accuracy(task: int) -> Measure:
    """Test accuracy on a task after the last one."""
    return lambda record: 100 * record.result.accuracies[-1][task - 1]


def memorised(task: int) -> Measure:
    """Variation of the training accuracy on the memorised samples of a task."""
    return lambda record: 100 * memorised_variation(record.result.memorised, task)


def memorised_everywhere(record: Record) -> float:
    """The same, mean over the tasks that others followed."""
    tasks = range(1, len(record.result.memorised))
    values = [memorised(task)(record) for task in tasks]
    return sum(values) / len(values) if values else 0.0


def over_parameters(record: Record) -> float:
    """O: parameters over samples per task."""
    return over_parameterisation(record.result.parameters, record.result.samples)
