"""One attempt at a run, and the way of a job to a worker."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orthocl.errors import SettingsError
from orthocl.lab.executors import worker
from orthocl.lab.executors.interface import check_not_negative, check_positive
from orthocl.lab.executors.worker import Job, attempt, attempt_job, packed, unpacked
from orthocl.lab.experiment.settings import (
    MethodSettings,
    NetSettings,
    RunSettings,
    StreamSettings,
    run_id,
)
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
    report = attempt(RUN, store, RunOptions(), run=run, tell=lambda **event: told.append(event))
    assert (report.kind, report.text) == ("finished", "")
    assert store.record(run).status == "finished"
    positions = [event for event in told if event["kind"] == "progress"]
    assert positions[-1]["task"] == positions[-1]["tasks"] == 2
    assert positions[-1]["step"] == positions[-1]["steps"] == 4
    assert len(store.progress(run)[1:]) == 2


def test_errors_become_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverges = replace(RUN, train=TrainSettings(epochs=1, batch_size=10, learning_rate=1e30))
    assert attempt(diverges, Store(tmp_path), RunOptions()).kind == "failed"
    assert attempt(RUN, Store(tmp_path), RunOptions(trackers=("nobody",))).kind == "failed"
    other = attempt(RUN, Store(tmp_path), RunOptions(), run="0123456789abcdef")
    assert "not the same on the machine" in other.text

    def breaks(*arguments: Any, **others: Any) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(worker, "execute", breaks)
    report = attempt(RUN, Store(tmp_path), RunOptions())
    assert (report.kind, report.text) == ("failed", "ZeroDivisionError: of all things")
    assert "in breaks" in report.trace


def test_runs_that_were_stopped_before_they_began_leave_nothing(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    job = Job("1", RUN, Store(tmp_path), RunOptions())
    attempt_job(job, tell=lambda **event: told.append(event), stop=lambda: True)
    assert [event["kind"] for event in told] == ["interrupted"]
    assert not Store(tmp_path).ids()


def test_what_became_of_a_job_is_told_last(tmp_path: Path) -> None:
    (run,) = identify([RUN])
    told: list[tuple[str, str]] = []
    job = Job(run, RUN, Store(tmp_path), RunOptions(pause_after=1))
    report = attempt_job(job, tell=lambda **event: told.append((event["run"], event["kind"])))
    assert report.kind == "paused"
    assert told[0] == (run, "started")
    assert told[-1] == (run, "paused")
    assert len(Store(tmp_path).progress(run)) == 2


def test_a_worker_finds_modules_where_the_caller_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    worker.work_where_the_caller_does({"directory": str(there), "path": [str(there), sys.path[0]]})
    assert Path.cwd() == there
    assert sys.path[-1] == str(there), "behind what this machine has itself"
    assert sys.path.count(sys.path[0]) == 1
    worker.work_where_the_caller_does({"directory": str(tmp_path / "gone"), "path": []})
    assert Path.cwd() == there, "a directory that is not on this machine is no error"


def test_a_run_that_others_make_is_left_to_them_or_waited_for(tmp_path: Path) -> None:
    store, (run,) = Store(tmp_path), identify([RUN])
    claim = store.claim(run)
    with claim:
        assert attempt(RUN, store, RunOptions()).kind == "elsewhere"
        waited = threading.Thread(target=lambda: (time.sleep(0.3), claim.__exit__(None, None, None)))
        waited.start()
        assert attempt(RUN, store, RunOptions(), patience=30.0).kind == "finished"
        waited.join()


def test_a_paused_run_goes_on_to_the_same_result(tmp_path: Path) -> None:
    (run,) = identify([RUN])
    paused, straight = Store(tmp_path / "a"), Store(tmp_path / "b")
    assert attempt(RUN, paused, RunOptions(pause_after=1)).kind == "paused"
    assert paused.record(run) is None
    assert len(paused.progress(run)[1:]) == 1
    assert attempt(RUN, paused, RunOptions()).kind == "finished"
    assert attempt(RUN, straight, RunOptions(pause_after=2)).kind == "finished"
    assert paused.record(run).result_hash == straight.record(run).result_hash


def test_a_run_survives_the_way_to_another_machine() -> None:
    options = RunOptions(checkpoint_seconds=3.0, trackers=("tensorboard",), threads=2)
    values = packed(Job("1", RUN, Store("some/store"), options))
    job = unpacked(json.loads(json.dumps(values)))
    assert (job.run, job.settings) == ("1", RUN.resolved())
    assert job.settings.label == RUN.label
    assert job.options == options
    assert job.store.directory == Path.cwd() / "some" / "store"
    assert values["directory"] == str(Path.cwd())
    assert all(Path(entry).is_absolute() for entry in values["path"])


def test_a_torn_line_of_the_progress_is_passed_over(tmp_path: Path) -> None:
    lines = [
        '{"after_task": 0, "accuracies": [0.1]}',
        '{"task": 1, "step": 5, "accuracies": [0.2]}',
        '{"after_ta',
    ]
    store = Store(tmp_path)
    store.folder("1").mkdir(parents=True)
    (store.folder("1") / "progress.jsonl").write_text("\n".join(lines))
    assert store.progress("1") == [[0.1]]
    assert store.progress("nowhere") == []


def test_limits_are_checked() -> None:
    check_positive(minutes=1, memory_gb=None)
    check_not_negative(jobs=0)
    with pytest.raises(SettingsError, match="minutes must be above 0"):
        check_positive(minutes=0)
    with pytest.raises(SettingsError, match="jobs must be 0 or more"):
        check_not_negative(jobs=-1)


def test_files_of_parts_travel_to_machines_that_lack_them(tmp_path: Path, gallery) -> None:
    gallery.write_parts(tmp_path)
    named = replace(RUN, net=NetSettings(f"{tmp_path}/my_net.py:build"))
    values = json.loads(json.dumps(packed(Job("1", named, Store("store"), RunOptions()))))
    expected = run_id(named, "data")
    here = unpacked(values).settings
    assert here.net.name == f"{tmp_path}/my_net.py:build"
    gallery.remove_parts(tmp_path)
    there = unpacked(values).settings
    assert there.net.name != here.net.name
    assert there.net.name.endswith("my_net.py:build")
    assert run_id(there, "data") == expected
