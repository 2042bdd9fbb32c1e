"""Forecasts of forgetting beside a run: written before each task, without influence on its result."""

from __future__ import annotations

import pytest

from orthocl.lab import RunOptions, execute
from orthocl.lab.executors.worker import attempt
from orthocl.lab.run.execute import identify
from orthocl.lab.run.forecasts import ForecastObserver, read_forecasts


@pytest.mark.parametrize("method", ["sgd", "ogd"])
def test_forecasts_stand_beside_what_was_measured(tiny, store, tmp_path, method):
    run = tiny(method)
    (name,) = identify([run])
    assert attempt(run, store, RunOptions(forecast=True)).kind == "finished"
    rows = read_forecasts(store.folder(name))["forecasts"]
    assert {(row["task"], row["earlier"]) for row in rows} == {(2, 1), (3, 1), (3, 2)}
    assert {row["rule"] for row in rows} >= {"sgd", "ogd"}
    assert all(row["measured_drop"] is not None and row["change"] >= 0 for row in rows)
    plain = execute(run, type(store)(tmp_path / "plain"))
    assert store.record(name).result_hash == plain.result_hash


def test_a_resumed_run_goes_on_forecasting(tiny, store):
    run = tiny("sgd")
    (name,) = identify([run])
    assert attempt(run, store, RunOptions(forecast=True, pause_after=2)).kind == "paused"
    before = read_forecasts(store.folder(name))["forecasts"]
    assert {row["task"] for row in before} == {2}
    assert attempt(run, store, RunOptions(forecast=True)).kind == "finished"
    after = read_forecasts(store.folder(name))["forecasts"]
    assert [row for row in after if row["task"] == 2] == before
    assert all(row["measured_drop"] is not None for row in after if row["task"] == 3)


def test_what_cannot_be_forecast_is_noted(tiny, store):
    run = tiny("sgd", train={"optimizer": "adam"})
    (name,) = identify([run])
    record = execute(run, store, observers=[ForecastObserver()])
    assert record.status == "finished"
    assert "forecasts are made for SGD" in read_forecasts(store.folder(name))["note"]
