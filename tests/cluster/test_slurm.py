"""The Slurm executor on a real Slurm: a controller and one node with two processors, without accounting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orthocl.errors import OrthoclError, SettingsError
from orthocl.lab.executors import Event, make_executor
from orthocl.lab.experiment.settings import MethodSettings, NetSettings, RunSettings, StreamSettings
from orthocl.lab.run.execute import RunOptions, execute
from orthocl.lab.store.store import Store
from orthocl.training import TrainSettings

pytestmark = [pytest.mark.cluster]

RUN = RunSettings(
    StreamSettings("rotated-mnist-mini", tasks=2, train_size=100, test_size=50),
    MethodSettings("ogd", {"memory_per_task": 5}),
    NetSettings("mlp", {"hidden": [16]}),
    TrainSettings(epochs=2, batch_size=10),
)
LONG = replace(RUN, train=TrainSettings(epochs=700, batch_size=10))
LIMITS = {"minutes": 5, "memory_gb": 0.5, "poll_seconds": 0.5}


def test_an_array_with_limits_one_run_at_a_time(slurm_cluster, tmp_path: Path) -> None:
    fails = replace(RUN, train=TrainSettings(epochs=1, batch_size=10, learning_rate=1e30))
    runs = [replace(RUN, seed=1), fails, replace(RUN, seed=2)]
    store, events = Store(tmp_path / "store"), []
    executor = make_executor(
        "slurm", {**LIMITS, "jobs": 1, "partition": "spare", "setup": ["export SET_UP=yes"]}
    )
    outcomes = executor.run_all(runs, store, options=RunOptions(), on_event=events.append)

    assert [outcome.status for outcome in outcomes] == ["finished", "failed", "finished"], outcomes
    assert "smaller learning rate" in outcomes[1].reason
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.record.result_hash == execute(outcome.settings, Store(tmp_path / "here")).result_hash
    script = next((tmp_path / "store" / "slurm").glob("*.sh")).read_text()
    for line in ("--array=0-2%1", "--time=5", "--mem=512M", "--cpus-per-task=1", "--partition=spare"):
        assert f"#SBATCH {line}" in script
    assert "export SET_UP=yes" in script
    # the controller's own log: no element was started before the one before it had ended
    array = events[0].text.split()[-1].split("_")[0]
    lines = [line for line in slurm_cluster.log().splitlines() if f"JobId={array}_" in line]
    story = [
        "start" if "Allocate" in line else "end" for line in lines if "Allocate" in line or " done" in line
    ]
    assert story[:5] == ["start", "end", "start", "end", "start"]


def test_a_killed_job_is_tried_again_and_goes_on_from_its_checkpoint(slurm_cluster, tmp_path: Path) -> None:
    store, events = Store(tmp_path / "store"), []
    killed = threading.Event()

    def kill_the_job() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for path in store.runs.glob("*/checkpoint.safetensors"):
                claim = path.parent / "claim-1.json"
                if claim.exists() and (pid := json.loads(claim.read_text())["pid"]):
                    os.kill(pid, signal.SIGKILL)
                    killed.set()
                    return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_the_job)
    killer.start()
    executor = make_executor("slurm", {**LIMITS, "retries": 2})
    options = RunOptions(checkpoint_seconds=0.3)
    (outcome,) = executor.run_all([LONG], store, options=options, on_event=events.append)
    killer.join()
    assert killed.is_set()
    assert outcome.status == "finished", (outcome, events)
    assert outcome.record.provenance["resumes"] >= 1
    assert any(event.kind == "note" and "try 2 of 3" in event.text for event in events)
    here = execute(LONG, Store(tmp_path / "here"), options=RunOptions(threads=1))
    assert outcome.record.result_hash == here.result_hash


@pytest.mark.slow
def test_a_run_longer_than_its_slice_of_time_goes_on_in_the_same_job(slurm_cluster, tmp_path: Path) -> None:
    store, events, over = Store(tmp_path / "store"), [], threading.Event()

    def hurry() -> None:
        """Slurm lets a requeued job rest for two minutes; here, for as long as its old credential is revoked."""
        while not over.wait(0.5):
            for job in slurm_cluster.ask("squeue", "-h", "-t", "PD", "-o", "%i").split():
                slurm_cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+4")
                over.wait(5)

    hurrying = threading.Thread(target=hurry)
    hurrying.start()
    try:
        executor = make_executor("slurm", {**LIMITS, "slice_minutes": 0.02})
        (outcome,) = executor.run_all([LONG], store, options=RunOptions(), on_event=events.append)
    finally:
        over.set()
        hurrying.join()
    assert outcome.status == "finished", (outcome, events)
    assert outcome.record.provenance["resumes"] >= 1
    notes = [event.text for event in events if event.kind == "note"]
    assert len(notes) == 1, notes  # submitted once
    here = execute(LONG, Store(tmp_path / "here"), options=RunOptions(threads=1))
    assert outcome.record.result_hash == here.result_hash


def test_a_cancelled_run_is_interrupted_and_a_later_call_finishes_it(slurm_cluster, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    cancelled = []

    def on_event(event: Event) -> None:
        if event.kind == "started" and not cancelled:
            cancelled.append(event.run)
            subprocess.run(["scancel", "--user=root"], check=True, timeout=20)

    executor = make_executor("slurm", LIMITS)
    options = RunOptions(checkpoint_seconds=0.3)
    (outcome,) = executor.run_all([LONG], store, options=options, on_event=on_event)
    assert outcome.status == "interrupted"
    (outcome,) = executor.run_all([LONG], store, options=options, on_event=on_event)
    assert outcome.status == "finished"


def test_ctrl_c_takes_the_jobs_out_of_the_queue(slurm_cluster, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    executor = make_executor("slurm", LIMITS)
    with pytest.raises(KeyboardInterrupt):
        executor.run_all(
            [LONG, replace(LONG, seed=1)], Store(tmp_path), options=RunOptions(), on_event=interrupt
        )
    deadline = time.monotonic() + 60
    while slurm_cluster.ask("squeue", "-h").strip() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not slurm_cluster.ask("squeue", "-h").strip()


def test_what_slurm_refuses_is_said(slurm_cluster, tmp_path: Path) -> None:
    executor = make_executor("slurm", {**LIMITS, "partition": "nowhere"})
    with pytest.raises(OrthoclError, match="partition"):
        executor.run_all([RUN], Store(tmp_path), options=RunOptions(), on_event=lambda event: None)


def test_impossible_settings_are_refused() -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'orthocl[slurm]'")
    for settings in ({"minutes": 0}, {"jobs": -1}, {"memory_gb": -2.0}, {"array_size": 0}):
        with pytest.raises(SettingsError):
            make_executor("slurm", settings)


def test_parts_of_ones_own(slurm_cluster, tmp_path: Path, gallery) -> None:
    gallery.use_on_a_cluster(tmp_path, "slurm", {"minutes": 5, "jobs": 2, "poll_seconds": 0.5})
    assert not (tmp_path / "my_method.py").exists()
