from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orthocl.errors import StoreError
from orthocl.lab.store import run_lock as claims
from orthocl.lab.store.run_lock import Claim, ClaimedError, alive_claim, this_process


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EROFS, "Read-only file system")


def write_claim(folder: Path, number: int, age: float = 0.0, **owner: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"claim-{number}.json"
    path.write_text(json.dumps({"machine": "elsewhere", "pid": 1, "host": "far", "released": False} | owner))
    moment = time.time() - age
    os.utime(path, (moment, moment))
    return path


def test_a_record_comes_back(store, make_record):
    record = make_record()
    store.write_record(record)
    assert store.record(record.id) == record
    assert list(store.records()) == [record]
    assert store.state(record.id) == "finished"
    assert store.record("another") is None


def test_states(store, make_record, tiny):
    assert store.state("x") == "new"
    with store.claim("x"):
        store.begin("x", tiny(), {"threads": 1})
        assert store.state("x") == "running"
    assert store.state("x") == "unfinished"
    store.write_failure("x", {"reason": "r", "traceback": []})
    assert store.state("x") == "failed"
    store.write_record(make_record(id="x", status="unsupported", reason="no"))
    assert store.state("x") == "unsupported"
    assert store.failure("x") is None


def test_the_first_start_is_remembered(store, tiny):
    with store.claim("x"):
        assert store.begin("x", tiny(), {"threads": 3}) == {"threads": 3}
        assert store.begin("x", tiny(), {"threads": 4}) == {"threads": 3}
    assert store.settings("x") == tiny()


def test_half_written_files_are_swept_away(store, tiny):
    with store.claim("x"):
        partial = store.folder("x") / ".checkpoint.safetensors.123.partial"
        partial.write_text("half")
        store.begin("x", tiny(), {})
        assert not partial.exists()


def test_the_index_is_rebuilt_from_the_directories(store, make_record):
    store.write_record(make_record(seed=1))
    lines = store.index()
    assert [(line.id, line.aac, line.seed) for line in lines] == [("sgd-1", 0.65, 1)]
    path = store.directory / "index.jsonl"
    path.write_text('garbage\n{"id": "ghost"}\n')
    assert store.index() == lines
    path.unlink()
    store.write_record(make_record("ewc", seed=2, final=0.7))
    assert [line.id for line in store.index()] == ["ewc-2", "sgd-1"]
    os.utime(path, (0, 0))
    assert [line.id for line in store.index()] == ["ewc-2", "sgd-1"]
    assert path.stat().st_mtime == 0, "an index that is up to date is not written again"
    store.remove("ewc-2")
    assert [line.id for line in store.index()] == ["sgd-1"]


def test_a_store_that_may_only_be_read_has_an_index_too(store, make_record, monkeypatch):
    store.write_record(make_record())
    for call in ("os.replace", "pathlib.Path.unlink"):
        monkeypatch.setattr(call, refuse)
    assert [line.id for line in store.index()] == ["sgd-1"]
    assert not (store.directory / "index.jsonl").exists()


def test_find_by_the_beginning_of_the_id(store, make_record):
    for name in ("abc", "abd"):
        store.write_record(make_record(id=name))
    assert store.find("abc") == "abc"
    with pytest.raises(StoreError, match="give more letters"):
        store.find("ab")
    with pytest.raises(StoreError, match=r"no run in .* begins with"):
        store.find("x")


def test_a_store_is_a_directory(tmp_path):
    from orthocl.lab import Store

    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="is a file"):
        Store(tmp_path / "file")


@pytest.mark.parametrize("place", ["runs", "store"])
def test_a_store_that_cannot_be_written_in_is_an_error_before_any_work(tmp_path, tiny, place):
    from orthocl.lab import Experiment, Store, run_experiment
    from orthocl.lab.laboratory import ignore

    (tmp_path / place).touch()  # a file where a directory should be
    store = Store(tmp_path if place == "runs" else tmp_path / "store" / "below")
    with pytest.raises(StoreError, match=r"cannot write in the store .*Choose another"):
        run_experiment(Experiment("one", (tiny(),)), store, jobs=1, on_event=ignore)


def test_a_claim_that_cannot_be_written_is_an_error_of_the_store(store, monkeypatch):
    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    with pytest.raises(StoreError, match=r"cannot write in .*Read-only"):
        store.claim("x")


def test_a_run_that_cannot_be_removed_is_an_error_of_the_store(store, make_record, monkeypatch):
    store.write_record(make_record())
    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(StoreError, match=r"cannot remove .*Read-only"):
        store.remove("sgd-1")


# ---- claims ---------------------------------------------------------------------------------------------------


def test_a_claim_excludes_others_until_it_is_released(store):
    with store.claim("x"):
        assert alive_claim(store.folder("x"))["pid"] == os.getpid()
        with pytest.raises(ClaimedError, match=str(os.getpid())):
            store.claim("x")
        with pytest.raises(StoreError, match="being executed right now"):
            store.remove("x")
    with store.claim("x") as second:
        assert second.folder == store.folder("x")
        second.finish()
    assert not list(store.folder("x").glob("claim-*"))


def test_the_claim_of_a_dead_process_of_this_machine_is_over_at_once(store):
    code = (
        "import os, sys; from orthocl.lab import Store; "
        f"Store({str(store.directory)!r}).claim('x'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert list(store.folder("x").glob("claim-*")), "the process died with its claim"
    with store.claim("x"):
        pass


def test_a_process_number_that_went_to_another_process_is_dead(store):
    write_claim(store.folder("x"), 1, **(this_process() | {"born": "1"}))
    assert alive_claim(store.folder("x")) is None


def test_a_claim_from_another_machine_counts_while_its_heart_beats(store):
    write_claim(store.folder("x"), 3, age=30)
    with pytest.raises(ClaimedError, match="far"):
        store.claim("x")
    write_claim(store.folder("x"), 3, age=500)
    with store.claim("x"):
        assert (store.folder("x") / "claim-4.json").exists()


@pytest.mark.parametrize("content", [b"", b'{"pid": ', b"\xff\xfe", b"[1]", b"null"])
def test_an_unreadable_claim_counts_until_it_is_old(store, content):
    path = write_claim(store.folder("x"), 1)
    path.write_bytes(content)
    with pytest.raises(ClaimedError):
        store.claim("x")
    os.utime(path, (0, 0))
    with store.claim("x"):
        pass


def test_claims_are_judged_where_one_may_only_read(store, monkeypatch):
    write_claim(store.folder("x"), 1, age=30)
    write_claim(store.folder("y"), 1, age=500)
    monkeypatch.setattr(Path, "touch", refuse)
    assert store.state("x") == "running"
    assert store.state("y") == "unfinished"


def test_the_heart_goes_on_beating_when_the_file_system_was_away(tmp_path, monkeypatch):
    look, failures = claims._claims, []

    def fail_twice(folder):
        if len(failures) < 2:
            failures.append(folder)
            raise OSError("stale file handle")
        return look(folder)

    with Claim(tmp_path, heartbeat=0.01) as claim:
        monkeypatch.setattr(claims, "_claims", fail_twice)
        write_claim(tmp_path, 2)
        deadline = time.monotonic() + 10
        while not claim.lost and time.monotonic() < deadline:
            time.sleep(0.01)
        assert claim.lost
        assert len(failures) == 2


def test_the_heart_beats_and_notices_a_take_over(tmp_path):
    with Claim(tmp_path, heartbeat=0.01) as claim:
        path = tmp_path / "claim-1.json"
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0
        assert not claim.lost
        write_claim(tmp_path, 2)
        while not claim.lost and time.monotonic() < deadline:
            time.sleep(0.01)
        assert claim.lost
    assert not json.loads(path.read_text())["released"], "a lost claim is not ours to release"


def test_a_claim_that_appears_between_the_look_and_the_creation_wins(tmp_path, monkeypatch):
    def late(claims_found, folder, timeout):
        write_claim(folder, 1)  # another process is quicker
        return None

    monkeypatch.setattr(claims, "_alive", late)
    with pytest.raises(ClaimedError, match="just now"):
        Claim(tmp_path)
    assert [path.name for path in tmp_path.glob("claim-*")] == ["claim-1.json"]


def _contend(directory: str, start: float, results) -> None:
    from orthocl.lab import Store

    time.sleep(max(0.0, start - time.time()))
    won = 0
    for number in range(30):
        try:
            Store(directory).claim(f"run-{number}")
            won += 1
        except ClaimedError:
            pass
    results.put(won)
    time.sleep(3600)


def test_of_many_contenders_exactly_one_wins_each_run(store):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    start = time.time() + 0.3
    workers = [
        context.Process(target=_contend, args=(str(store.directory), start, results)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    try:
        assert sum(results.get(timeout=60) for _ in workers) == 30
        assert len(list(store.runs.glob("*/claim-*.json"))) == 30
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
