"""Execute one run: build, resume where it was left, train, record.

A run may be killed at any moment. Checkpoints are written after every task, and within a task at certain steps (the
multiples of `SETTLE_STEPS`) whenever enough time has passed. At those steps the weights are settled whether or not a
checkpoint is written, so that when checkpoints happen has no influence on a single bit of the result.
"""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from orthocl.errors import OrthoclError, UnsupportedError
from orthocl.lab.claims import Claim, ClaimedError
from orthocl.lab.record import Record, Result, circumstances
from orthocl.lab.settings import RunSettings, StreamSettings, canonical, run_id
from orthocl.lab.store import Store
from orthocl.lab.text import counted
from orthocl.methods import Learner, make_method
from orthocl.methods.state import write_atomically, write_state
from orthocl.nets import make_net
from orthocl.streams import Stream, make
from orthocl.training import Observer, Progress, TrainSettings, attach, train
from orthocl.training.checkpoint import load_checkpoint, save_checkpoint
from orthocl.training.seeds import derive_seed

SETTLE_STEPS = 64


class InterruptedRun(OrthoclError):
    """A run was asked to stop; its checkpoint is on disk."""


class PausedRun(InterruptedRun):
    """A run got as far as `RunOptions.pause_after` says."""


@dataclass(frozen=True)
class RunOptions:
    """How to execute a run; none of these has an influence on its result.

    Args:
        checkpoint_seconds: at least this much time between checkpoints within a task.
        keep_weights: write the final weights.
        data_root: folder of the data sets.
        threads: threads of torch; None leaves them alone. A resumed run uses the number it was started with,
            because sums over threads round differently.
        trackers: names of trackers to report to, such as "tensorboard".
        pause_after: stop after this many tasks, with a checkpoint, as if interrupted; a later call goes on.
    """

    checkpoint_seconds: float = 120.0
    keep_weights: bool = True
    data_root: str | None = None
    threads: int | None = None
    trackers: tuple[str, ...] = ()
    pause_after: int | None = None


class RunObserver(Observer):
    """A training observer that also hears which run it is and what came of it: what trackers derive from.

    `on_run`, then the training observer's `on_start`, `on_step`, `on_task`, then `on_record`. After an interruption
    the run is announced again, and `on_start` gets the progress so far.
    """

    def on_run(self, run: str, settings: RunSettings, folder: Path) -> None:
        """A run begins or is resumed."""

    def on_record(self, record: Record) -> None:
        """The run is finished, or is known to be unsupported."""

    def on_end(self) -> None:
        """The run is over, one way or another: let go of what is open."""


def execute(
    settings: RunSettings,
    store: Store,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008  # frozen
    observers: Sequence[RunObserver] = (),
    stop: Callable[[], bool] = lambda: False,
    stream: Stream | None = None,
) -> Record:
    """Make one run, or go on with it, or return its record if it is there.

    Args:
        settings: what to run.
        store: where its record goes.
        options: how to run it.
        observers: watchers, such as trackers or a progress bar.
        stop: asked now and then; when true, a checkpoint is written and `InterruptedRun` raised.
        stream: the stream, if it is not to be made from `settings.stream`.

    Raises:
        ClaimedError: another process is making this run.
        InterruptedRun: `stop` said so.
        OrthoclError: the run failed; the reason is in the store too.
    """
    settings = settings.resolved()
    stream = make_stream(settings.stream, options.data_root) if stream is None else stream
    run = run_id(settings, stream.fingerprint)
    found = store.record(run)
    if found is not None:
        return found
    with store.claim(run) as claim:
        found = store.record(run)  # it may have been finished between the look and the claim
        if found is None:
            try:
                for observer in observers:
                    observer.on_run(run, settings, store.folder(run))
                found = _make(settings, stream, run, store, options, observers, stop, claim)
                for observer in observers:
                    observer.on_record(found)
            finally:
                for observer in observers:
                    observer.on_end()
        claim.finish()
        return found


def _make(
    settings: RunSettings,
    stream: Stream,
    run: str,
    store: Store,
    options: RunOptions,
    observers: Sequence[RunObserver],
    stop: Callable[[], bool],
    claim: Claim,
) -> Record:
    with torch.random.fork_rng(devices=[]), _threads(options.threads):
        start = store.begin(
            run, settings, {"threads": torch.get_num_threads(), "time": _now(), "system": platform.system()}
        )
        torch.set_num_threads(int(start.get("threads", torch.get_num_threads())))
        try:
            learner = build_learner(settings, stream)
            keeper = _Keeper(store, run, settings.train, options, stop, claim)
            progress = None
            if store.checkpoint(run).exists():
                progress = load_checkpoint(store.checkpoint(run), learner, stream)
                keeper.resumed(progress)
            progress = train(
                learner,
                stream,
                settings.train,
                seed=settings.seed,
                progress=progress,
                observers=(keeper, *observers),
            )
            record = _record(run, settings, stream, learner.model, keeper.finished(progress))
        except UnsupportedError as error:
            record = Record(
                run, settings, describe_stream(stream), "unsupported", str(error), provenance=circumstances()
            )
        except (InterruptedRun, ClaimedError):
            raise
        except Exception as error:
            store.write_failure(run, _failure(error))
            raise
        if options.keep_weights and record.status == "finished":
            write_state(store.folder(run) / "weights.safetensors", dict(learner.model.state_dict()))
        store.write_record(record)
        return record


def make_stream(settings: StreamSettings, data_root: str | None = None) -> Stream:
    """The stream of these settings."""
    return make(
        settings.name,
        tasks=settings.tasks,
        seed=settings.seed,
        data_root=data_root,
        train_size=settings.train_size,
        test_size=settings.test_size,
        options=settings.options,
    )


def identify(runs: Sequence[RunSettings], data_root: str | None = None) -> list[str]:
    """The ids of runs; each stream is made once, because its data are part of the identity."""
    fingerprints: dict[str, str] = {}
    ids = []
    for run in runs:
        stream = run.resolved().stream
        key = canonical(asdict(stream))
        if key not in fingerprints:
            fingerprints[key] = make_stream(stream, data_root).fingerprint
        ids.append(run_id(run, fingerprints[key]))
    return ids


def build_learner(settings: RunSettings, stream: Stream) -> Learner:
    """Network, optimizer and method of a run, all seeded by its seed, component by component."""
    model = make_net(
        settings.net.name,
        stream.input_shape,
        stream.heads,
        dict(settings.net.settings),
        seed=derive_seed("init", settings.seed),
    )
    torch.manual_seed(derive_seed("training", settings.seed))  # dropout draws from the global generator
    method = make_method(settings.method.name, dict(settings.method.settings))
    optimizer = make_optimizer(settings.train, model)
    return attach(method, model, optimizer, seed=settings.seed, batch_norm=settings.train.batch_norm)


def make_optimizer(settings: TrainSettings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of these settings."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(
            model.parameters(), lr=rate, weight_decay=decay, momentum=settings.momentum
        )
    return torch.optim.SGD(
        model.parameters(),
        lr=rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=decay,
    )


def describe_stream(stream: Stream) -> dict[str, Any]:
    """The stream as it goes into the record."""
    return {
        "name": stream.name,
        "fingerprint": stream.fingerprint,
        "settings": json.loads(json.dumps(dict(stream.settings))),
        "tasks": [task.name for task in stream],
    }


def total_steps(settings: RunSettings, samples: Sequence[int], batch_size: int | None = None) -> list[int]:
    """Steps of each task."""
    size = batch_size or settings.train.batch_size
    return [settings.train.epochs * -(-count // size) for count in samples]


class _Keeper(Observer):
    """Writes checkpoints and the progress file, and stops the run when asked to."""

    def __init__(
        self,
        store: Store,
        run: str,
        settings: TrainSettings,
        options: RunOptions,
        stop: Callable[[], bool],
        claim: Claim,
    ):
        self.store, self.run, self.settings = store, run, settings
        self.options, self.stop, self.claim = options, stop, claim
        self.spent = 0.0
        self.clock = self.saved = time.perf_counter()
        self.curve_points = 0
        self.resumes = 0

    def resumed(self, progress: Progress) -> None:
        """Go on counting time and resumptions where the checkpoint was."""
        self.spent = progress.seconds.get("total", 0.0)
        self.resumes = int(progress.seconds.get("resumes", 0)) + 1
        progress.seconds["resumes"] = float(self.resumes)

    def finished(self, progress: Progress) -> Progress:
        """The progress with the total time in it."""
        progress.seconds["total"] = self.spent + time.perf_counter() - self.clock
        return progress

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Write the progress file anew: after a crash it may be ahead of the checkpoint."""
        self.curve_points = len(progress.curves)
        lines = [{"after_task": 0, "accuracies": progress.accuracies[0]}, *progress.curves]
        lines += [_task_line(progress, number) for number in range(1, len(progress.monitors) + 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_atomically(self.store.folder(self.run) / "progress.jsonl", text.encode())

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """At the settling steps only: settle, and write a checkpoint if it is time."""
        if len(progress.curves) > self.curve_points:
            self.curve_points = len(progress.curves)
            self._append(progress.curves[-1])
        if progress.step % SETTLE_STEPS:
            return
        learner.model.state_dict()  # an adapter folds its part of the step into the weights
        if self.stop():
            self._save(learner, progress)
            raise InterruptedRun(f"run {self.run} was stopped; the same command goes on with it")
        if time.perf_counter() - self.saved >= self.options.checkpoint_seconds:
            self._save(learner, progress)

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Note the size of the method's state, and write a checkpoint."""
        progress.monitors[-1]["memory_bytes"] = float(learner.method.peak_bytes())
        self._append(_task_line(progress, len(progress.monitors)))
        self._save(learner, progress)
        pause = self.options.pause_after is not None and progress.task > self.options.pause_after
        if progress.task > len(progress.accuracies[0]):
            return
        if pause:
            raise PausedRun(f"run {self.run} is paused after {counted(progress.task - 1, 'task')}")
        if self.stop():
            raise InterruptedRun(f"run {self.run} was stopped; the same command goes on with it")

    def _save(self, learner: Learner, progress: Progress) -> None:
        if self.claim.lost:
            raise ClaimedError(
                f"run {self.run} was taken over by another process, because this one seemed dead"
            )
        save_checkpoint(self.store.checkpoint(self.run), learner, self.finished(progress))
        self.saved = time.perf_counter()

    def _append(self, line: dict[str, Any]) -> None:
        with open(self.store.folder(self.run) / "progress.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _task_line(progress: Progress, number: int) -> dict[str, Any]:
    return {
        "after_task": number,
        "accuracies": progress.accuracies[number],
        "memorised": progress.memorised[number - 1],
        "monitors": progress.monitors[number - 1],
        "losses": progress.losses[number - 1],
    }


def _record(run: str, settings: RunSettings, stream: Stream, model: nn.Module, progress: Progress) -> Record:
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    result = Result.from_progress(progress, parameters, [len(task.train) for task in stream])
    provenance = {
        **circumstances(),
        "seconds": {key: round(value, 3) for key, value in progress.seconds.items() if key != "resumes"},
        "resumes": int(progress.seconds.get("resumes", 0)),
        "finished": _now(),
    }
    return Record(run, settings, describe_stream(stream), result=result, provenance=provenance)


def _failure(error: Exception) -> dict[str, Any]:
    return {
        "reason": str(error) if isinstance(error, OrthoclError) else f"{type(error).__name__}: {error}",
        "expected": isinstance(error, OrthoclError),
        "traceback": traceback.format_exc().splitlines(),
        "time": _now(),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
