"""Checkpoints know whose they are, and that they are whole: another seed's, or one flipped bit, is never resumed."""

from __future__ import annotations

import shutil

import pytest

from orthocl.errors import StoreError
from orthocl.lab import RunOptions, Store
from orthocl.lab.run.checkpointer import PausedRun
from orthocl.lab.run.execute import execute

PAUSE = RunOptions(pause_after=1)


def paused(store, settings):
    with pytest.raises(PausedRun):
        execute(settings, store, options=PAUSE)
    (run,) = [run for run in store.ids() if store.settings(run).seed == settings.seed]
    return run


@pytest.mark.parametrize("method", ["sgd", "ogd+"])
def test_a_checkpoint_of_another_seed_is_refused(store, tiny, method, tmp_path):
    three, four = (paused(store, tiny(method, seed=seed)) for seed in (3, 4))
    shutil.copy(store.checkpoint(four), store.checkpoint(three))
    with pytest.raises(StoreError, match=f"belongs to '{four}', not to '{three}'"):
        execute(tiny(method, seed=3), store)
    assert store.state(three) == "failed"
    store.checkpoint(three).unlink()
    undisturbed = execute(tiny(method, seed=3), Store(tmp_path / "other"))
    assert execute(tiny(method, seed=3), store).result_hash == undisturbed.result_hash


def test_a_flipped_bit_in_a_checkpoint_is_noticed(store, tiny):
    run = paused(store, tiny())
    path = store.checkpoint(run)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="does not match its own checksum"):
        execute(tiny(), store)
    assert "checksum" in store.failure(run)["reason"]


def test_progress_of_another_run_does_not_count(store, tiny):
    one, two = paused(store, tiny(seed=1)), paused(store, tiny(seed=2))
    assert len(store.progress(one)) == 2
    shutil.copy(store.folder(two) / "progress.jsonl", store.folder(one) / "progress.jsonl")
    assert store.progress(one) == []


def test_a_record_of_another_seed_is_refused_by_a_run_that_names_it(store, tiny):
    first, second = (execute(tiny(seed=seed), store) for seed in (1, 2))
    shutil.copy(store.folder(first.id) / "record.json", store.folder(second.id) / "record.json")
    with pytest.raises(StoreError, match=f"is the record of run {first.id}, not of {second.id}"):
        execute(tiny(seed=2), store)
    assert execute(tiny(seed=1), store).id == first.id


def test_an_id_that_does_not_follow_from_the_settings_is_refused(store, tiny):
    record = execute(tiny(), store)
    text = record.to_json()
    from orthocl.lab.store.record import Record

    assert Record.from_json(text, run=record.id) == record
    for changed in (
        Record(**{**vars(record), "code": 2}),
        Record(**{**vars(record), "id": "0" * 16}),
        Record(**{**vars(record), "settings": tiny(seed=9).resolved()}),
    ):
        with pytest.raises(StoreError, match="calls itself run"):
            Record.from_json(changed.to_json())


def test_edited_circumstances_are_noticed(store, tiny):
    record = execute(tiny(), store)
    path = store.folder(record.id) / "record.json"
    path.write_text(path.read_text().replace('"cpus": ', '"cpus": 1'))
    with pytest.raises(StoreError, match="its own checksum"):
        store.record(record.id)


def test_the_reason_survives_a_store_that_vanished(store, tiny):
    from orthocl.lab.run.execute import RunObserver

    class Vanish(RunObserver):
        def on_step(self, learner, progress, loss):
            shutil.rmtree(store.directory)
            raise StoreError("the real reason")

    with pytest.raises(StoreError, match="the real reason"):
        execute(tiny(), store, observers=[Vanish()])
