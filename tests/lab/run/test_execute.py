from __future__ import annotations

import json

import pytest
import torch

from orthocl.errors import StoreError, TrainingError
from orthocl.lab import InterruptedRun, RunObserver, RunOptions, Store, execute
from orthocl.lab.run.execute import build_learner, identify, make_stream
from orthocl.lab.store.run_lock import ClaimedError
from orthocl.storage import read_state
from orthocl.training import train

METHODS = ["sgd", "ogd", "ogd+", "pca-ogd", "a-gem", "ewc", "si", "mas", "stable-sgd"]


class Watcher(RunObserver):
    def __init__(self):
        self.seen = []
        self.steps = 0

    def on_run(self, run, settings, folder):
        self.seen.append(("run", run, folder.is_dir()))

    def on_start(self, learner, stream, progress):
        self.seen.append(("start", progress.task, progress.step))

    def on_step(self, learner, progress, loss):
        self.steps += 1

    def on_task(self, learner, progress):
        self.seen.append(("task", progress.task - 1, "memory_bytes" in progress.monitors[-1]))

    def on_record(self, record):
        self.seen.append(("record", record.status))


def stop_after(count):
    """A `stop` that says yes from the count-th time on that it is asked."""
    asked = iter(range(1_000_000))
    return lambda: next(asked) >= count


def test_the_record_is_what_the_bare_loop_gives(store, tiny):
    run = tiny("ogd+", train={"evaluate_every": 15})
    record = execute(run, store)
    stream = make_stream(run.stream)
    progress = train(build_learner(run.resolved(), stream), stream, run.train, seed=run.seed)
    assert record.result.accuracies == progress.accuracies
    assert record.result.losses == progress.losses
    assert record.result.curves == progress.curves
    assert record.result.memorised == progress.memorised
    assert record.result.parameters == 1024 * 16 + 16 + 160 + 10
    assert record.result.samples == [200] * 3
    assert record.stream["fingerprint"] == stream.fingerprint
    assert record.stream["tasks"][1] == "rotated by 5 degrees"
    assert record.memory > 0
    assert record.provenance["seconds"]["total"] > 0


def test_observers_hear_the_whole_run(store, tiny):
    watcher = Watcher()
    record = execute(tiny(), store, observers=[watcher])
    tasks = [("task", number, True) for number in (1, 2, 3)]
    assert watcher.seen == [("run", record.id, True), ("start", 1, 0), *tasks, ("record", "finished")]
    assert watcher.steps == 3 * 2 * 20


def test_a_finished_run_is_not_made_again(store, tiny):
    record = execute(tiny(), store)
    watcher = Watcher()
    assert execute(tiny(), store, observers=[watcher]) == record
    assert watcher.seen == []


@pytest.mark.parametrize("method", METHODS)
def test_interrupted_again_and_again_the_result_is_bit_identical(tmp_path, tiny, method):
    settings = {"memory_per_task": 20} if method in ("ogd", "ogd+", "pca-ogd", "a-gem") else {}
    settings |= {"strength": 0.05} if method in ("ewc", "si", "mas") else {}
    run = tiny(
        method,
        settings=settings,
        train={"epochs": 4, "batch_size": 10, "momentum": 0.5 if method != "stable-sgd" else 0.0},
    )
    whole = execute(run, Store(tmp_path / "whole"))
    store = Store(tmp_path / "pieces")
    stops = 0
    while True:
        try:
            record = execute(run, store, stop=stop_after(16))
            break
        except InterruptedRun:
            stops += 1
    assert stops == (3 * 4 * 20 + 2) // 17, "asked after every step and after every task but the last"
    assert record.result_hash == whole.result_hash
    assert record.provenance["resumes"] == stops
    ours, theirs = (
        read_state(s.folder(record.id) / "weights.safetensors") for s in (store, Store(tmp_path / "whole"))
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not store.checkpoint(record.id).exists()


def test_how_often_checkpoints_are_written_does_not_change_a_bit(tmp_path, tiny):
    run = tiny("ogd+", settings={"memory_per_task": 20}, train={"epochs": 8})
    hashes = {
        execute(
            run, Store(tmp_path / str(seconds)), options=RunOptions(checkpoint_seconds=seconds)
        ).result_hash
        for seconds in (0.0, 1e9)
    }
    assert len(hashes) == 1


def test_the_progress_file_is_right_after_a_resume(store, tiny):
    run = tiny(train={"evaluate_every": 10})
    with pytest.raises(InterruptedRun):
        execute(run, store, stop=stop_after(1))
    folder = store.folder(identify([run])[0])
    with open(folder / "progress.jsonl", "a") as file:  # what a crash after the checkpoint may leave
        file.write('{"task": 2, "step": 10, "accuracies": [0, 0, 0]}\n{"tas')
    record = execute(run, store)
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert [line["accuracies"] for line in lines if "after_task" in line] == record.result.accuracies
    assert [line for line in lines if "step" in line] == record.result.curves


def test_a_run_goes_on_with_the_threads_it_was_started_with(store, tiny):
    before = torch.get_num_threads()
    with pytest.raises(InterruptedRun):
        execute(tiny(), store, options=RunOptions(threads=1), stop=stop_after(0))
    record = execute(tiny(), store, options=RunOptions(threads=2))
    assert record.provenance["machine"]["threads"] == 1
    assert torch.get_num_threads() == before


def test_global_random_state_is_left_alone(store, tiny):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    execute(tiny("stable-sgd"), store)
    assert torch.equal(torch.rand(3), expected)


def test_an_unsupported_pair_is_a_recorded_fact(store, tiny, monkeypatch):
    from orthocl.methods import METHODS as registry

    monkeypatch.setattr(registry["ewc"], "refusal", lambda self, learner: "it cannot be")
    record = execute(tiny("ewc"), store)
    assert (record.status, record.reason) == ("unsupported", "it cannot be")
    assert execute(tiny("ewc"), store) == record


def test_a_failure_is_noted_and_the_next_attempt_starts_clean(store, tiny):
    run = tiny(train={"learning_rate": 1e30})
    with pytest.raises(TrainingError, match="learning rate"):
        execute(run, store)
    name = identify([run])[0]
    assert store.state(name) == "failed"
    assert "smaller learning rate" in store.failure(name)["reason"]
    assert any("take_steps" in line for line in store.failure(name)["traceback"])
    with pytest.raises(TrainingError):
        execute(run, store)


def test_a_checkpoint_of_something_else_is_refused(store, tiny):
    run, other = tiny("ewc"), tiny("sgd", seed=2)
    for each in (run, other):
        with pytest.raises(InterruptedRun):
            execute(each, store, stop=stop_after(0))
    source, target = (store.checkpoint(identify([each])[0]) for each in (other, run))
    target.write_bytes(source.read_bytes())
    with pytest.raises(StoreError):
        execute(run, store)


def test_a_run_that_is_taken_over_stops(store, tiny):
    class Rival(RunObserver):
        def on_task(self, learner, progress):
            claims[0].lost = True

    claims = []
    original = store.claim
    store.claim = lambda run: claims.append(original(run)) or claims[-1]
    with pytest.raises(ClaimedError, match="taken over"):
        execute(tiny(), store, observers=[Rival()])


def test_weights_are_kept_only_if_wanted(store, tiny):
    record = execute(tiny(), store, options=RunOptions(keep_weights=False))
    assert not (store.folder(record.id) / "weights.safetensors").exists()


def test_where_the_input_kernel_is_cached_changes_nothing(tmp_path, tiny, monkeypatch):
    run = tiny("ogd", settings={"memory_per_task": 20})
    plain = execute(run, Store(tmp_path / "memory"))
    monkeypatch.setenv("ORTHOCL_SCRATCH", str(tmp_path))
    assert execute(run, Store(tmp_path / "disk")).result_hash == plain.result_hash
    monkeypatch.setenv("ORTHOCL_SCRATCH", str(tmp_path / "missing"))
    with pytest.raises(StoreError, match="scratch folder"):
        execute(run, Store(tmp_path / "none"))
