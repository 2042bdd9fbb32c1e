"""The processes that make runs on this machine: how they start, and what their ends mean."""

from __future__ import annotations

import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from orthocl.errors import OrthoclError, SettingsError
from orthocl.lab import RunOptions, Store
from orthocl.lab.executors import Event, process
from orthocl.lab.executors.local import LocalExecutor
from orthocl.lab.executors.process import start_seconds
from orthocl.lab.laboratory import ignore

EXPERIMENT = """
seeds = [1]
streams = ["rotated-mnist-mini"]
methods = ["sgd", "ogd+"]
net.hidden = [16]
train.epochs = 1
stream.tasks = 2
stream.train_size = 100
stream.test_size = 50
"""
SPAWN = "from orthocl.lab.executors import process; process.start_method = lambda: 'spawn'"
"""As on systems without a fork server."""


@pytest.mark.skipif(process.start_method() != "forkserver", reason="there is no server here")
def test_when_the_server_of_processes_dies_the_runs_go_on_and_another_is_started(store, tiny):
    from multiprocessing import forkserver

    killed = []

    def kill(event: Event) -> None:
        if event.kind == "progress" and not killed:
            killed.append(forkserver._forkserver._forkserver_pid)
            os.kill(killed[0], signal.SIGKILL)

    runs = [tiny(), tiny("ogd")]
    outcomes = LocalExecutor(jobs=1).run_all(runs, store, options=RunOptions(), on_event=kill)
    assert killed
    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]


def test_a_server_that_cannot_be_started_is_said(store, tiny, monkeypatch):
    def refuse(*_):
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refuse)
    with pytest.raises(OrthoclError, match="jobs=0 needs no process"):
        LocalExecutor(jobs=1).run_all([tiny()], store, options=RunOptions(), on_event=ignore)


SCRIPT = """
import sys
print("imported", flush=True)
from orthocl.lab import RunOptions, run_experiment
{first}
run_experiment(sys.argv[1], sys.argv[2], jobs=2, options=RunOptions(threads=1))
"""


@pytest.mark.parametrize("first", ["", SPAWN], ids=["forkserver", "spawn"])
def test_a_script_needs_no_guard_and_is_not_imported_again(tmp_path, first):
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    (tmp_path / "script.py").write_text(SCRIPT.format(first=first))
    done = subprocess.run(
        [sys.executable, "script.py", "experiment.toml", "store"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "imported\n"
    assert len(list(Store(tmp_path / "store").records())) == 2


TRACKER = """
import os, signal, sys

class Settings:
    def __init__(self, **settings): pass

class Run:
    summary = {}
    def log(self, values, step): pass
    def finish(self, exit_code): pass

def init(name, **settings):
    with open(os.environ["WHERE"], "a") as file:
        file.write(f"{os.getcwd()}\\n")
    if name.endswith("seed 2"):
        raise ValueError("no such thing")
    if name.endswith("seed 3"):
        os.kill(os.getpid(), signal.SIGKILL)
    if name.endswith("seed 4"):
        sys.exit(3)
    return Run()
"""


@pytest.fixture
def odd_tracker(tmp_path, monkeypatch):
    """A module in a folder of the caller's own that breaks, kills or ends the process of some seeds.

    Returns the file that it writes its directory to, as the environment says.
    """
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "wandb.py").write_text(TRACKER)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("WHERE", str(tmp_path / "where.txt"))
    monkeypatch.chdir(folder)
    yield tmp_path / "where.txt"
    sys.modules.pop("wandb", None)


@pytest.mark.parametrize("jobs", [0, 1, 2])
def test_an_error_in_one_run_is_the_failure_of_that_run_alone(store, tiny, odd_tracker, jobs):
    runs = [tiny(seed=2), tiny(seed=1)]
    options = RunOptions(trackers=("wandb",), threads=1)
    events = []
    outcomes = LocalExecutor(jobs=jobs).run_all(runs, store, options=options, on_event=events.append)
    assert [outcome.status for outcome in outcomes] == ["failed", "finished"]
    assert outcomes[0].reason == "ValueError: no such thing"
    assert [event.text for event in events if event.kind == "failed"] == [outcomes[0].reason]


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_process_that_dies_is_the_failure_of_its_run_alone(store, tiny, odd_tracker, method, monkeypatch):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {method}")
    monkeypatch.setattr(process, "start_method", lambda: method)
    runs = [tiny(seed=seed) for seed in (3, 2, 4, 1)]
    options = RunOptions(trackers=("wandb",), threads=1)
    outcomes = LocalExecutor(jobs=4).run_all(runs, store, options=options, on_event=ignore)
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "failed", "finished"]
    assert "SIGKILL (out of memory?)" in outcomes[0].reason
    assert outcomes[1].reason == "ValueError: no such thing"
    assert "exit code 3" in outcomes[2].reason
    assert "no such thing" in (store.folder(outcomes[1].run) / "output.log").read_text()
    folder = odd_tracker.parent / "modules"
    assert odd_tracker.read_text().splitlines() == [str(folder)] * 4, "the caller's directory"


def test_runs_can_be_made_from_another_thread(store, tiny):
    found = []

    def make():
        found.extend(LocalExecutor(jobs=1).run_all([tiny()], store, options=RunOptions(), on_event=ignore))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert [outcome.status for outcome in found] == ["finished"]


def test_a_daemon_of_multiprocessing_is_told_to_use_no_processes(store, tiny, monkeypatch):
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    with pytest.raises(SettingsError, match="use jobs=0"):
        LocalExecutor(jobs=1).run_all([tiny()], store, options=RunOptions(), on_event=ignore)


def test_the_start_of_a_process_is_measured_until_it_is_ready(monkeypatch):
    assert start_seconds() > 0
    # Any function that fails and can be sent to a process; trackers replace sys.exit, which then cannot.
    monkeypatch.setattr("orthocl.lab.executors.process.serve", operator.truediv)
    with pytest.raises(OrthoclError, match="exit code 1 while starting"):
        start_seconds()
