from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orthocl.errors import SettingsError
from orthocl.lab import RunObserver, RunOptions, Store
from orthocl.lab.executors import make_executor
from orthocl.lab.executors.local import LocalExecutor, threads_per_run
from orthocl.lab.laboratory import ignore, run_experiment
from orthocl.lab.run.execute import identify
from orthocl.lab.store.run_lock import this_process

EXPERIMENT = """
seeds = [1, 2]
streams = ["rotated-mnist-mini"]
methods = ["sgd", "ogd+"]
net.hidden = [16]
[train]
epochs = 60
batch_size = 10
learning_rate = 0.02
[stream]
tasks = 3
train_size = 200
test_size = 100
[method]
memory_per_task = 20
"""


SPAWN = "from orthocl.lab.executors import process; process.start_method = lambda: 'spawn'; "
"""As on systems without a fork server."""


def command(file: Path, store: Path, first: str = "") -> list[str]:
    code = (
        "import sys; from orthocl.lab import RunOptions; from orthocl.lab.laboratory import run_experiment; "
        f"{first}options = RunOptions(checkpoint_seconds=0.2, threads=1); "
        "run_experiment(sys.argv[1], sys.argv[2], jobs=2, options=options)"
    )
    return [sys.executable, "-c", code, str(file), str(store)]


def hashes(directory: Path) -> dict[str, str]:
    return {record.id: record.result_hash for record in Store(directory).records()}


both_starts = pytest.mark.parametrize("first", ["", SPAWN], ids=["forkserver", "spawn"])


def test_killed_in_the_middle_the_records_are_identical(tmp_path):
    """Kill -9 of the whole process group, once; `tests/chaos` has the random moments and everything else."""
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT.replace("seeds = [1, 2]", "seeds = [1]"))
    run_experiment(file, tmp_path / "whole", jobs=0, options=RunOptions(threads=1), on_event=ignore)
    store = Store(tmp_path / "killed")
    process = subprocess.Popen(
        command(file, store.directory), start_new_session=True, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(store.runs.glob("*/checkpoint.safetensors")):
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(store.runs.glob("*/checkpoint.safetensors")), "it was killed in the middle"
    run_experiment(file, store, jobs=0, options=RunOptions(threads=1), on_event=ignore)
    assert hashes(store.directory) == hashes(tmp_path / "whole")
    assert sum(record.provenance["resumes"] for record in store.records()) >= 1


@both_starts
def test_children_die_with_the_process_that_started_them(tmp_path, first):
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT.replace("epochs = 60", "epochs = 4000"))
    process = subprocess.Popen(command(file, tmp_path / "store", first), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "store").glob("runs/*/claim-*.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()  # this process only, not its children
    process.wait()
    store = Store(tmp_path / "store")
    while any(store.state(run) == "running" for run in store.ids()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert store.ids()
    assert {store.state(run) for run in store.ids()} == {"unfinished"}


@both_starts
def test_interrupt_writes_checkpoints_and_the_next_call_goes_on(tmp_path, first):
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    store = Store(tmp_path / "store")
    process = subprocess.Popen(
        command(file, store.directory, first), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not list(store.runs.glob("*/progress.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert errors.count("Traceback") == 1, errors  # the caller's own
    states = {store.state(run) for run in store.ids()}
    assert "running" not in states
    assert "unfinished" in states
    for run in store.ids():
        assert store.record(run) is not None or store.checkpoint(run).exists()
    outcomes = run_experiment(file, store, jobs=2, on_event=ignore).outcomes
    assert {outcome.status for outcome in outcomes} == {"finished"}
    assert any(outcome.record.provenance["resumes"] for outcome in outcomes)


def test_an_interrupt_while_the_first_process_is_started_fails_nothing(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    interrupt = (
        "import os, signal; from orthocl.lab.executors import local; start = local.WorkerProcess.start; "
        "local.WorkerProcess.start = lambda job: (start(job), os.killpg(0, signal.SIGINT))[0]; "
    )
    done = subprocess.run(
        command(file, tmp_path / "store", interrupt),
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        start_new_session=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "failed" not in done.stderr
    store = Store(tmp_path / "store")
    assert not any(store.failure(run) for run in store.ids())
    assert not list(store.records())


def test_the_second_interrupt_ends_everything_at_once(store, tiny):
    pids = []

    def interrupt(event):
        if event.kind == "progress" and not pids:
            (claim,) = store.runs.glob("*/claim-*.json")
            pids.append(json.loads(claim.read_text())["pid"])
            signal.raise_signal(signal.SIGINT)
        elif event.kind == "stopping":
            assert "Ctrl-C again" in event.text
            signal.raise_signal(signal.SIGINT)

    run = tiny(train={"epochs": 4000})
    with pytest.raises(KeyboardInterrupt):
        LocalExecutor(jobs=1).run_all([run], store, options=RunOptions(), on_event=interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert store.state(identify([run])[0]) == "unfinished"


def test_in_this_process_too_an_interrupt_writes_a_checkpoint(store, tiny):
    def interrupt(event):
        if event.kind == "progress" and "progress" not in seen:
            signal.raise_signal(signal.SIGINT)
        seen.append(event.kind)

    seen = []
    runs = [tiny(train={"epochs": 4000}), tiny(seed=2)]
    with pytest.raises(KeyboardInterrupt):
        LocalExecutor(jobs=0).run_all(runs, store, options=RunOptions(), on_event=interrupt)
    first, second = identify(runs)
    assert store.checkpoint(first).exists()
    assert seen[-1] == "interrupted"
    assert store.state(second) == "new"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_callback_that_raises_keyboard_interrupt_stops_the_runs_with_checkpoints(store, tiny):
    raised = []

    def interrupt(event):
        if event.kind == "progress" and not raised:
            raised.append(event)
            raise KeyboardInterrupt

    run = tiny(train={"epochs": 4000})
    with pytest.raises(KeyboardInterrupt):
        LocalExecutor(jobs=1).run_all([run], store, options=RunOptions(), on_event=interrupt)
    assert store.checkpoint(identify([run])[0]).exists()


def test_failures_and_unsupported_pairs_do_not_stop_the_others(store, tiny, tmp_path):
    runs = [
        tiny(),
        tiny(train={"learning_rate": 1e30}),
        tiny("sgd", seed=2),
        tiny(),  # the same again is made once
    ]
    events = []
    outcomes = LocalExecutor(jobs=2).run_all(runs, store, options=RunOptions(), on_event=events.append)
    assert [outcome.status for outcome in outcomes] == ["finished", "failed", "finished", "finished"]
    assert "smaller learning rate" in outcomes[1].reason
    assert sum(event.kind == "started" for event in events) == 3
    assert {event.kind for event in events} >= {"started", "progress", "finished", "failed"}
    progress = [event for event in events if event.kind == "progress" and event.settings == runs[2]]
    assert progress[-1].tasks == 3
    assert progress[-1].steps == 40
    again = LocalExecutor(jobs=1).run_all(runs[:1], store, options=RunOptions(), on_event=events.append)
    assert again[0].known
    assert again[0].record == outcomes[0].record
    assert events[-1].kind == "known"


def test_processes_and_this_process_give_the_same_records(tmp_path, tiny):
    runs = [tiny("ogd+", settings={"memory_per_task": 20}), tiny("stable-sgd")]
    found = [
        [
            outcome.record.result_hash
            for outcome in LocalExecutor(jobs=jobs).run_all(
                runs, Store(tmp_path / str(jobs)), options=RunOptions(threads=1), on_event=ignore
            )
        ]
        for jobs in (0, 2)
    ]
    assert found[0] == found[1]


def test_in_this_process_too_there_is_progress_and_trackers_hear_of_it(store, tiny, monkeypatch):
    heard = []

    class Tracker(RunObserver):
        def on_record(self, record):
            heard.append(record.id)

    monkeypatch.setattr(
        "orthocl.lab.reporting.trackers.make_trackers", lambda names, folder: [Tracker() for _ in names]
    )
    events = []
    (outcome,) = LocalExecutor(jobs=0).run_all(
        [tiny()], store, options=RunOptions(trackers=("mine",)), on_event=events.append
    )
    assert heard == [outcome.run]
    assert [event.kind for event in events if event.kind != "progress"] == ["started", "finished"]
    last = [event for event in events if event.kind == "progress"][-1]
    assert (last.task, last.tasks, last.step, last.steps) == (3, 3, 40, 40)


def test_two_callers_on_one_store_share_the_work(tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    callers = [
        subprocess.Popen(command(file, tmp_path / "store"), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    texts = [caller.communicate(timeout=300)[1] for caller in callers]
    assert [caller.returncode for caller in callers] == [0, 0]
    started = [text.count("started ") for text in texts]
    assert sum(started) == 4, f"every run is made once: {texts}"
    assert len(hashes(tmp_path / "store")) == 4


def test_a_run_of_a_dead_owner_is_taken_over(store, tiny):
    run = tiny()
    folder = store.folder(identify([run])[0])
    folder.mkdir(parents=True)
    dead = this_process() | {"pid": 2**22 - 1, "released": False}
    (folder / "claim-1.json").write_text(json.dumps(dead))
    (outcome,) = LocalExecutor(jobs=1).run_all([run], store, options=RunOptions(), on_event=ignore)
    assert outcome.status == "finished"


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_run_of_another_process_is_waited_for_and_made_when_that_gives_it_up(store, tiny, jobs):
    """A killed process may live for a moment longer, with its claim, when the same command is given again."""
    run = tiny()
    folder = store.folder(identify([run])[0])
    folder.mkdir(parents=True)
    claim = folder / "claim-1.json"
    claim.write_text(json.dumps({"machine": "another", "pid": 1, "host": "far", "released": False}))
    heard = []

    def give_up(event):
        heard.append(event.kind)
        if event.kind == "elsewhere":
            claim.write_text(json.dumps({"machine": "another", "pid": 1, "released": True}))

    (outcome,) = LocalExecutor(jobs).run_all([run], store, options=RunOptions(), on_event=give_up)
    assert outcome.status == "finished"
    assert [kind for kind in heard if kind != "progress"] == ["elsewhere", "started", "finished"]


def test_a_process_that_is_killed_is_a_failure_with_a_reason(store, tiny):
    run = tiny(train={"epochs": 4000})

    def kill(event):
        if event.kind == "progress":
            (claim,) = store.runs.glob("*/claim-*.json")
            os.kill(json.loads(claim.read_text())["pid"], signal.SIGKILL)

    (outcome,) = LocalExecutor(jobs=1).run_all([run], store, options=RunOptions(), on_event=kill)
    assert outcome.status == "failed"
    assert "SIGKILL" in outcome.reason


def test_threads_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert [threads_per_run(jobs) for jobs in (1, 3, 8, 99)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_per_run(1) == 1


def test_executors_by_name():
    assert make_executor("local", {"jobs": 3}) == LocalExecutor(3)
    with pytest.raises(SettingsError, match="did you mean 'local'"):
        make_executor("lokal", {})
    with pytest.raises(SettingsError, match="did you mean 'jobs'"):
        make_executor("local", {"job": 3})
    with pytest.raises(SettingsError, match="0 or more"):
        LocalExecutor(-1)
