"""What a worker of a cluster does with a run, without a cluster."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orthocl.errors import SettingsError
from orthocl.lab.executors import remote
from orthocl.lab.executors.remote import finished_tasks, make_run, measured_rows, packed, unpacked
from orthocl.lab.experiment.settings import MethodSettings, NetSettings, RunSettings, StreamSettings
from orthocl.lab.run.execute import RunOptions, identify
from orthocl.lab.store.store import Store
from orthocl.training import TrainSettings

RUN = RunSettings(
    StreamSettings("rotated-mnist-mini", tasks=2, train_size=40, test_size=20),
    MethodSettings("sgd"),
    NetSettings("mlp", {"hidden": [4]}),
    TrainSettings(epochs=1, batch_size=10),
    method_label="plain",
)


def test_a_finished_run_tells_its_position_and_leaves_its_record(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    store, (run,) = Store(tmp_path), identify([RUN])
    report = make_run(RUN, store, RunOptions(), run=run, tell=lambda **event: told.append(event))
    assert (report.kind, report.text) == ("finished", "")
    assert store.record(run).status == "finished"
    positions = [event for event in told if event["kind"] == "progress"]
    assert positions[-1]["task"] == positions[-1]["tasks"] == 2
    assert positions[-1]["step"] == positions[-1]["steps"] == 4
    assert len(finished_tasks(store.folder(run))) == 2


def test_errors_become_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverges = replace(RUN, train=TrainSettings(epochs=1, batch_size=10, learning_rate=1e30))
    assert make_run(diverges, Store(tmp_path), RunOptions()).kind == "failed"
    assert make_run(RUN, Store(tmp_path), RunOptions(trackers=("nobody",))).kind == "failed"
    other = make_run(RUN, Store(tmp_path), RunOptions(), run="0123456789abcdef")
    assert "not the same on the machine" in other.text

    def breaks(*arguments: Any, **others: Any) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(remote, "execute", breaks)
    report = make_run(RUN, Store(tmp_path), RunOptions())
    assert (report.kind, report.text) == ("failed", "ZeroDivisionError: of all things")


def test_a_run_that_others_make_is_left_to_them_or_waited_for(tmp_path: Path) -> None:
    store, (run,) = Store(tmp_path), identify([RUN])
    claim = store.claim(run)
    with claim:
        assert make_run(RUN, store, RunOptions()).kind == "elsewhere"
        waited = threading.Thread(target=lambda: (time.sleep(0.3), claim.__exit__(None, None, None)))
        waited.start()
        assert make_run(RUN, store, RunOptions(), patience=30.0).kind == "finished"
        waited.join()


def test_a_paused_run_goes_on_to_the_same_result(tmp_path: Path) -> None:
    (run,) = identify([RUN])
    paused, straight = Store(tmp_path / "a"), Store(tmp_path / "b")
    assert make_run(RUN, paused, RunOptions(pause_after=1)).kind == "interrupted"
    assert paused.record(run) is None
    assert len(finished_tasks(paused.folder(run))) == 1
    assert make_run(RUN, paused, RunOptions()).kind == "finished"
    assert make_run(RUN, straight, RunOptions(pause_after=2)).kind == "finished"
    assert paused.record(run).result_hash == straight.record(run).result_hash


def test_a_run_survives_the_way_to_another_machine() -> None:
    options = RunOptions(checkpoint_seconds=3.0, trackers=("tensorboard",), threads=2)
    settings, others = unpacked(packed(RUN, options))
    assert settings == RUN
    assert settings.label == RUN.label
    assert others == options


def test_a_torn_line_of_the_progress_is_passed_over(tmp_path: Path) -> None:
    lines = [
        '{"after_task": 0, "accuracies": [0.1]}',
        '{"task": 1, "step": 5, "accuracies": [0.2]}',
        '{"after_ta',
    ]
    (tmp_path / "progress.jsonl").write_text("\n".join(lines))
    assert measured_rows(tmp_path) == [[0.1]]
    assert finished_tasks(tmp_path) == []
    assert finished_tasks(tmp_path / "nowhere") == []


def test_limits_are_checked() -> None:
    remote.check_positive(minutes=1, memory_gb=None)
    remote.check_not_negative(jobs=0)
    with pytest.raises(SettingsError, match="minutes must be above 0"):
        remote.check_positive(minutes=0)
    with pytest.raises(SettingsError, match="jobs must be 0 or more"):
        remote.check_not_negative(jobs=-1)
