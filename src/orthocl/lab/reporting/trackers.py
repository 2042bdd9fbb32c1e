"""Trackers: watch runs in TensorBoard, Weights & Biases or MLflow. None is imported unless it is asked for.

A tracker is an observer of the training loop: it sees a run and never steers it, and what it writes is a copy. The
record in the store stays the result. Each run is one entry named after its settings and identified by the run's own
id, so that a resumed run continues in the same entry, at the right step.

What is written: `loss` (a mean over `LOSS_EVERY` steps), `accuracy/task 1`, ... and `accuracy/average` (over the
tasks learnt so far) at each evaluation, `memorised/task 1`, ..., `monitor/...` after each task, all against the number
of training steps taken since the start of the run; the settings; and the metrics of the finished run.

Nothing leaves the machine by default: Weights & Biases runs offline (`wandb sync` uploads later) unless `WANDB_MODE`
says otherwise, MLflow writes a folder unless `MLFLOW_TRACKING_URI` names a server.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from orthocl.errors import SettingsError
from orthocl.lab.experiment.grid import flat
from orthocl.lab.experiment.settings import RunSettings
from orthocl.lab.run.execute import RunObserver, total_steps
from orthocl.lab.store.record import Record
from orthocl.methods.learner import Learner
from orthocl.metrics import METRICS
from orthocl.registry import Registry
from orthocl.streams.base import Stream
from orthocl.training import Progress

LOSS_EVERY = 50


class Sink(Protocol):
    """Where numbers go: the part that differs between trackers."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write some numbers measured after `step` training steps."""

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the metrics of the run, if it has finished, and release all resources."""


class Tracker(RunObserver):
    """An observer that sends what happens in runs, one after another, to a separate sink for each run.

    Args:
        make_sink: from a run's settings, its id and a directory.
        directory: where to write what trackers write to files, such as the store's.
    """

    reads_weights: ClassVar[bool] = False

    def __init__(self, make_sink: Callable[[RunSettings, str, Path], Sink], directory: Path):
        self.make_sink = make_sink
        self.directory = directory
        self._sink: Sink | None = None

    def on_run(self, run: str, settings: RunSettings, folder: Path) -> None:
        """Open the run's entry, or continue it."""
        self._settings = settings
        self._sink = self.make_sink(settings, run, self.directory)
        self._ends = [0]  # steps taken when each task ends
        self._losses: list[float] = []

    def on_start(self, learner: Learner, stream: Stream, progress: Progress) -> None:
        """Learn where each task ends, and write the accuracies at initialisation."""
        samples = [len(task.train) for task in stream]
        steps = total_steps(self._settings, samples, learner.method.batch_size)
        self._ends = [sum(steps[:number]) for number in range(len(steps) + 1)]
        self._curves = len(progress.curves)
        if progress.task == 1 and progress.step == 0:
            self._log(_accuracies(progress.accuracies[0], 0), 0)

    def on_step(self, learner: Learner, progress: Progress, loss: float) -> None:
        """Write the mean loss now and then, and each new point of the accuracy curves."""
        self._losses.append(loss)
        step = self._ends[progress.task - 1] + progress.step
        if step % LOSS_EVERY == 0:
            self._log({"loss": sum(self._losses) / len(self._losses)}, step)
            self._losses.clear()
        if len(progress.curves) > self._curves:
            self._curves = len(progress.curves)
            self._log(_accuracies(progress.curves[-1]["accuracies"], progress.task), step)

    def on_task(self, learner: Learner, progress: Progress) -> None:
        """Write accuracies, memorised accuracies and monitors."""
        done = progress.task - 1
        values = _accuracies(progress.accuracies[-1], done)
        values |= {f"memorised/task {task}": value for task, value in progress.memorised[-1].items()}
        values |= {f"monitor/{name}": float(value) for name, value in progress.monitors[-1].items()}
        self._log(values, self._ends[done])

    def on_record(self, record: Record) -> None:
        """Write the metrics of the finished run."""
        finished = record.status == "finished"
        values = {name: record.metric(name) for name in METRICS} if finished else {}
        self._close({name: value for name, value in values.items() if math.isfinite(value)}, finished)

    def on_end(self) -> None:
        """Release all resources, also when the run was interrupted or failed."""
        self._close({}, finished=False)

    def _log(self, values: Mapping[str, float], step: int) -> None:
        if self._sink is not None:
            self._sink.log(values, step)

    def _close(self, summary: Mapping[str, float], finished: bool) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close(summary, finished)


class TensorBoardSink:
    """Event files of one run, for `tensorboard --logdir STORE/tensorboard`."""

    def __init__(self, settings: RunSettings, run_id: str, directory: Path):
        module = _optional("torch.utils.tensorboard", "tensorboard")
        name = re.sub(r"[^A-Za-z0-9+.=-]+", "_", settings.label)
        self._writer = module.SummaryWriter(str(directory / "tensorboard" / f"{name}_{run_id[:8]}"))
        text = "\n".join(f"    {name} = {value!r}" for name, value in flat(settings.to_dict()).items())
        self._writer.add_text("settings", text)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Add scalars; a step that a resumed run repeats is simply written again."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Add the metrics as scalars and flush the file."""
        for name, value in summary.items():
            self._writer.add_scalar(f"metric/{name}", value)
        self._writer.close()


class WandbSink:
    """A run of Weights & Biases, offline below `directory/wandb` unless the environment sets `WANDB_MODE`."""

    def __init__(self, settings: RunSettings, run_id: str, directory: Path):
        wandb = _optional("wandb", "wandb")
        directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "orthocl"),
            id=run_id,
            name=settings.label,
            group=f"{settings.stream_label or settings.stream.name}/{settings.method_label or settings.method.name}",
            config=flat(settings.to_dict()),
            dir=str(directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log one row; `step` is also a column, to be chosen as the x axis."""
        self._run.log({**values, "step": step}, step=step)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Write the metrics to the run's summary."""
        for name, value in summary.items():
            self._run.summary[f"metric/{name}"] = value
        self._run.finish(exit_code=0 if finished else 1)


class MlflowSink:
    """A run in the MLflow experiment "orthocl": at `MLFLOW_TRACKING_URI`, or in the folder `directory/mlruns`."""

    def __init__(self, settings: RunSettings, run_id: str, directory: Path):
        mlflow = _optional("mlflow", "mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not uri:
            # MLflow 3 asks to be told that a folder is wanted; unlike its database file, many processes can write it.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            uri = (directory / "mlruns").absolute().as_uri()
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        experiment = self._experiment(mlflow)
        found = self._client.search_runs([experiment], filter_string=f"tags.`orthocl.run` = '{run_id}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(
                experiment, tags={"orthocl.run": run_id}, run_name=settings.label
            ).info.run_id
            for name, value in flat(settings.to_dict()).items():
                self._client.log_param(self._id, name, value)

    def _experiment(self, mlflow: Any) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "orthocl")
        for _ in range(2):
            found = self._client.get_experiment_by_name(name)
            if found is not None:
                return str(found.experiment_id)
            try:
                return str(self._client.create_experiment(name))
            except mlflow.exceptions.MlflowException:  # another run has just created it
                continue
        raise SettingsError(
            f"MLflow has no experiment {name!r} and cannot create it: create it yourself, or choose another"
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics at a step."""
        for name, value in values.items():
            self._client.log_metric(self._id, name, value, step=step)

    def close(self, summary: Mapping[str, float], finished: bool) -> None:
        """Log the run's metrics and end it."""
        for name, value in summary.items():
            self._client.log_metric(self._id, f"metric/{name}", value)
        self._client.set_terminated(self._id, status="FINISHED" if finished else "KILLED")


MakeSink = Callable[[RunSettings, str, Path], Sink]


def _sink(value: Any, spec: str) -> MakeSink:
    if not callable(value):
        raise SettingsError(
            f"{spec} is not a class or function of (settings, run id, folder) that makes a Sink"
        )
    make: MakeSink = value
    return make


PACKAGES: dict[str, MakeSink] = {"tensorboard": TensorBoardSink, "wandb": WandbSink, "mlflow": MlflowSink}
"""Trackers that come with orthocl, named after the package that each needs."""

TRACKERS: Registry[MakeSink] = Registry("tracker", dict(PACKAGES), _sink)


def make_trackers(names: Iterable[str], directory: str | Path) -> list[Tracker]:
    """Observers for `orthocl.lab.execute`: "tensorboard", "wandb", "mlflow", or your own sink as "file.py:Sink".

    Args:
        names: which.
        directory: where trackers write their files, such as the store's.

    >>> make_trackers(["tensorbord"], "store")
    Traceback (most recent call last):
    orthocl.errors.SettingsError: unknown tracker 'tensorbord': did you mean 'tensorboard'? ...
    """
    names = list(dict.fromkeys(names))
    check_trackers(names)
    return [Tracker(TRACKERS[name], Path(directory)) for name in names]


def check_trackers(names: Iterable[str]) -> None:
    """Reject unknown names and missing libraries before any run starts."""
    for name in names:
        TRACKERS.find(name)
        if name in PACKAGES and find_spec(name) is None:
            raise _missing(name)


def _accuracies(row: list[float], learnt: int) -> dict[str, float]:
    values = {f"accuracy/task {number}": value for number, value in enumerate(row, 1)}
    if learnt:
        values["accuracy/average"] = sum(row[:learnt]) / learnt
    return values


def _optional(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise _missing(package) from error


def _missing(package: str) -> SettingsError:
    return SettingsError(f"tracking with {package} needs that package: pip install 'orthocl[track]'")
