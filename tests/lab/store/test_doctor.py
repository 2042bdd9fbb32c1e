"""One bad file never takes the store down: it is listed, explained and moved away, and everything else works."""

from __future__ import annotations

import json
import os

import pytest
import torch

from orthocl.cli.app import call
from orthocl.errors import StoreError
from orthocl.lab import Store
from orthocl.lab.store.doctor import examine, quarantine
from orthocl.lab.store.store import DamagedRecordWarning
from orthocl.storage import sealed, write_state


@pytest.fixture
def three(store, make_record, tiny):
    """A store with three records and one run that was only started."""
    for seed in (1, 2, 3):
        store.write_record(make_record(seed=seed))
    with store.claim("begun"):
        store.begin("begun", tiny(), {"threads": 1})
    return store


def spoil(path, how):
    if how == "directory":
        path.unlink()
        path.mkdir()
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_bytes(how)


DAMAGE = {
    "truncated": b'{"format": 1, ',
    "not UTF-8": b"\xff\xfe\x00\x80",
    "empty": b"",
    "deep nesting": b"[" * 100_000,
    "list": b"[]",
    "null": b"null",
    "number": b"7",
    "table": b"{}",
    "NaN": b'{"format": NaN}',
    "null parts": b'{"format": 1, "id": "sgd-2", "provenance": null, "result_hash": ""}',
    "a directory": "directory",
    "a pipe": "pipe",
}


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_is_listed_and_the_others_work(three, how, capsys):
    spoil(three.folder("sgd-2") / "record.json", how)
    assert three.state("sgd-2") == "damaged"
    with pytest.warns(DamagedRecordWarning, match="sgd-2"):
        assert [record.id for record in three.records()] == ["sgd-1", "sgd-3"]
    assert {line.id: line.status for line in three.index()} == {
        "sgd-1": "finished",
        "sgd-2": "damaged",
        "sgd-3": "finished",
    }
    where = ["--store", str(three.directory)]
    assert call(["runs", "list", *where]) == 0
    out = capsys.readouterr()
    assert out.out.count("65.00") == 2
    assert "damaged" in out.out
    assert "runs doctor" in out.err
    assert call(["runs", "export", str(three.directory / "all.csv"), *where]) == 0
    assert (three.directory / "all.csv").read_text().count("\n") == 3
    assert call(["runs", "rm", "sgd-1", *where]) == 0
    assert call(["runs", "show", "sgd-2", *where]) == 2


@pytest.mark.parametrize("how", DAMAGE.values(), ids=DAMAGE)
def test_damage_of_the_other_files_is_answered_too(three, how, capsys):
    folder = three.folder("begun")
    spoil(folder / "settings.json", how)
    (folder / "failure.json").write_text("x")
    spoil(folder / "failure.json", how)
    (folder / "progress.jsonl").write_text("x")
    spoil(folder / "progress.jsonl", how)
    (folder / "claim-7.json").write_text("x")
    spoil(folder / "claim-7.json", how)
    os.utime(folder / "claim-7.json", (0, 0))
    (folder / "claim-².json").write_text("{}")
    with pytest.raises(StoreError, match=r"settings\.json cannot be read"):
        three.settings("begun")
    assert three.failure("begun")["traceback"] == []
    assert three.progress("begun") == []
    assert three.state("begun") == "failed"
    assert call(["runs", "list", "--store", str(three.directory)]) == 0
    assert capsys.readouterr().out.count("finished") == 3


@pytest.mark.parametrize(
    "content", [b"\xff" * 500, b"", b"[" * 100_000, b'{"checksum": 5}\n{"id": 3}\n', b"{}\n"]
)
def test_a_damaged_index_is_rebuilt(three, content):
    good = three.index()
    (three.directory / "index.jsonl").write_bytes(content)
    assert three.index() == good


def test_an_edited_index_is_not_believed(three):
    path = three.directory / "index.jsonl"
    good = three.index()
    path.write_text(path.read_text().replace("0.65", "0.92"))
    assert three.index() == good
    assert "0.92" not in path.read_text()


def test_a_record_of_another_run_is_refused_wherever_it_is_read(three, make_record):
    content = (three.folder("sgd-1") / "record.json").read_bytes()
    (three.folder("sgd-2") / "record.json").write_bytes(content)
    with pytest.raises(StoreError, match="is the record of run sgd-1, not of sgd-2"):
        three.record("sgd-2")
    assert three.state("sgd-2") == "damaged"


def test_the_doctor_explains_and_moves_but_deletes_nothing(three, capsys):
    before = (three.folder("sgd-1") / "record.json").read_bytes()
    (three.folder("sgd-2") / "record.json").write_bytes(before)
    write_state(three.checkpoint("begun"), {"a": torch.zeros(3)}, owner="another")
    (three.runs / "stray.txt").write_text("?")
    where = ["--store", str(three.directory)]
    assert call(["runs", "doctor", *where]) == 1
    text = capsys.readouterr().out
    assert "is the record of run sgd-1" in text
    assert "belongs to 'another'" in text
    assert "stray.txt: it is not the folder of a run" in text
    assert (three.folder("sgd-2") / "record.json").exists()
    assert call(["runs", "doctor", "--quarantine", *where]) == 0
    assert (three.directory / "quarantine" / "sgd-2" / "record.json").read_bytes() == before
    assert three.state("sgd-2") == "unfinished"
    assert not three.checkpoint("begun").exists()
    assert examine(three) == []
    assert call(["runs", "doctor", *where]) == 0


def test_quarantine_keeps_files_of_the_same_name_apart(three):
    for _ in range(2):
        path = three.folder("sgd-2") / "record.json"
        path.write_text("[]")
        (moved,) = quarantine(three, examine(three))
    assert moved.name == "record.json.2"
    assert (moved.parent / "record.json").exists()


def test_a_run_in_progress_is_left_alone(three):
    (three.folder("begun") / "failure.json").write_text("[]")
    (damage,) = examine(three)
    with three.claim("begun"):
        assert examine(three) == []
        with pytest.raises(StoreError, match="being executed right now"):
            quarantine(three, [damage])


def test_a_checkpoint_in_the_folder_of_a_finished_run_is_superfluous(three):
    write_state(three.checkpoint("sgd-1"), {"a": 1}, owner="sgd-1")
    (damage,) = examine(three)
    assert "woke up too late" in damage.reason


def test_runs_that_is_a_file_is_an_error_of_the_store(store):
    store.directory.mkdir()
    store.runs.write_text("")
    with pytest.raises(StoreError, match="cannot read the store"):
        store.ids()


def test_a_record_is_never_overwritten(store, make_record):
    store.write_record(make_record(final=0.5))
    store.write_record(make_record(final=0.5, provenance={"seconds": {"total": 99.0}}))
    assert store.record("sgd-1").metric("seconds") == 3.0
    with pytest.raises(StoreError, match="with another result: that one was kept"):
        store.write_record(make_record(final=0.7))
    assert store.record("sgd-1").metric("aac") == pytest.approx(0.65)


def test_an_empty_prefix_chooses_nothing(store, make_record):
    store.write_record(make_record())
    with pytest.raises(StoreError, match="say which run"):
        store.find("")


def test_a_linked_run_is_not_removed_and_the_reason_is_given(store, make_record, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    store.runs.mkdir(parents=True)
    (store.runs / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        store.remove("link")


@pytest.mark.parametrize("threads", [0, -1, "abc", [1], True, 100_000_000, None, 1.5])
def test_an_impossible_number_of_threads_is_damage(store, tiny, threads):
    with store.claim("x"):
        store.begin("x", tiny(), {"threads": 1})
        path = store.folder("x") / "settings.json"
        values = json.loads(path.read_text())
        values["start"]["threads"] = threads
        path.write_text(json.dumps(sealed(values)))
        store.checkpoint("x").touch()
        with pytest.raises(StoreError, match="threads must be between 1 and 4096"):
            store.begin("x", tiny(), {"threads": 2})
        store.checkpoint("x").unlink()
        assert store.begin("x", tiny(), {"threads": 2}) == {"threads": 2}


def test_settings_of_another_run_or_edited_ones_are_noticed(store, tiny):
    for run in ("x", "y"):
        with store.claim(run):
            store.begin(run, tiny(), {"threads": 1})
    path = store.folder("y") / "settings.json"
    path.write_bytes((store.folder("x") / "settings.json").read_bytes())
    with pytest.raises(StoreError, match="belongs to run x"):
        store.settings("y")
    own = store.folder("x") / "settings.json"
    own.write_text(own.read_text().replace('"seed": 1', '"seed": 2'))
    with pytest.raises(StoreError, match="checksum"):
        store.settings("x")


def test_a_report_and_a_run_of_an_experiment_go_on_beside_a_damaged_record(tmp_path, capsys):
    file = tmp_path / "two.toml"
    file.write_text(
        'streams = ["rotated-mnist-mini"]\nmethods = ["sgd"]\nseeds = [1, 2]\nnet.hidden = [4]\n'
        "stream = {tasks = 1, train_size = 20, test_size = 20}\ntrain.epochs = 1\n"
    )
    where = ["--store", str(tmp_path / "store")]
    assert call(["run", str(file), "--jobs", "0", *where]) == 0
    store = Store(tmp_path / "store")
    spoilt, good = store.ids()
    content = (store.folder(good) / "record.json").read_bytes()
    (store.folder(spoilt) / "record.json").write_bytes(content)
    capsys.readouterr()
    assert call(["report", str(file), "--out", str(tmp_path / "r.html"), *where]) == 0
    text = capsys.readouterr().err
    assert f"is the record of run {good}, not of {spoilt}" in text
    assert "1 run finished to" in text
    assert call(["run", str(file), "--jobs", "0", *where]) == 1, "one failure, with the reason"
    assert f"is the record of run {good}" in capsys.readouterr().err
    assert call(["runs", "doctor", "--quarantine", *where]) == 0
    assert call(["run", str(file), "--jobs", "0", *where]) == 0
    assert {store.state(run) for run in store.ids()} == {"finished"}
