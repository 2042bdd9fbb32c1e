"""What trackers wrote is read back with the trackers' own readers and compared with the record."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from orthocl.errors import SettingsError
from orthocl.lab.experiment.settings import MethodSettings, NetSettings, RunSettings, StreamSettings
from orthocl.lab.reporting import trackers
from orthocl.lab.reporting.trackers import Sink, Tracker, make_trackers
from orthocl.lab.run.checkpointer import InterruptedRun
from orthocl.lab.run.execute import RunObserver, execute
from orthocl.lab.store.record import Record
from orthocl.lab.store.store import Store
from orthocl.metrics import METRICS
from orthocl.training import TrainSettings

RUN = RunSettings(
    StreamSettings("rotated-mnist-mini", tasks=2, train_size=96, test_size=40),
    MethodSettings("ogd", {"memory_per_task": 5}),
    NetSettings("mlp", {"hidden": [8]}),
    TrainSettings(epochs=11, batch_size=16, evaluate_every=60),
    seed=1,
)
STEPS = 6 * 11  # per task


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def expected(record: Record) -> dict[str, dict[int, float]]:
    """Name -> step -> value, all but the losses, from the record alone."""
    series: dict[str, dict[int, float]] = {}

    def put(step: int, learnt: int, row: list[float]) -> None:
        for number, value in enumerate(row, 1):
            series.setdefault(f"accuracy/task {number}", {})[step] = value
        if learnt:
            series.setdefault("accuracy/average", {})[step] = sum(row[:learnt]) / learnt

    for after, row in enumerate(record.result.accuracies):
        put(after * STEPS, after, row)
    for point in record.result.curves:
        put((point["task"] - 1) * STEPS + point["step"], point["task"], point["accuracies"])
    for number, (memorised, monitors) in enumerate(
        zip(record.result.memorised, record.result.monitors, strict=True), 1
    ):
        for task, value in memorised.items():
            series.setdefault(f"memorised/task {task}", {})[number * STEPS] = value
        for name, value in monitors.items():
            series.setdefault(f"monitor/{name}", {})[number * STEPS] = value
    return series


def check(found: dict[str, dict[int, float]], record: Record) -> None:
    wanted = expected(record)
    losses = found.pop("loss")
    assert sorted(losses) == [50, 100]
    # steps 1-50 are the first 8 epochs of 6 steps and two steps of the next
    assert losses[50] == pytest.approx(sum(record.result.losses[0][:8]) / 8, rel=0.05)
    assert found.keys() == wanted.keys()
    for name, series in wanted.items():
        assert found[name] == pytest.approx(series, rel=1e-6), name


class Memory:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.closed: list[tuple[dict[str, float], bool]] = []

    def log(self, values: Any, step: int) -> None:
        self.rows.append((step, dict(values)))

    def close(self, summary: Any, finished: bool) -> None:
        self.closed.append((dict(summary), finished))


def test_every_number_of_the_record_is_logged_at_its_step(tmp_path: Path) -> None:
    sink = Memory()
    record = execute(RUN, Store(tmp_path), observers=[Tracker(lambda *_: sink, tmp_path)])
    found: dict[str, dict[int, float]] = {}
    for step, values in sink.rows:
        for name, value in values.items():
            found.setdefault(name, {})[step] = value
    check(found, record)
    assert len(sink.closed) == 1
    summary, finished = sink.closed[0]
    assert finished
    assert summary == pytest.approx({name: record.metric(name) for name in METRICS})


def test_an_interrupted_run_closes_its_sink_and_goes_on_at_the_right_step(tmp_path: Path) -> None:
    store, sinks = Store(tmp_path), []

    def make(*_: Any) -> Sink:
        sinks.append(Memory())
        return sinks[-1]

    class After(RunObserver):
        stop = False

        def on_task(self, learner: Any, progress: Any) -> None:
            self.stop = True

    after = After()
    with pytest.raises(InterruptedRun):
        execute(RUN, store, observers=[Tracker(make, tmp_path), after], stop=lambda: after.stop)
    assert sinks[0].closed == [({}, False)]
    record = execute(RUN, store, observers=[Tracker(make, tmp_path)])
    assert sinks[1].closed[0][1]
    assert min(step for step, _ in sinks[1].rows) > STEPS
    last = {name: value for step, row in sinks[1].rows if step == 2 * STEPS for name, value in row.items()}
    assert last["accuracy/task 1"] == record.result.accuracies[2][0]


def test_a_failing_run_closes_its_sink(tmp_path: Path) -> None:
    sink = Memory()

    class Fails(RunObserver):
        def on_task(self, learner: Any, progress: Any) -> None:
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        execute(RUN, Store(tmp_path), observers=[Tracker(lambda *_: sink, tmp_path), Fails()])
    assert sink.closed == [({}, False)]


def test_tensorboard_event_files_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'orthocl[track]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = execute(RUN, Store(tmp_path), observers=make_trackers(["tensorboard"], tmp_path))
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert folder.name.endswith(record.id[:8])
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    summary = {name: found.pop(f"metric/{name}")[0] for name in METRICS}
    assert summary == pytest.approx({name: record.metric(name) for name in METRICS}, rel=1e-5)
    check(found, record)
    text = events.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "train.batch_size = 16" in text


def wandb_rows(path: Path) -> tuple[dict[str, dict[int, float]], dict[str, Any], dict[str, Any]]:
    """History, configuration and summary from an offline file: a LevelDB log of protocol-buffer records."""
    from wandb.proto import wandb_internal_pb2

    data, position, piece = path.read_bytes(), 7, b""  # 7 bytes: what the file is
    history: dict[str, dict[int, float]] = {}
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        piece += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (2, 3):  # the first or a middle part of a record
            continue
        record = wandb_internal_pb2.Record()
        record.ParseFromString(piece)
        piece = b""
        row = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
        }
        for name, value in row.items():
            if not name.startswith("_") and name != "step":
                history.setdefault(name, {})[row["step"]] = value
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return history, config, summary


def test_wandb_offline_file_reads_back(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'orthocl[track]'")
    record = execute(RUN, Store(tmp_path), observers=make_trackers(["wandb"], tmp_path))
    (path,) = (tmp_path / "wandb").glob(f"offline-run-*/run-{record.id}.wandb")
    deadline = time.monotonic() + 30
    while not (rows := wandb_rows(path))[2] and time.monotonic() < deadline:
        time.sleep(0.1)  # its own process writes the file, and may be a little behind
    history, config, summary = rows
    check(history, record)
    assert config["train.batch_size"] == 16
    found = {name: summary[f"metric/{name}"] for name in METRICS}
    assert found == pytest.approx({name: record.metric(name) for name in METRICS})


def test_mlflow_folder_reads_back_and_a_resumed_run_is_one_entry(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'orthocl[track]'")
    from mlflow import MlflowClient

    class After(RunObserver):
        stop = False

        def on_task(self, learner: Any, progress: Any) -> None:
            self.stop = True

    after, store = After(), Store(tmp_path)
    with pytest.raises(InterruptedRun):
        execute(RUN, store, observers=[*make_trackers(["mlflow"], tmp_path), after], stop=lambda: after.stop)
    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("orthocl").experiment_id
    assert [run.info.status for run in client.search_runs([experiment])] == ["KILLED"]
    record = execute(RUN, store, observers=make_trackers(["mlflow"], tmp_path))
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.batch_size"] == "16"
    found = {
        name: {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
        if not name.startswith("metric/")
    }
    wanted = expected(record)
    assert found.keys() == wanted.keys() | {"loss"}
    for name, series in wanted.items():
        assert found[name] == pytest.approx(series), name
    metrics = {name: run.data.metrics[f"metric/{name}"] for name in METRICS}
    assert metrics == pytest.approx({name: record.metric(name) for name in METRICS})


def test_no_tracker_is_imported_unless_asked_for() -> None:
    code = (
        "import sys, orthocl.lab.reporting.trackers, orthocl.lab.run.execute\n"
        "print([name for name in ('tensorboard', 'wandb', 'mlflow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_and_missing_trackers_are_named_before_any_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match="did you mean 'wandb'"):
        make_trackers(["wandbb"], tmp_path)
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"orthocl\[track\]"):
        make_trackers(["tensorboard"], tmp_path)
