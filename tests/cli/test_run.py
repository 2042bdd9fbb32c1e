from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from orthocl.cli.app import call
from orthocl.lab import Store
from orthocl.lab.executors import Outcome
from orthocl.lab.laboratory import Results

SMALL = [
    *("--set", "stream.tasks=2"),
    *("--set", "stream.train_size=100"),
    *("--set", "stream.test_size=50"),
    *("--set", "train.epochs=1"),
    *("--set", "net.hidden=[8]"),
]
FLAGS = ["run", "--stream", "rotated-mnist-mini", "--method", "sgd", "--method", "ewc", *SMALL]


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def filled(shelf: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert call([*FLAGS, "--seed", "1", "--seed", "2", "--jobs", "0", "--store", str(shelf)]) == 0
    capsys.readouterr()
    return shelf


def test_run_from_flags(shelf, capsys):
    report = shelf.parent / "report.html"
    assert call([*FLAGS, "--seed", "3", "--jobs", "2", "--store", str(shelf), "--report", str(report)]) == 0
    captured = capsys.readouterr()
    assert "rotated-mnist-mini, 1 seed" in captured.out
    assert "ewc" in captured.out
    assert report.read_text().startswith("<!doctype html>")
    assert len(list(Store(shelf).records())) == 2


def test_run_from_a_file_with_a_csv_table(shelf, tmp_path, capsys):
    file = tmp_path / "small.toml"
    file.write_text('streams = ["rotated-mnist-mini"]\nmethods = ["sgd", "ewc"]\nseeds = [1, 2]\n')
    arguments = [
        "run",
        str(file),
        *SMALL,
        "--only",
        "ewc",
        "--seed",
        "7",
        "--jobs",
        "0",
        "--store",
        str(shelf),
    ]
    assert call([*arguments, "--table", "csv", "--metric", "bwt"]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert (row["method"], row["seeds"]) == ("ewc", "7")
    assert float(row["bwt"]) == next(Store(shelf).records()).metric("bwt")


def test_a_failed_run_is_exit_code_1(shelf, capsys):
    assert call([*FLAGS, "--jobs", "0", "--store", str(shelf), "--set", "train.learning_rate=1e30"]) == 1
    assert "smaller learning rate" in capsys.readouterr().err


def test_runs_that_were_stopped_are_exit_code_130_even_if_only_they_heard_the_signal(shelf, monkeypatch):
    def stopped(experiment, *_, **__):
        return Results(experiment, tuple(Outcome("1", each, "interrupted") for each in experiment.runs))

    monkeypatch.setattr("orthocl.cli.run.run_experiment", stopped)
    assert call([*FLAGS, "--store", str(shelf)]) == 130


def test_dry_run_shows_what_is_there_and_makes_nothing(filled, capsys):
    before = Store(filled).ids()
    assert call([*FLAGS, "--seed", "1", "--seed", "9", "--store", str(filled), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "4 runs: 2 finished, 2 new" in text
    assert Store(filled).ids() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "give an experiment file"),
        (["run", "none.toml"], "cannot read"),
        (["run", "some.toml", "--method", "sgd"], "use --only"),
        ([*FLAGS, "--backend", "lcoal"], "did you mean 'local'"),
        ([*FLAGS, "--backend-set", "x"], "expected KEY=VALUE"),
        ([*FLAGS, "--set", "method.memory_per_task=3"], "hyperparameter of the methods here"),
        ([*FLAGS, "--tracker", "tensorbord"], "did you mean 'tensorboard'"),
        ([*FLAGS, "--metric", "acc"], "did you mean 'aac'"),
    ],
)
def test_mistakes(shelf, capsys, arguments, words):
    assert call([*arguments, "--store", str(shelf)]) == 2
    assert words in capsys.readouterr().err
    assert not shelf.exists()


def test_runs_list_show_compare(filled, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    store = Store(filled)
    assert call(["runs", "list", "--method", "ew*", "--store", str(filled)]) == 0
    text = capsys.readouterr().out
    ids = store.ids()
    assert sum(run[:8] in text for run in ids) == 2
    record = next(store.records())
    assert call(["runs", "show", record.id[:6], "--store", str(filled)]) == 0
    text = capsys.readouterr().out
    assert record.result_hash in text
    assert "train.epochs = 1" in text
    assert "rotated" in text
    assert call(["runs", "compare", *ids, "--store", str(filled)]) == 0
    text = capsys.readouterr().out
    assert "seed" in text
    assert "method.name" in text
    assert "train.epochs" not in text, "only what differs is shown"


def test_runs_export(filled, tmp_path, capsys):
    for suffix in ("csv", "json"):
        assert call(["runs", "export", str(tmp_path / f"all.{suffix}"), "--store", str(filled)]) == 0
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    values = json.loads((tmp_path / "all.json").read_text())
    assert len(rows) == len(values) == 4
    by_id = {value["id"]: value for value in values}
    for row in rows:
        final = by_id[row["id"]]["result"]["accuracies"][-1]
        assert float(row["aac"]) == sum(final) / len(final)
        assert row["seed"] == str(by_id[row["id"]]["settings"]["seed"])
    assert call(["runs", "export", str(tmp_path / "all.xls"), "--store", str(filled)]) == 2


def test_runs_export_parquet(filled, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert call(["runs", "export", str(tmp_path / "all.parquet"), "--store", str(filled)]) == 0
    assert parquet.read_table(tmp_path / "all.parquet").num_rows == 4


def test_runs_rm(filled, capsys):
    store = Store(filled)
    first, *rest = store.ids()
    assert call(["runs", "rm", first, "--store", str(filled)]) == 0
    assert store.ids() == rest
    assert call(["runs", "rm", "--failed", "--store", str(filled)]) == 0
    assert store.ids() == rest
    store.checkpoint("broken").parent.mkdir()
    assert call(["runs", "rm", "--unfinished", "--store", str(filled)]) == 0
    assert store.ids() == rest
    assert call(["runs", "rm", "--store", str(filled)]) == 2


def test_report_and_figure(filled, tmp_path, capsys):
    assert call(["report", "--out", str(tmp_path / "r.html"), "--store", str(filled)]) == 0
    assert "ewc" in (tmp_path / "r.html").read_text()
    arguments = ["report", "--figure", "accuracy", "--store", str(filled)]
    assert call([*arguments, "--out", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").exists()
    assert call([*arguments, "--out", str(tmp_path / "a.txt")]) == 2


def test_demo(tmp_path, capsys):
    out = tmp_path / "out"
    assert call(["demo", "--out", str(out), "--jobs", "2", "--seed", "1", *SMALL]) == 0
    printed = capsys.readouterr().out
    for word in (
        "rotated, 1 seed",
        "permuted, 1 seed",
        "ogd+",
        "a-gem",
        "AAC",
        "Forget.",
        "Memory",
        "Time",
    ):
        assert word in printed
    assert (out / "report.html").exists()
    assert len(list(Store(out / "store").records())) == 10
