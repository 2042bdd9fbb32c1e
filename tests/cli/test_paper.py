"""`orthocl paper` on tiny runs of the embedded data: what it says, what it writes, what it returns."""

import json
import re

import pytest

from orthocl.cli.app import call
from orthocl.lab import Store
from orthocl.paper.items import ITEMS

TINY = [
    *("--scale", "small", "--jobs", "0"),
    *("--set", "stream.tasks=3", "--set", "stream.train_size=40", "--set", "stream.test_size=30"),
    *("--set", "train.epochs=1", "--set", "method.memory_per_task=5"),
]
NARROW = ["--set", "net.hidden=[8, 8]"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return str(tmp_path_factory.mktemp("paper") / "store")


def paper(name, shelf, *more):
    hidden = [] if name in ("figure-1", "figure-2", "figure-3") else NARROW
    sets = [*TINY, *hidden]
    if name == "figure-4":
        sets = sets[: sets.index("method.memory_per_task=5") - 1] + hidden
    return call(["paper", name, *sets, "--seeds", "1", "2", "--store", shelf, *more])


def test_list(capsys):
    assert call(["paper"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ITEMS)


def test_dry_run_says_what_is_needed_and_makes_nothing(tmp_path, capsys):
    assert paper("table-1", str(tmp_path / "store"), "--dry-run") == 0
    said = capsys.readouterr().err
    assert "mnist-mini: comes with the package" in said
    assert "8 runs: 0 in the store, 8 to make" in said
    assert "of computing on one core" in said
    assert list(Store(tmp_path / "store").records()) == []


def test_table_2(shelf, tmp_path, capsys):
    out = [tmp_path / "deep" / f"table.{suffix}" for suffix in ("md", "tex", "csv", "json")]
    places = [word for path in out for word in ("--out", str(path))]
    assert paper("table-2", shelf, *places) == 0
    captured = capsys.readouterr()
    assert re.search(r"36 runs: (\d+) in the store, (\d+) to make", captured.err)
    assert "Table 2: average accuracy of all methods" in captured.out
    assert "not for comparison" in captured.out
    assert out[0].read_text().startswith("## Table 2")
    assert r"\toprule" in out[1].read_text()
    assert len(out[2].read_text().splitlines()) == 1 + 2 * 9
    values = json.loads(out[3].read_text())
    assert [len(table["rows"]) for table in values["tables"]] == [9, 9]
    for row in values["tables"][0]["rows"]:
        assert len(row["ours"]["values"]) == 2
        assert 0 < row["ours"]["mean"] < 100
    assert {verdict["status"] for verdict in values["verdicts"]} & {"not run"}
    assert not list(Store(shelf).runs.glob("*/weights.safetensors"))


@pytest.mark.parametrize(
    "name", ["table-1", "table-7", "table-8", "table-9", "table-10", "figure-6", "theory"]
)
def test_items_that_share_runs_make_none_again(shelf, capsys, name):
    assert paper("table-2", shelf, "--table", "json") == 0
    capsys.readouterr()
    assert paper(name, shelf, "--table", "markdown") == 0
    captured = capsys.readouterr()
    assert ", 0 to make" in captured.err
    assert captured.out.startswith("## ")
    assert "**not run**" not in captured.out or name == "table-1"


@pytest.mark.parametrize("name", ["figure-1", "figure-2", "figure-3", "figure-4", "figure-5"])
def test_figures(shelf, tmp_path, capsys, name):
    more = ["--set", "train.evaluate_every=2"] if name == "figure-5" else []
    paths = [tmp_path / f"{name}.{suffix}" for suffix in ("svg", "png")]
    assert (
        paper(name, shelf, *more, "--table", "json", *(w for path in paths for w in ("--out", str(path))))
        == 0
    )
    assert paths[0].read_text().startswith("<?xml")
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    values = json.loads(capsys.readouterr().out)
    assert all(row["ours"]["mean"] is not None for row in values["tables"][0]["rows"])
    assert "not run" not in [verdict["status"] for verdict in values["verdicts"]]


def test_table_3_needs_no_runs(tmp_path, capsys):
    assert call(["paper", "table-3", "--store", str(tmp_path / "none"), "--table", "latex"]) == 0
    captured = capsys.readouterr()
    assert "a-gem-nt" in captured.out
    assert captured.err.startswith("next: ")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_no_run_shows_what_is_there(tmp_path, capsys):
    assert call(["paper", "table-12", "--no-run", "--store", str(tmp_path / "none"), "--table", "csv"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 1 + 4 * 7
    assert "53.93" in rows[1]


def test_missing_data_is_said_and_is_no_success(tmp_path, capsys):
    flags = [
        "--stream",
        "cub200",
        "--seeds",
        "1",
        "--store",
        str(tmp_path / "s"),
        "--data-root",
        str(tmp_path),
    ]
    assert call(["paper", "table-12", *flags, "--jobs", "0", "--table", "json"]) == 1
    said = capsys.readouterr().err
    assert "cub200: not there; orthocl data fetch cub200" in said
    assert "7 to make, 7 of them without their data" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table-22"], "table-2"),
        (["table-2", "--stream", "rotated-mnits"], "rotated-mnist"),
        (["table-11", "--scale", "small"], "Use --scale full"),
        (["authors-grid", "--scale", "small"], "Use --scale full"),
        (["table-3", "--seeds", "1"], "needs no runs"),
        (["table-2", "--out", "table.docx", "--dry-run"], "suffix"),
        (["keep", "--store", "nowhere-at-all"], "nothing to keep"),
    ],
)
def test_errors(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(["paper", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_table_has_no_figure(shelf, tmp_path, capsys):
    assert paper("table-1", shelf, "--no-run", "--out", str(tmp_path / "x.svg")) == 2
    assert "no figure" in capsys.readouterr().err


def test_keep_and_reproduction(shelf, tmp_path, monkeypatch, capsys):
    assert paper("table-1", shelf, "--table", "json") == 0
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert call(["paper", "keep", "--store", shelf]) == 0
    assert "copied to results" in capsys.readouterr().out
    assert call(["paper", "reproduction"]) == 0
    assert (tmp_path / "REPRODUCTION.md").read_text().startswith("# The paper's experiments")
    assert (tmp_path / "docs/figures/reproduction/authors-grid.svg").is_file()


def test_data_fetch_for_an_experiment(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('streams = ["rotated-mnist-mini"]\nmethods = ["sgd"]\n')
    assert call(["data", "fetch", "--for", str(file)]) == 0
    assert "mnist-mini: comes with the package" in capsys.readouterr().err
    assert call(["data", "fetch"]) == 2
    assert call(["data", "fetch", "mnist", "--for", str(file)]) == 2
