"""Execute one run: build, resume from a checkpoint, train, record. `checkpointer` has what it writes meanwhile."""

from __future__ import annotations

import json
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from orthocl.errors import DivergenceError, OrthoclError, StoreError, UnsupportedError
from orthocl.lab.experiment.settings import (
    CODE_VERSION,
    RunSettings,
    StreamSettings,
    canonical,
    identity,
    run_id,
)
from orthocl.lab.experiment.specs import label_of
from orthocl.lab.run.checkpointer import Checkpointer, InterruptedRun
from orthocl.lab.store.record import Record, Result, circumstances
from orthocl.lab.store.run_lock import Claim, ClaimedError
from orthocl.lab.store.store import Store
from orthocl.methods import Learner, make_method
from orthocl.nets import make_net
from orthocl.storage import write_state
from orthocl.streams import Stream, make
from orthocl.training import Observer, Progress, TrainSettings, attach, train
from orthocl.training.checkpoint import load_checkpoint
from orthocl.training.losses import LOSSES
from orthocl.training.seeds import derive_seed


@dataclass(frozen=True)
class RunOptions:
    """How to execute a run; none of these influences its result.

    Args:
        checkpoint_seconds: at least this much time between checkpoints within a task.
        keep_weights: write the final weights.
        data_root: folder of the data sets.
        threads: threads of torch; None leaves them alone. A resumed run uses the number it was started with,
            because sums over threads round differently.
        trackers: names of trackers to report to, such as "tensorboard".
        forecast: write forecasts of forgetting before each task, see `lab.run.forecasts`.
        certificate: certify at the end what the last task changed on earlier ones, see `lab.run.certificates`.
        pause_after: stop after this many tasks, with a checkpoint, as if interrupted; a later call resumes.
    """

    checkpoint_seconds: float = 120.0
    keep_weights: bool = True
    data_root: str | None = None
    threads: int | None = None
    trackers: tuple[str, ...] = ()
    forecast: bool = False
    certificate: bool = False
    pause_after: int | None = None


class RunObserver(Observer):
    """A training observer that is also told which run it is and how it ended: the base class of trackers.

    `on_run`, then the training observer's `on_start`, `on_step`, `on_task`, then `on_record`. After an interruption
    the run is announced again, and `on_start` gets the progress so far.
    """

    def on_run(self, run: str, settings: RunSettings, folder: Path) -> None:
        """A run starts or resumes."""

    def on_record(self, record: Record) -> None:
        """The run is finished, or is known to be unsupported."""

    def on_end(self) -> None:
        """The run is over, whatever the outcome: release all resources."""


def execute(
    settings: RunSettings,
    store: Store,
    *,
    options: RunOptions = RunOptions(),  # frozen
    observers: Sequence[RunObserver] = (),
    stop: Callable[[], bool] = lambda: False,
    stream: Stream | None = None,
) -> Record:
    """Execute one run, or resume it, or return its record if there is one.

    Args:
        settings: what to run.
        store: where its record goes.
        options: how to run it.
        observers: watchers, such as trackers or a progress bar.
        stop: asked now and then; when true, a checkpoint is written and `InterruptedRun` raised.
        stream: your own stream, instead of the one that `settings.stream` names; the record describes it.

    Raises:
        ClaimedError: another process is executing this run.
        InterruptedRun: `stop` returned true.
        OrthoclError: the run failed; the reason is in the store too.
    """
    settings = settings.resolved(stream)
    stream = make_stream(settings.stream, options.data_root) if stream is None else stream
    run = identity(settings, stream.fingerprint)
    found = store.record(run)
    if found is not None:
        return found
    with store.claim(run) as claim:
        found = store.record(run)  # it may have been finished between the check and the claim
        if found is None:
            try:
                for observer in observers:
                    observer.on_run(run, settings, store.folder(run))
                found = _make(Attempt(settings, stream, run, store, claim, options, observers, stop))
                for observer in observers:
                    observer.on_record(found)
            finally:
                for observer in observers:
                    observer.on_end()
        claim.finish()
        return found


def _make(attempt: Attempt) -> Record:
    settings, stream, run, store = attempt.settings, attempt.stream, attempt.run, attempt.store
    with torch.random.fork_rng(devices=[]), threads(attempt.options.threads):
        torch.set_num_threads(attempt.begin())
        try:
            attempt.prepare()
            progress = attempt.train()
        except UnsupportedError as error:
            record = Record(
                run,
                settings,
                describe_stream(stream),
                "unsupported",
                str(error),
                provenance={**circumstances(), "labels": _labels(settings)},
            )
            store.write_record(record, check=attempt.claim.confirm)
            return record
        except (InterruptedRun, ClaimedError):
            raise
        except Exception as error:
            failure = _failure(error)
            with suppress(OSError, StoreError):  # of a store that is gone; the error itself says more
                attempt.claim.confirm()
                store.write_failure(run, failure)
            raise
        return attempt.conclude(progress)


@dataclass
class Attempt:
    """A claimed run in progress: its training, and what comes before and after.

    Args:
        settings: the run.
        stream: its data.
        run: its id.
        store: where its record goes.
        claim: the right to execute it.
        options: how to execute it.
        observers: its watchers.
        stop: asked now and then.
    """

    settings: RunSettings
    stream: Stream
    run: str
    store: Store
    claim: Claim
    options: RunOptions
    observers: Sequence[RunObserver]
    stop: Callable[[], bool]
    learner: Learner = field(init=False)
    progress: Progress = field(default_factory=Progress, init=False)

    def begin(self) -> int:
        """Note in the store that the run has started, and return the number of threads it was first started with."""
        self.claim.confirm()
        here = {"threads": torch.get_num_threads(), "time": _now(), "system": platform.system()}
        start = self.store.begin(self.run, self.settings, here)
        return int(start.get("threads", torch.get_num_threads()))

    def prepare(self) -> None:
        """Build everything, and resume from a checkpoint if there is one."""
        self.learner = build_learner(self.settings, self.stream)
        self.checkpointer = Checkpointer(self.store, self.run, self.options, self.stop, self.claim)
        if self.store.checkpoint(self.run).exists():
            self.progress = load_checkpoint(
                self.store.checkpoint(self.run), self.learner, self.stream, owner=self.run
            )
            self.checkpointer.resumed(self.progress)

    def train(self) -> Progress:
        """Train what was prepared, with all observers."""
        return train(
            self.learner,
            self.stream,
            self.settings.train,
            seed=self.settings.seed,
            progress=self.progress,
            observers=(self.checkpointer, *self.observers),
        )

    def conclude(self, progress: Progress) -> Record:
        """Write the record, and the weights before it."""
        model = self.learner.model
        self.checkpointer.finished(progress)
        record = _record(self.run, self.settings, self.stream, model, progress)
        if self.options.keep_weights:
            write_state(
                self.store.folder(self.run) / "weights.safetensors",
                dict(model.state_dict()),
                owner=self.run,
                check=self.claim.confirm,
            )
        self.store.write_record(record, check=self.claim.confirm)
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
    return attach(
        method,
        model,
        optimizer,
        loss=LOSSES[settings.train.loss],
        seed=settings.seed,
        batch_norm=settings.train.batch_norm,
        every=settings.train.restore_every,
    )


def make_optimizer(settings: TrainSettings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of these settings."""
    # torch takes no integers of twenty digits
    rate, decay, momentum = map(float, (settings.learning_rate, settings.weight_decay, settings.momentum))
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(model.parameters(), lr=rate, weight_decay=decay, momentum=momentum)
    return torch.optim.SGD(
        model.parameters(),
        lr=rate,
        momentum=momentum,
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


def _record(run: str, settings: RunSettings, stream: Stream, model: nn.Module, progress: Progress) -> Record:
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    result = Result.from_progress(progress, parameters, [len(task.train) for task in stream])
    provenance = {
        **circumstances(),
        "labels": _labels(settings),
        "seconds": {key: round(value, 3) for key, value in progress.seconds.items() if key != "resumes"},
        "resumes": int(progress.seconds.get("resumes", 0)),
        "finished": _now(),
    }
    return Record(run, settings, describe_stream(stream), result=result, provenance=provenance)


def _labels(settings: RunSettings) -> dict[str, str]:
    return {
        "stream": settings.stream_label or label_of(settings.stream.name),
        "method": settings.method_label or label_of(settings.method.name),
    }


def _failure(error: Exception) -> dict[str, Any]:
    return {
        "reason": str(error) if isinstance(error, OrthoclError) else f"{type(error).__name__}: {error}",
        "expected": isinstance(error, OrthoclError),
        "diverged": isinstance(error, DivergenceError),
        "code": CODE_VERSION,
        "traceback": traceback.format_exc().splitlines(),
        "time": _now(),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Another number of threads inside a `with` block."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
