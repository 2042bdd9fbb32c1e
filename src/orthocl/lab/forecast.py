"""forecast: how long runs would take, from records in the store, or else from a few timed steps.

Time per step is a median, so that one record from a busy machine, or one step that had to wait, does not matter. Steps
are timed by the clock of the process: what other programs do meanwhile is not counted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from statistics import median, quantiles
from typing import ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from orthocl.errors import OrthoclError, TrainingError, UnsupportedError
from orthocl.lab.experiment.settings import RunSettings, StreamSettings, run_id
from orthocl.lab.run.execute import RunOptions, build_learner, make_stream, threads, total_steps
from orthocl.lab.store.record import Record
from orthocl.lab.store.store import RunState, Store
from orthocl.methods import Learner, make_method
from orthocl.streams import Split, Stream, Task
from orthocl.training import Observer, Progress, train

WARM_UP_STEPS, PROBE_STEPS, PROBE_TASKS = 2, (8, 24), 3
"""Steps of each of a few tasks: in a first training that is not counted, and in two that are."""
TEST_SAMPLES = 500
RECORD_FACTOR = 1.5
"""How far a single record may be off, either way."""
PROBE_FACTOR = 2.0
"""How far timed steps may be off, either way: memories grow with the tasks, and three tasks show little of it."""
GROWTH_SEEN = 0.05
"""Share of a step by which the steps of the third task must be slower than those of the second to be called growth."""
FINE_CLOCK = time.get_clock_info("process_time").resolution < 1e-4

Made = TypeVar("Made")


@dataclass(frozen=True)
class Forecast:
    """How long a run would take.

    Args:
        settings: the run.
        state: how far it has got; None if its data are missing.
        seconds: estimated time on one core, 0 if it is finished; None if unknown.
        low: the least time to expect.
        high: the most time to expect.
        basis: what the estimate rests on: "record" of runs with the same method, network, batch size and optimizer,
            or "probe", a few timed steps.
        count: number of those records or steps.
        note: why it is unknown, or what makes it uncertain.
    """

    settings: RunSettings
    state: RunState | None
    seconds: float | None
    low: float = 0.0
    high: float = 0.0
    basis: Literal["", "record", "probe"] = ""
    count: int = 0
    note: str = ""


@dataclass(frozen=True)
class Pace:
    """How fast runs of one kind go.

    Args:
        basis: "record" or "probe".
        count: number of records or of timed steps.
        low: factor from the estimate to the least time to expect.
        high: factor from the estimate to the most time to expect.
        step: seconds per step; from timed steps, in the first two tasks.
        slower: further seconds per step for every later task, as the memory grows.
        tested: seconds per test sample.
        task: further seconds per task.
        remembered: further seconds per training sample, once per task.
        note: what makes it uncertain.
    """

    basis: Literal["record", "probe"]
    count: int
    low: float
    high: float
    step: float
    slower: float = 0.0
    tested: float = 0.0
    task: float = 0.0
    remembered: float = 0.0
    note: str = ""

    def seconds(self, settings: RunSettings, stream: Stream) -> float:
        """Of a whole run."""
        samples = [len(task.train) for task in stream]
        steps = total_steps(settings, samples, own_batch_size(settings))
        every = settings.train.evaluate_every
        tests = 1 + len(stream) + sum(count // every for count in steps if every)
        return (
            sum(
                count * (self.step + self.slower * max(0, earlier - 1)) for earlier, count in enumerate(steps)
            )
            + self.tested * tests * sum(len(task.test) for task in stream)
            + self.task * len(stream)
            + self.remembered * sum(samples)
        )


def forecast(runs: Sequence[RunSettings], store: Store, options: RunOptions | None = None) -> list[Forecast]:
    """How long each run would take.

    Args:
        runs: the runs.
        store: where their records would go. Finished runs take no time, and the times of similar ones are used.
        options: how the runs would be executed.
    """
    options = options or RunOptions()
    known = record_paces(store)
    streams: dict[StreamSettings, Stream | OrthoclError] = {}
    paces: dict[tuple[str, str], Pace | OrthoclError] = {}
    forecasts = []
    for settings in runs:
        wanted = settings.resolved().stream
        if wanted not in streams:
            streams[wanted] = _or_error(partial(make_stream, wanted, options.data_root))
        stream = streams[wanted]
        if isinstance(stream, OrthoclError):
            forecasts.append(Forecast(settings, None, None, note=str(stream)))
            continue
        state = store.state(run_id(settings, stream.fingerprint))
        if state in ("finished", "unsupported", "damaged"):
            note = "damaged records are not repeated: see `orthocl runs doctor`" if state == "damaged" else ""
            forecasts.append(Forecast(settings, state, 0.0, note=note))
            continue
        key = (_likeness(settings), wanted.name)
        if key not in paces:
            pace = _from_records(known, *key)
            probe = partial(_probe, settings.resolved(), stream)
            paces[key] = _or_error(partial(_reported, probe)) if pace is None else pace
        forecasts.append(_of_pace(paces[key], settings, stream, state))
    return forecasts


def _of_pace(pace: Pace | OrthoclError, settings: RunSettings, stream: Stream, state: RunState) -> Forecast:
    if isinstance(pace, UnsupportedError):
        return Forecast(settings, state, 0.0, note=f"unsupported: {pace}")
    if isinstance(pace, OrthoclError):
        return Forecast(settings, state, None, note=str(pace))
    seconds = pace.seconds(settings, stream)
    low, high = pace.low * seconds, pace.high * seconds
    return Forecast(settings, state, seconds, low, high, pace.basis, pace.count, pace.note)


def _or_error(make: Callable[[], Made]) -> Made | OrthoclError:
    try:
        return make()
    except OrthoclError as error:
        return error


def _reported(probe: Callable[[], Made]) -> Made:
    """What a part of the user's own raises is the run's failure, and its forecast."""
    try:
        return probe()
    except OrthoclError:
        raise
    except Exception as error:
        raise TrainingError(f"its first steps fail: {type(error).__name__}: {error}") from error


# ---- from records -------------------------------------------------------------------------------------------

KnownPaces = Mapping[str, Mapping[str, Sequence[float]]]
"""Likeness -> name of the stream -> seconds per step of each finished run."""


def record_paces(store: Store) -> KnownPaces:
    """Seconds per step of all finished runs in a store."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in store.records():
        if record.status == "finished":
            with suppress(OrthoclError):  # its method or network may no longer exist
                streams = found.setdefault(_likeness(record.settings), {})
                streams.setdefault(record.settings.stream.name, []).append(_seconds_per_step(record))
    return found


def _seconds_per_step(record: Record) -> float:
    own = own_batch_size(record.settings)
    steps = sum(total_steps(record.settings, record.result.samples, own))
    return record.metric("seconds") / max(1, steps)


def _from_records(known: KnownPaces, likeness: str, stream: str) -> Pace | None:
    """The median of the records of this stream, or of all streams if it has none; None without any."""
    streams = known.get(likeness, {})
    times = streams.get(stream) or [seconds for others in streams.values() for seconds in others]
    if not times:
        return None
    middle = median(times)
    note = "" if stream in streams else "from records of other streams"
    if len(times) == 1 or stream not in streams:
        return Pace("record", len(times), 1 / RECORD_FACTOR, RECORD_FACTOR, middle, note=note)
    lower, _, upper = quantiles(times, n=4, method="inclusive")
    return Pace("record", len(times), lower / middle, upper / middle, middle)


def _likeness(settings: RunSettings) -> str:
    """Runs of equal likeness take about the same time per step."""
    resolved = settings.resolved()
    return repr((resolved.method, resolved.net, resolved.train.batch_size, resolved.train.optimizer))


def own_batch_size(settings: RunSettings) -> int | None:
    """The batch size that a method asks for, or None."""
    method = settings.resolved().method
    return make_method(method.name, method.settings).batch_size


# ---- from timed steps ---------------------------------------------------------------------------------------


class Stopwatch(Observer):
    """Times a training by the clock of the process.

    `first_test` is the time of testing the untrained network, `steps` are the times of the steps of each task, and
    `last_task` is the time of the latest task, with its test.
    """

    reads_weights: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last = cpu_clock()
        self.first_test = self.last_task = 0.0
        self.steps: list[list[float]] = []
        self.samples = self.tested = 0

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """The untrained network was tested."""
        self.first_test = self._lap()
        self.samples = len(stream[-1].train)
        self.tested = sum(len(task.test) for task in stream)

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """A step was taken."""
        spent = self._lap()
        if progress.step == 1:
            self.steps.append([])
            self.last_task = 0.0
        self.steps[-1].append(spent)
        self.last_task += spent

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """A task is over, and all tasks were tested."""
        self.last_task += self._lap()

    def steps_of(self, task: int) -> list[float]:
        """Without the first, which also starts the task, unless it is the only one. `task` is counted from 0."""
        steps = self.steps[min(task, len(self.steps) - 1)]
        return steps[1:] or steps

    def rest(self, step: float) -> float:
        """What the latest task took apart from its steps, at this time each, and its test."""
        return max(0.0, self.last_task - len(self.steps[-1]) * step - self.first_test)

    def _lap(self) -> float:
        now = cpu_clock()
        spent, self._last = now - self._last, now
        return spent


def cpu_clock() -> float:
    """Processor seconds of this process, or wall-clock seconds where that clock is coarse."""
    return time.process_time() if FINE_CLOCK else time.perf_counter()


def _probe(settings: RunSettings, stream: Stream) -> Pace:
    """The pace on three tiny tasks: on the second the method has something to remember, on the third more of it."""
    _timed_training(settings, stream, WARM_UP_STEPS)
    wall, computed = time.perf_counter(), cpu_clock()
    few, more = (_timed_training(settings, stream, steps) for steps in PROBE_STEPS)
    slowdown = (time.perf_counter() - wall) / max(1e-9, cpu_clock() - computed)
    second, last = more.steps_of(1), more.steps_of(2)
    step = median(second)
    slower = min(last) - min(
        second
    )  # of steps that nothing delayed: the difference is multiplied by the tasks
    slower = slower if slower > GROWTH_SEEN * step else 0.0
    rests = [each.rest(step + slower) for each in (few, more)]
    growth = max(0.0, rests[1] - rests[0]) / max(1, more.samples - few.samples)
    busy = FINE_CLOCK and slowdown > PROBE_FACTOR
    return Pace(
        "probe",
        len(second + last),
        1 / PROBE_FACTOR,
        max(PROBE_FACTOR, slowdown if FINE_CLOCK else 1.0),
        step,
        slower,
        tested=min(few.first_test, more.first_test) / max(1, more.tested),
        task=max(0.0, rests[0] - growth * few.samples),
        remembered=growth,
        note=f"this machine is busy: the timed steps took {slowdown:.1f} times their own time"
        if busy
        else "",
    )


def _timed_training(settings: RunSettings, stream: Stream, steps: int) -> Stopwatch:
    """Train a new network for a few steps of each of the first tasks, with one thread."""
    size = own_batch_size(settings) or settings.train.batch_size
    excerpt = Excerpt.of(stream, tasks=PROBE_TASKS, train=steps * size, test=TEST_SAMPLES)
    with torch.random.fork_rng(devices=[]), threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these few steps warn of need not be true of the run
        learner = build_learner(settings, excerpt)
        watch = Stopwatch()
        once = replace(settings.train, epochs=1, evaluate_every=None)
        train(learner, excerpt, once, seed=settings.seed, observers=[watch])
    return watch


@dataclass(frozen=True, eq=False, kw_only=True)
class Excerpt(Stream):
    """The first tasks of a stream, with the first samples of each."""

    whole: Stream
    tasks: int
    train: int
    test: int

    @classmethod
    def of(cls, stream: Stream, *, tasks: int, train: int, test: int) -> Excerpt:
        """At most this many tasks and samples of a stream."""
        return cls(
            name=stream.name,
            input_shape=stream.input_shape,
            heads=stream.heads,
            whole=stream,
            tasks=min(tasks, len(stream)),
            train=train,
            test=test,
        )

    def __len__(self) -> int:
        return self.tasks

    def task(self, number: int) -> Task:
        """The task at position `number`, counted from 1."""
        self.check_number(number)
        task = self.whole.task(number)
        return replace(task, train=_First(task.train, self.train), test=_First(task.test, self.test))


class _First(Split):
    """The first samples of a split."""

    def __init__(self, split: Split, count: int):
        self._split, self.targets = split, split.targets[:count]

    def inputs(self, index: Tensor | slice | None = None) -> Tensor:
        chosen = torch.arange(len(self.targets))
        return self._split.inputs(chosen if index is None else chosen[index])
