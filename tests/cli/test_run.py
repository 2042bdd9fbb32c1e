from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orthocl.cli.app import call
from orthocl.lab import Result, Store
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
    report = shelf.parent / "not" / "there" / "report.html"
    assert call([*FLAGS, "--seed", "3", "--jobs", "2", "--store", str(shelf), "--report", str(report)]) == 0
    captured = capsys.readouterr()
    assert "rotated-mnist-mini, 1 seed" in captured.out
    assert "ewc" in captured.out
    assert report.read_text().startswith("<!doctype html>")
    assert len(list(Store(shelf).records())) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell there")
@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_command_without_standard_streams_runs_too(shelf, closed):
    program = [sys.executable, "-c", "from orthocl.cli.app import main; main()"]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *program, *FLAGS, "--jobs", "2", "--store", str(shelf)]
    subprocess.run(shell, check=True, timeout=300)
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
    text = capsys.readouterr().err
    lines = [line for line in text.splitlines() if "failed rotated-mnist-mini / ewc" in line]
    assert len(lines) == 2, "when it happens, and in the list at the end"
    assert ["smaller learning rate" in line for line in lines] == [False, True]
    assert "0 of 2 runs in" in text
    assert "2 failed" in text


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


def test_dry_run_counts_the_start_of_processes_and_never_says_zero(filled, capsys, monkeypatch):
    monkeypatch.setattr("orthocl.cli.run.start_seconds", lambda: 3.0)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    arguments = [*FLAGS, "--seed", "1", "--store", str(filled), "--dry-run"]
    assert call([*arguments, "--seed", "9"]) == 0
    text = capsys.readouterr().out
    assert "1 thread each, 3.0 s of it to start; expect between " in text
    assert "2 records" in text
    assert 3.0 <= float(text.split("About ")[1].split(" s ")[0]) < 20.0
    assert "0.0 s" not in text
    assert call([*arguments, "--seed", "9", "--jobs", "0"]) == 0
    text = capsys.readouterr().out
    assert "3.0 s of it to start" in text
    assert "0.0 s" not in text
    assert call([*arguments, "--seed", "9", "--backend", "slurm"]) == 0
    assert "not counting starting workers" in capsys.readouterr().out
    assert call(arguments) == 0
    assert "Nothing is left to do." in capsys.readouterr().out


def test_an_unfinished_run_is_called_so_everywhere(filled, capsys):
    store = Store(filled)
    run = store.ids()[0]
    (store.folder(run) / "record.json").unlink()
    seed, method = str(store.settings(run).seed), store.settings(run).method.name
    dry = ["run", "--stream", "rotated-mnist-mini", "--method", method, "--seed", seed, *SMALL, "--dry-run"]
    for arguments in (["runs", "list"], ["runs", "show", run], [*dry, "--jobs", "0"]):
        assert call([*arguments, "--store", str(filled)]) == 0
        assert "unfinished" in capsys.readouterr().out
    assert call(["runs", "rm", "--unfinished", "--store", str(filled)]) == 0
    assert "removed 1 run\n" in capsys.readouterr().err
    assert run not in store.ids()


def test_removing_the_unfinished_leaves_the_failed(shelf, capsys):
    assert call([*FLAGS, "--jobs", "0", "--store", str(shelf), "--set", "train.learning_rate=1e30"]) == 1
    store = Store(shelf)
    store.folder("begun").mkdir()
    assert call(["runs", "rm", "--unfinished", "--store", str(shelf)]) == 0
    assert len(store.ids()) == 2
    assert call(["runs", "rm", "--failed", "--store", str(shelf)]) == 0
    assert not store.ids()


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
        ([*FLAGS, "--report", str(Path(__file__) / "x.html")], "cannot create the folder"),
        ([*FLAGS, "--report", str(Path(__file__).parent)], "is a folder"),
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


def test_runs_export_parquet_holds_what_csv_holds(filled, tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    others = ["run", "--stream", "split-mnist-mini", "--method", "ogd", "--method", "a-gem", *SMALL]
    assert (
        call([*others, "--jobs", "0", "--store", str(filled)]) == 0
    )  # with other settings, so other columns
    first = next(Store(filled).records())
    refused = replace(first, id="refused", status="unsupported", reason="it cannot be", result=Result())
    Store(filled).write_record(refused)
    folder = tmp_path / "new"
    for suffix in ("csv", "parquet"):
        assert call(["runs", "export", str(folder / f"all.{suffix}"), "--store", str(filled)]) == 0
    table = parquet.read_table(folder / "all.parquet").to_pylist()
    rows = list(csv.DictReader((folder / "all.csv").read_text().splitlines()))
    assert len(table) == len(rows) == 7
    for written, wanted in zip(table, rows, strict=True):
        assert list(written) == list(wanted)
        assert {key: "" if value is None else str(value) for key, value in written.items()} == wanted


def test_parquet_without_pyarrow_says_what_to_install(filled, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert call(["runs", "export", str(tmp_path / "all.parquet"), "--store", str(filled)]) == 2
    assert "orthocl[parquet]" in capsys.readouterr().err
    assert not (tmp_path / "all.parquet").exists()


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
    page = tmp_path / "new" / "r.html"
    assert call(["report", "--out", str(page), "--store", str(filled)]) == 0
    assert "ewc" in page.read_text()
    assert "4 runs finished to" in capsys.readouterr().err
    arguments = ["report", "--figure", "accuracy", "--store", str(filled)]
    assert call([*arguments, "--out", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").exists()
    assert call([*arguments, "--out", str(tmp_path / "a.txt")]) == 2


def test_a_report_without_a_file_can_be_about_some_runs(filled, tmp_path, capsys):
    arguments = ["report", "--store", str(filled), "--out", str(tmp_path / "r.html")]
    assert call([*arguments, "--only", "ewc", "--seed", "1"]) == 0
    assert "1 run finished to" in capsys.readouterr().err
    assert call([*arguments, "--only", "zzz"]) == 2
    assert "none of these runs" in capsys.readouterr().err
    assert call([*arguments, "--set", "train.epochs=1"]) == 2
    assert "give the file too" in capsys.readouterr().err


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
        "Memory",
    ):
        assert word in printed
    assert (out / "report.html").exists()
    assert len(list(Store(out / "store").records())) == 10
