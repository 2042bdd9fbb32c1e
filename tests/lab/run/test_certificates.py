"""Certificates beside a run: what its last task changed, also of a resumed one, without influence on its result."""

from __future__ import annotations

import json

import pytest

from orthocl.lab import RunOptions, execute
from orthocl.lab.executors.worker import attempt
from orthocl.lab.reporting.report import render_report
from orthocl.lab.run.certificates import BEFORE, FILE
from orthocl.lab.run.execute import identify


@pytest.mark.parametrize("method", ["sgd", "ogd+"])
def test_the_last_task_is_certified(tiny, store, tmp_path, method):
    run = tiny(method)
    (name,) = identify([run])
    assert attempt(run, store, RunOptions(certificate=True)).kind == "finished"
    found = json.loads((store.folder(name) / FILE).read_text())
    assert found["sentence"]
    named = [probe for probe in found["probes"] if not probe["remembered"]]
    assert len(named) == 2
    assert all(probe["change"]["measured"] <= probe["change"]["total"] * (1 + 1e-5) + 1e-9 for probe in named)
    assert not (store.folder(name) / BEFORE).exists()
    record = store.record(name)
    assert record.result_hash == execute(run, type(store)(tmp_path / "plain")).result_hash
    page = render_report([(record.settings, record)], title="one run", store=store)
    assert found["sentence"][:40] in page


def test_a_resumed_run_is_certified_too(tiny, store, tmp_path):
    run = tiny("sgd")
    (name,) = identify([run])
    assert attempt(run, store, RunOptions(certificate=True, pause_after=2)).kind == "paused"
    assert attempt(run, store, RunOptions(certificate=True)).kind == "finished"
    other = type(store)(tmp_path / "other")
    assert attempt(run, other, RunOptions(certificate=True)).kind == "finished"
    assert (store.folder(name) / FILE).read_text() == (other.folder(name) / FILE).read_text()
