from __future__ import annotations

import json

import pytest
import torch
from cyclopts import CycloptsError

from orthocl.cli.theory import app
from orthocl.errors import SettingsError
from orthocl.lab.experiment.experiment import load_experiment
from orthocl.lab.run.execute import make_stream

SMALL = ["--tasks", "2", "--samples", "12", "--test-samples", "20"]


def run(capsys, *arguments):
    app([*arguments, "--json"], result_action="return_value")
    return json.loads(capsys.readouterr().out)


def test_solve(capsys, tmp_path):
    figure = tmp_path / "not" / "there" / "solve.svg"
    found = run(capsys, "solve", *SMALL, "--figure", str(figure))
    assert [row["task"] for row in found["rows"]] == [1, 2]
    assert found["rows"][0]["kept"] < 1e-9
    assert abs(found["gradient_alignment"][0]["projected"]) < 1e-9
    assert figure.read_text().startswith("<?xml")
    other = run(
        capsys,
        "solve",
        *SMALL,
        "--rule",
        "sgd",
        "--target",
        "one-hot",
        "--kernel",
        "empirical",
        "--width",
        "8",
    )
    assert other["rows"][0]["kept"] is None
    assert other["rows"][0]["others"] > 1e-3


@pytest.mark.parametrize("form", ["sound", "one-ball", "pac-bayes", "hold-out", "printed"])
def test_bound(capsys, tmp_path, form):
    found = run(capsys, "bound", *SMALL, "--form", form, "--figure", str(tmp_path / "bound.pdf"))
    names = ("empirical", "regularisation", "complexity", "confidence", "divergence", "held-out error")
    for row in found["rows"]:
        assert row["bound"] == pytest.approx(sum(row[name] for name in names if name in row))
    assert len(found["checks"]) == (6 if form == "printed" else 0)
    assert (tmp_path / "bound.pdf").stat().st_size > 1000


def test_all_bounds_and_the_smallest(capsys, tmp_path):
    found = run(capsys, "bound", *SMALL, "--held-out", "0.25", "--figure", str(tmp_path / "bound.svg"))
    for row in found["rows"]:
        own = {form: row[form] for form in ("sound", "one-ball", "hold-out")}
        own["pac-bayes"] = 2 * row["pac-bayes_of_a_draw"]
        assert row["of_f_itself"] == min(own.values()) == own[row["by"]]
    assert len(found["sentences"]) == 2
    assert (tmp_path / "bound.svg").exists()
    one_hot = run(capsys, "bound", *SMALL, "--target", "one-hot")
    assert "pac-bayes" not in one_hot["rows"][0]
    app(["bound", *SMALL, "--target", "one-hot", "--form", "sound"], result_action="return_value")
    assert "at least half the error" in capsys.readouterr().out
    app(["bound", *SMALL], result_action="return_value")
    text = capsys.readouterr().out
    assert text.count("with probability 95 % over the samples") + text.count("nothing is certified") == 2
    with pytest.raises(SettingsError, match="no earlier task uses"):
        app(["bound", "--tasks", "4", "--samples", "2000"], result_action="return_value")
    with pytest.raises(SettingsError, match="share of held-out"):
        app(["bound", *SMALL, "--held-out", "1.5"], result_action="return_value")


def test_order(capsys, tmp_path):
    found = run(capsys, "order", "--tasks", "4", "--samples", "8", "--figure", str(tmp_path / "order.png"))
    best, *others = found["rows"]
    assert best["exact"]
    assert all(row["R_T"] >= best["R_T"] * (1 - 1e-9) for row in others)
    assert found["AABB"] == pytest.approx(found["ABAB"])
    assert len(found["dissimilarity"]) == 5


def test_overlay(capsys, tmp_path):
    figure = tmp_path / "overlay.svg"
    found = run(capsys, "overlay", *SMALL, "--widths", "16", "64", "--steps", "20", "--figure", str(figure))
    assert [row["width"] for row in found["rows"]] == [16, 64]
    assert figure.exists()


def test_bridge(capsys, tmp_path):
    figure = tmp_path / "bridge.svg"
    found = run(
        capsys,
        "bridge",
        "--tasks",
        "3",
        "--train-size",
        "40",
        "--samples",
        "20",
        "--epochs",
        "2",
        "--figure",
        str(figure),
    )
    assert len(found["pairs"]) == 3
    assert figure.exists()


def test_bridge_refuses_a_senseless_ridge():
    for ridge in ("nan", "-1"):
        with pytest.raises(SettingsError, match="expected a ridge"):
            app(
                ["bridge", "--tasks", "2", "--train-size", "20", "--ridge", ridge],
                result_action="return_value",
            )


def test_forecast(capsys, tmp_path):
    figure = tmp_path / "forecast.svg"
    small = ["--tasks", "4", "--train-size", "24", "--epochs", "4", "--step", "40"]
    found = run(capsys, "forecast", *small, "--seeds", "2", "--figure", str(figure))
    assert [row["task"] for row in found["rows"]] == [2, 3, 4]
    assert set(found["rows"][0]) == {"task", "sgd", "ogd", "ogd+", "gpm", "measured"}
    assert [len(pairs) for pairs in found["pairs"]] == [6, 6]
    assert found["change:_forecast"]["seeds"] == 2
    assert -1 <= found["change:_forecast_given_lag"]["mean"] <= 1
    assert figure.exists()
    one = run(capsys, "forecast", *small, "--seeds", "1", "--rules", "sgd", "--test")
    assert set(one["rows"][0]) == {"task", "sgd", "measured"}
    with pytest.raises(SettingsError, match="two tasks"):
        app(["forecast", "--tasks", "1"], result_action="return_value")


def test_pictures_of_overlap_and_drift(tmp_path):
    from orthocl.theory import TangentDrift, figures

    table = torch.tensor([[1.0, 0.3], [0.3, 1.0]])
    nan = float("nan")
    drift = TangentDrift(torch.tensor([[1.0, 0.9], [nan, 1.0]]), torch.ones(2, 2))
    for name, picture in (
        ("one.svg", figures.overlap_figure(table)),
        ("two.pdf", figures.overlap_figure(table, drift)),
    ):
        figures.save(picture, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_tables_fit_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    app(["solve", *SMALL], result_action="return_value")
    app(["bound", *SMALL, "--form", "printed"], result_action="return_value")
    app(["bound", *SMALL, "--form", "printed", "--rule", "sgd"], result_action="return_value")
    text = capsys.readouterr().out
    assert "…" not in text
    assert "proxy R_T" in text
    assert text.count("Proposition 1: OGD's first step P g on task 2") == 1, "solve alone, and only with OGD"
    assert max(len(line) for line in text.splitlines() if not line.startswith("fails")) <= 80


def test_mistakes_come_before_the_work(tmp_path):
    with pytest.raises(SettingsError, match="figure format"):
        app(["solve", "--figure", str(tmp_path / "x.gif")], result_action="return_value")
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot create the folder"):
        app(["order", "--figure", str(tmp_path / "file" / "x.svg")], result_action="return_value")
    with pytest.raises(SettingsError, match="one output"):
        app(["overlay", "--target", "one-hot"], result_action="return_value")
    with pytest.raises(SettingsError, match="one step"):
        app(["overlay", "--steps", "0"], result_action="return_value")
    with pytest.raises(SettingsError, match="no task has a class 11"):
        app(["solve", *SMALL, "--target", "11"], result_action="return_value")
    with pytest.raises(SettingsError, match="too many to try all"):
        app(
            ["order", "--tasks", "10", "--samples", "2", "--search", "exhaustive"],
            result_action="return_value",
        )


@pytest.mark.parametrize(
    "arguments", [["overlay", "--kernel", "empirical"], ["order", "--test-samples", "9"]]
)
def test_options_that_would_do_nothing_are_refused(arguments):
    with pytest.raises(CycloptsError):
        app(arguments, result_action="return_value", exit_on_error=False, print_error=False)


def test_where_a_figure_went_is_said_beside_the_json(capsys, tmp_path):
    app(
        ["order", "--tasks", "2", "--samples", "5", "--json", "--figure", str(tmp_path / "o.svg")],
        result_action="return_value",
    )
    captured = capsys.readouterr()
    assert "rows" in json.loads(captured.out)
    assert "o.svg" in captured.err


def test_solve_shows_proposition_1_in_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    app(["solve", "--tasks", "3", "--samples", "12", "--test-samples", "20"], result_action="return_value")
    text = capsys.readouterr().out
    _, _, table = text.partition("Proposition 1")
    header, first, second = [line for line in table.splitlines()[1:] if line.strip(" ─")][:3]
    assert header.split()[0] == "task"
    assert "cos(h, P g)" in header
    found = run(capsys, "solve", "--tasks", "3", "--samples", "12", "--test-samples", "20")
    for line, wanted in zip((first, second), found["gradient_alignment"], strict=True):
        task, norm, plain, projected, steps = map(float, line.split())
        assert task == wanted["task"]
        assert norm == pytest.approx(wanted["memory_gradient"], rel=1e-2)
        assert plain == pytest.approx(wanted["plain"], rel=1e-2)
        assert projected == pytest.approx(0.0, abs=1e-9)
        assert steps == pytest.approx(wanted["steps"], rel=1e-2)
    app(["solve", "--tasks", "2", "--samples", "9", "--rule", "sgd"], result_action="return_value")
    assert "Proposition" not in capsys.readouterr().out


def test_streams_keeps_what_the_report_page_shows(capsys, tmp_path):
    file = tmp_path / "two.toml"
    file.write_text(
        """
methods = ["sgd", "ogd"]
net = { name = "mlp", hidden = [8] }
[stream]
tasks = 2
train_size = 40
test_size = 20
[streams.turned]
stream = "rotated-mnist-mini"
[streams.parts]
stream = "split-mnist-mini"
"""
    )
    store = tmp_path / "store"
    app(
        ["streams", str(file), "--store", str(store), "--samples", "10", "--points", "40", "--json"],
        result_action="return_value",
    )
    captured = capsys.readouterr()
    rows = json.loads(captured.out)["rows"]
    assert [(row["stream"], row["task"]) for row in rows] == [
        ("turned", 1),
        ("turned", 2),
        ("parts", 1),
        ("parts", 2),
    ]
    assert "no bounds for parts" in captured.err
    kept = {each["stream"]: each for each in json.loads((store / "theory.json").read_text())["streams"]}
    assert len(kept["turned"]["bounds"]["ogd"]) == 2
    assert kept["parts"]["bounds"] == {}
    settings = load_experiment(file).runs[0].resolved().stream
    assert kept["turned"]["fingerprint"] == make_stream(settings).fingerprint
