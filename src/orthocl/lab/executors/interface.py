"""What every executor accepts and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from orthocl.errors import SettingsError, StoreError
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunOptions, identify
from orthocl.lab.store.record import Record
from orthocl.lab.store.store import Store

EventKind = Literal[
    "known",
    "started",
    "progress",
    "finished",
    "unsupported",
    "failed",
    "paused",
    "interrupted",
    "elsewhere",
    "stopping",
    "note",
]

FINAL_KINDS: frozenset[EventKind] = frozenset(
    ("finished", "unsupported", "failed", "paused", "interrupted", "elsewhere")
)
"""The kinds of events that end an attempt at a run."""


@dataclass(frozen=True)
class Event:
    """Something that happened to a run.

    Args:
        kind: "known" (it already has a record), "started", "progress", "finished", "unsupported", "failed",
            "paused" (it got as far as it should for now), "interrupted", "elsewhere" (another process is executing it),
            "stopping" (all runs were asked to stop), or "note" (text for people).
        run: id of the run.
        settings: the run.
        task: task being learnt, counted from 1.
        tasks: number of tasks.
        step: steps taken in that task.
        steps: number of steps in that task.
        loss: loss of the latest step.
        accuracy: mean test accuracy on the tasks learnt so far, when last measured.
        text: reason or note.
    """

    kind: EventKind
    run: str
    settings: RunSettings
    task: int = 0
    tasks: int = 0
    step: int = 0
    steps: int = 0
    loss: float | None = None
    accuracy: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        run: id of the run.
        settings: the run as requested, with its labels.
        status: "finished" and "unsupported" come with a record, "failed" with a reason; "interrupted" runs resume with
            the next call; "elsewhere" means that another process is executing it.
        record: the record.
        reason: why it is unsupported or failed.
        known: whether the record already existed.
    """

    run: str
    settings: RunSettings
    status: Literal["finished", "unsupported", "failed", "interrupted", "elsewhere"]
    record: Record | None = None
    reason: str = ""
    known: bool = False


OnEvent = Callable[[Event], None]


class Executor(Protocol):
    """Executes runs, somewhere."""

    def run_all(
        self, runs: Sequence[RunSettings], store: Store, *, options: RunOptions, on_event: OnEvent
    ) -> list[Outcome]:
        """Execute all runs that have no record yet. One outcome per run, in order; failures do not stop it."""


def pending(
    runs: Sequence[RunSettings], store: Store, options: RunOptions, on_event: OnEvent
) -> tuple[list[str], dict[str, RunSettings]]:
    """The ids of all runs, and by id those that have no record yet (equal runs once).

    Runs whose record is damaged are left alone: it says why, and is never overwritten.
    """
    ids = identify(runs, options.data_root)
    todo: dict[str, RunSettings] = {}
    for run, settings in zip(ids, runs, strict=True):
        try:
            if store.record(run) is None:
                todo.setdefault(run, settings)
            else:
                on_event(Event("known", run, settings))
        except StoreError as error:
            on_event(Event("failed", run, settings, text=str(error)))
    if todo:
        store.check_writable()
    return ids, todo


def gather(
    ids: Sequence[str],
    runs: Sequence[RunSettings],
    store: Store,
    todo: Mapping[str, RunSettings],
    failures: Mapping[str, str],
) -> list[Outcome]:
    """The outcomes of runs, from the store and the reasons why some failed."""
    outcomes = []
    for run, settings in zip(ids, runs, strict=True):
        try:
            record = store.record(run)
        except StoreError as error:
            outcomes.append(Outcome(run, settings, "failed", reason=str(error)))
            continue
        if record is not None:
            outcomes.append(
                Outcome(run, settings, record.status, record, record.reason, known=run not in todo)
            )
        elif run in failures:
            outcomes.append(Outcome(run, settings, "failed", reason=failures[run]))
        else:
            elsewhere = store.state(run) == "running"
            outcomes.append(Outcome(run, settings, "elsewhere" if elsewhere else "interrupted"))
    return outcomes


def check_positive(**values: float | None) -> None:
    """Reject settings of an executor that are not above zero; None is allowed."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise SettingsError(f"{name} must be above 0, got {value}")


def check_not_negative(**values: float) -> None:
    """Reject settings of an executor below zero."""
    for name, value in values.items():
        if value < 0:
            raise SettingsError(f"{name} must be 0 or more, got {value}")
