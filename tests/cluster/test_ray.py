"""The Ray executor on a real cluster of two nodes, one of which is killed while it works."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from orthocl.errors import SettingsError
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
LONG = replace(RUN, train=TrainSettings(epochs=900, batch_size=10))


def test_records_come_home_from_nodes_without_the_store(ray_cluster, tmp_path: Path) -> None:
    fails = replace(RUN, train=TrainSettings(epochs=1, batch_size=10, learning_rate=1e30))
    refused = replace(RUN, method=MethodSettings("stable-sgd", {"dropout": 0.2}), net=NetSettings("lenet"))
    runs = [replace(RUN, seed=1), fails, replace(RUN, seed=2), refused, replace(RUN, seed=1)]
    store, events = Store(tmp_path / "store"), []
    executor = make_executor("ray", {"address": ray_cluster.address, "shared": False, "jobs": 2})
    outcomes = executor.run_all(runs, store, options=RunOptions(), on_event=events.append)

    statuses = [outcome.status for outcome in outcomes]
    assert statuses[:3] == ["finished", "failed", "finished"], [outcome.reason for outcome in outcomes]
    assert statuses[4] == "finished"
    assert "smaller learning rate" in outcomes[1].reason
    assert store.failure(outcomes[1].run)["reason"] == outcomes[1].reason
    for outcome in (outcomes[0], outcomes[2]):
        here = execute(outcome.settings, Store(tmp_path / "here"))
        assert outcome.record.result_hash == here.result_hash
        names = {path.name for path in store.folder(outcome.run).iterdir()}
        assert names == {"record.json", "weights.safetensors", "progress.jsonl", "settings.json"}
    assert {event.kind for event in events} >= {"started", "finished", "failed"}

    again = []
    executor.run_all(runs[:1], store, options=RunOptions(), on_event=again.append)
    assert [event.kind for event in again] == ["known"]


def test_ctrl_c_frees_the_runs_and_a_later_call_goes_on(ray_cluster, tmp_path: Path) -> None:
    store, options = Store(tmp_path / "store"), RunOptions(checkpoint_seconds=0.2)

    def interrupt(event: Event) -> None:
        if event.kind == "progress" and store.checkpoint(event.run).exists():
            raise KeyboardInterrupt

    executor = make_executor("ray", {"address": ray_cluster.address})
    with pytest.raises(KeyboardInterrupt):
        executor.run_all([LONG], store, options=options, on_event=interrupt)
    (run,) = store.ids()
    assert store.state(run) == "unfinished"  # started, and no process works on it
    (outcome,) = executor.run_all([LONG], store, options=options, on_event=lambda event: None)
    assert outcome.status == "finished"
    assert outcome.record.provenance["resumes"] >= 1


def test_what_no_node_has_is_said(ray_cluster, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == "note":
            notes.append(event.text)
            raise KeyboardInterrupt

    notes: list[str] = []
    executor = make_executor("ray", {"address": ray_cluster.address, "gpus": 4, "resources": {"fpga": 1}})
    with pytest.raises(KeyboardInterrupt):
        executor.run_all([RUN], Store(tmp_path), options=RunOptions(), on_event=interrupt)
    assert notes == ["no node of the cluster has 1 CPU, 4 GPU, 1 fpga: waiting for one to join"]


def test_a_node_that_does_not_see_the_store_says_so(ray_cluster, tmp_path: Path) -> None:
    import ray

    from orthocl.lab.executors.ray import Mailbox, remote_run
    from orthocl.lab.executors.worker import Job, packed

    ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        mailbox = ray.remote(num_cpus=0)(Mailbox).remote()
        job = packed(Job("x", RUN, Store("/not/shared"), RunOptions()))
        more = {"mark": "/not/shared/.seen-1", "patience": 0.0}
        task = ray.remote(remote_run).remote(job | more, mailbox)
        report, files = ray.get(task, timeout=60)
    finally:
        ray.shutdown()
    assert report.kind == "failed"
    assert "does not see the store /not/shared" in report.text
    assert files == {}


def test_a_run_whose_node_dies_goes_on_from_its_checkpoint_on_the_other_node(
    ray_cluster, tmp_path: Path
) -> None:
    runs = [replace(LONG, seed=1), replace(LONG, seed=2)]
    store, events, places = Store(tmp_path / "store"), [], {}
    killed = threading.Event()

    def on_event(event: Event) -> None:
        events.append(event)
        if event.kind == "started":
            places.setdefault(event.run, event.text.removeprefix("on "))

    def kill_the_node() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            victims = [run for run, place in places.items() if place == ray_cluster.worker.address]
            if victims and store.checkpoint(victims[0]).exists():
                ray_cluster.worker.kill()
                killed.set()
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill_the_node)
    killer.start()
    executor = make_executor("ray", {"address": ray_cluster.address, "retries": 2})
    options = RunOptions(checkpoint_seconds=0.3)
    outcomes = executor.run_all(runs, store, options=options, on_event=on_event)
    killer.join()

    assert killed.is_set()
    assert sorted(places.values()) == [ray_cluster.head.address, ray_cluster.worker.address]
    assert [outcome.status for outcome in outcomes] == ["finished", "finished"], outcomes
    (victim,) = [run for run, place in places.items() if place == ray_cluster.worker.address]
    by_id = {outcome.run: outcome for outcome in outcomes}
    assert by_id[victim].record.provenance["resumes"] >= 1
    assert any(
        event.kind == "note" and event.run == victim and "try 2 of 3" in event.text for event in events
    )
    here = execute(by_id[victim].settings, Store(tmp_path / "here"), options=RunOptions(threads=1))
    assert by_id[victim].record.result_hash == here.result_hash


def test_a_cluster_that_is_not_there_is_an_error_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'orthocl[ray]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    executor = make_executor("ray", {"address": "127.0.0.9:1"})
    with pytest.raises(SettingsError, match="ray start --head"):
        executor.run_all([RUN], Store(tmp_path), options=RunOptions(), on_event=lambda event: None)


def test_impossible_settings_are_refused() -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'orthocl[ray]'")
    for settings in ({"cpus": 0}, {"retries": -1}, {"memory_gb": -2.0}):
        with pytest.raises(SettingsError):
            make_executor("ray", settings)


@pytest.mark.parametrize("shared", [True, False])
def test_parts_of_ones_own(ray_cluster, tmp_path: Path, gallery, shared: bool) -> None:
    settings = {"address": ray_cluster.address, "shared": shared, "jobs": 2}
    gallery.use_on_a_cluster(tmp_path, "ray", settings)
    assert not (tmp_path / "my_method.py").exists()
