from __future__ import annotations

from dataclasses import replace

import pytest

from orthocl.errors import TrainingError
from orthocl.lab import InterruptedRun, RunObserver, RunOptions, Store, execute
from orthocl.lab.executors.local import LocalExecutor
from orthocl.lab.experiment.settings import NetSettings
from orthocl.lab.run.execute import build_learner, identify, make_stream, threads
from orthocl.lab.run.seed_batches import execute_together, group
from orthocl.training import train

OPTIONS = RunOptions(threads=1)


@pytest.fixture
def alone(tmp_path):
    """Records of runs made one by one, by seed."""

    def make(runs):
        store = Store(tmp_path / "alone")
        return [execute(run, store, options=OPTIONS) for run in runs]

    return make


@pytest.mark.parametrize("method", ["sgd", "ogd", "ogd+", "pca-ogd", "a-gem"])
def test_a_run_alone_is_trained_as_by_the_bare_loop(store, tiny, method):
    run = tiny(method, seed=1).resolved()
    stream = make_stream(run.stream)
    with threads(1):
        progress = train(build_learner(run, stream), stream, run.train, seed=run.seed, quick=False)
    found = execute(run, store, options=OPTIONS).result
    assert (found.accuracies, found.losses) == (progress.accuracies, progress.losses)


def results(records):
    return [record.result_hash for record in records]


def test_records_are_those_of_runs_made_alone(store, tiny, alone):
    runs = [tiny(seed=seed) for seed in (1, 2, 3)]
    made = execute_together(runs, store, options=OPTIONS)
    assert results(made) == results(alone(runs))
    assert [record.provenance["together"] for record in made] == [3] * 3
    assert results(store.record(run) for run in identify(runs)) == results(made)
    assert not list(store.directory.rglob("claim-*.json"))
    assert len(list(store.directory.rglob("weights.safetensors"))) == 3


def test_what_cannot_be_made_together_is_left_to_be_made_alone(store, tiny):
    assert execute_together([tiny("ewc"), tiny("ewc", seed=2)], store, options=OPTIONS) is None
    execute(tiny(seed=1), store, options=OPTIONS)
    assert execute_together([tiny(seed=1), tiny(seed=2)], store, options=OPTIONS) is None  # one is there
    with store.claim(identify([tiny(seed=3)])[0]):
        assert execute_together([tiny(seed=3), tiny(seed=4)], store, options=OPTIONS) is None
    # Nothing is left claimed: each can be made alone.
    assert execute(tiny(seed=4), store, options=OPTIONS).status == "finished"


class StopAfter:
    """Says stop from the n-th time it is asked."""

    def __init__(self, times):
        self.left = times

    def __call__(self):
        self.left -= 1
        return self.left < 0


def test_interrupted_together_they_go_on_together_or_alone(store, tiny, alone):
    runs = [tiny(seed=seed, train={"epochs": 8}) for seed in (1, 2, 3)]
    with pytest.raises(InterruptedRun):
        execute_together(runs, store, options=OPTIONS, stop=StopAfter(7))
    assert all(store.checkpoint(run).exists() for run in identify(runs))
    assert {store.state(run) for run in identify(runs)} == {"unfinished"}
    first = execute(runs[0], store, options=OPTIONS)
    rest = execute_together(runs[1:], store, options=OPTIONS)
    assert rest is not None, "all were stopped at the same step"
    assert results([first, *rest]) == results(alone(runs))
    assert first.provenance["resumes"] == 1


def test_a_run_that_was_begun_with_other_threads_is_made_alone(store, tiny):
    runs = [tiny(seed=seed) for seed in (1, 2)]
    with pytest.raises(InterruptedRun):
        execute(runs[0], store, options=replace(OPTIONS, threads=2), stop=lambda: True)
    assert execute_together(runs, store, options=OPTIONS) is None


class Listener(RunObserver):
    def __init__(self):
        self.heard = []

    def on_run(self, run, settings, folder):
        self.heard.append("run")

    def on_step(self, learner, progress, loss):
        self.heard.append("step")

    def on_record(self, record):
        self.heard.append("record")

    def on_end(self):
        self.heard.append("end")


def test_each_has_its_own_watchers(store, tiny):
    listeners = [Listener(), Listener()]
    runs = [tiny(seed=1), tiny(seed=2)]
    execute_together(runs, store, options=OPTIONS, observers=[[listener] for listener in listeners])
    for listener in listeners:
        assert listener.heard == ["run"] + ["step"] * 3 * 40 + ["record", "end"]


def test_a_diverging_run_stops_all_and_the_others_go_on_alone(store, tiny):
    runs = [tiny(seed=seed, train={"learning_rate": 1e30}) for seed in (1, 2)]
    with pytest.raises(TrainingError, match="the loss became"):
        execute_together(runs, store, options=OPTIONS)
    events = []
    outcomes = LocalExecutor(jobs=1).run_all(
        [*runs, tiny(seed=1), tiny(seed=2)], store, options=OPTIONS, on_event=events.append
    )
    assert [outcome.status for outcome in outcomes] == ["failed", "failed", "finished", "finished"]
    assert all("the loss became" in outcome.reason for outcome in outcomes[:2])
    assert all(store.failure(outcome.run)["diverged"] for outcome in outcomes[:2])
    assert [outcome.record.provenance["together"] for outcome in outcomes[2:]] == [2, 2]


def test_with_trackers_every_run_has_its_own_process(store, tiny):
    pytest.importorskip("tensorboard")
    options = replace(OPTIONS, trackers=("tensorboard",))
    runs = [tiny(seed=1), tiny(seed=2)]
    outcomes = LocalExecutor(jobs=1).run_all(runs, store, options=options, on_event=lambda event: None)
    assert [outcome.record.provenance["together"] for outcome in outcomes] == [1, 1]


def test_groups_keep_all_processes_busy(tiny):
    seeds = {f"s{seed}": tiny(seed=seed) for seed in range(1, 11)}
    assert [len(runs) for runs in group(seeds, 1)] == [5, 5]
    assert [len(runs) for runs in group(seeds, 4)] == [2, 3, 2, 3]
    assert [len(runs) for runs in group(seeds, 20)] == [1] * 10
    others = {f"e{seed}": tiny("ewc", seed=seed) for seed in range(1, 11)}
    mixed = group({**others, **seeds}, 2)
    assert sorted(len(runs) for runs in mixed) == [1] * 10 + [5, 5]
    assert [run for runs in mixed for run in runs] == [*others, *seeds]


def test_only_seeds_of_one_setting_are_grouped(tiny):
    runs = {
        "a": tiny(seed=1),
        "b": tiny(seed=2, train={"learning_rate": 0.1}),
        "c": tiny(seed=2),
        "d": tiny(seed=1, train={"learning_rate": 0.1}),
    }
    assert group(runs, 1) == [("a", "c"), ("b", "d")]


def test_wide_networks_are_not_grouped(tiny):
    net = NetSettings("mlp", {"hidden": [100, 400]})
    runs = {name: replace(tiny(seed=seed), net=net) for seed, name in enumerate("ab")}
    assert group(runs, 1) == [("a",), ("b",)]
