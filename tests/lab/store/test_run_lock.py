"""Claims that are lost: to a higher number, to somebody who tidied up, to a clock that was set back."""

from __future__ import annotations

import json
import os
import time

import pytest

from orthocl.lab.run.execute import RunObserver, execute
from orthocl.lab.store.run_lock import TIMEOUT, Claim, ClaimedError, alive_claim


def foreign(folder, number, ahead=0.0, **owner):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"claim-{number}.json"
    path.write_text(json.dumps({"machine": "elsewhere", "pid": 1, "host": "far", "released": False} | owner))
    moment = time.time() + ahead
    os.utime(path, (moment, moment))
    return path


def test_a_claim_is_confirmed_while_it_is_ours(tmp_path):
    with Claim(tmp_path) as claim:
        claim.confirm()
        assert not claim.lost


@pytest.mark.parametrize("how", ["higher number", "removed", "folder removed", "same number again"])
def test_a_claim_that_is_gone_is_lost(tmp_path, how):
    folder = tmp_path / "run"
    folder.mkdir()
    with Claim(folder) as claim:
        path = folder / "claim-1.json"
        if how == "higher number":
            foreign(folder, 2)
        else:
            path.unlink()
        if how == "folder removed":
            folder.rmdir()
        if how == "same number again":
            foreign(folder, 1, nonce="another")
        with pytest.raises(ClaimedError, match="taken over by another process"):
            claim.confirm()
        assert claim.lost
        before = {each.name: each.read_text() for each in folder.glob("*")} if folder.exists() else {}
    after = {each.name: each.read_text() for each in folder.glob("*")} if folder.exists() else {}
    assert after == before, "a lost claim is not ours to release"


def test_a_claim_from_the_future_has_the_usual_time_to_prove_that_it_is_alive(tmp_path):
    path = foreign(tmp_path, 1, ahead=86_400)
    assert alive_claim(tmp_path) is not None
    assert abs(path.stat().st_mtime - time.time()) < 60, "it was moved to the present"
    seen = path.stat().st_mtime
    assert alive_claim(tmp_path) is not None
    assert path.stat().st_mtime == seen, "once: it is not kept alive by being looked at"
    os.utime(path, (seen - TIMEOUT - 1, seen - TIMEOUT - 1))
    assert alive_claim(tmp_path) is None


def test_the_claim_of_a_dead_process_from_the_future_is_over_at_once(tmp_path):
    with Claim(tmp_path) as claim:
        owner = dict(claim._owner, born="1")
    foreign(tmp_path, 2, ahead=86_400, **owner)
    assert alive_claim(tmp_path) is None


@pytest.mark.parametrize("pid", [0, -1, 10**30, True, "7", None])
def test_odd_process_numbers_do_no_harm(tmp_path, pid):
    with Claim(tmp_path) as claim:
        owner = dict(claim._owner, pid=pid)
    foreign(tmp_path, 2, **owner)
    alive_claim(tmp_path)


class _Sleeper(RunObserver):
    """Falls asleep after a task, while another process takes over, finishes and tidies up."""

    def __init__(self, store, folder, other, after):
        self.store, self.folder, self.other, self.after = store, folder, other, after

    def on_task(self, learner, progress):
        if progress.task - 1 == self.after:
            for path in self.folder.glob("claim-*"):
                path.unlink()
            self.store.write_record(self.other)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_sleeper_that_wakes_after_its_run_was_finished_changes_nothing(store, tmp_path, tiny, after):
    from orthocl.lab import Store

    whole = execute(tiny(), Store(tmp_path / "whole"))
    folder = store.folder(whole.id)
    with pytest.raises(ClaimedError):
        execute(tiny(), store, observers=[_Sleeper(store, folder, whole, after)])
    assert store.record(whole.id).provenance == whole.provenance, (
        "the finished record is the one that was there"
    )
    assert not store.checkpoint(whole.id).exists()
    assert not (folder / "failure.json").exists()
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert [line["after_task"] for line in lines if "after_task" in line] == list(range(after + 1))


def test_a_run_whose_claim_was_removed_can_be_taken_up_again(store, tiny):
    with pytest.raises(ClaimedError):
        execute(tiny(), store, observers=[_Late(store)])
    again = execute(tiny(), store)
    assert again.result_hash == execute(tiny(), type(store)(store.directory / "x")).result_hash


class _Late(RunObserver):
    def __init__(self, store):
        self.store = store

    def on_task(self, learner, progress):
        if progress.task == 3:
            for path in self.store.runs.glob("*/claim-*"):
                path.unlink()
