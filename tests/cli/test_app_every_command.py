"""Every command, by one table: --json is one object, --quiet has no remarks, the last remark says what is next."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cyclopts import App

from orthocl.cli.app import call, make_app
from orthocl.lab import Store, make_experiment, run_experiment

FEW = ("--set", "stream.tasks=2", "--set", "stream.train_size=20", "--set", "stream.test_size=20")
STREAM = ("--stream", "rotated-mnist-mini")
THEORY = ("--tasks", "2", "--samples", "8")
TRAINED = ("--tasks", "2", "--epochs", "1", "--train-size", "20")

EXPERIMENT = """
name = "tiny"
seeds = [1]
streams = ["rotated-mnist-mini"]
methods = ["sgd"]
stream = {tasks = 2, train_size = 20, test_size = 20}
"""
GRID = """
name = "grid"
seeds = [1]
streams = ["rotated-mnist-mini"]
stream = {tasks = 2, train_size = 20, test_size = 20}
[methods.ewc.grid]
"method.strength" = [1.0, 10.0]
"""
MODEL = """
import torch
def build():
    return torch.nn.Linear(4, 3)
"""

COMMANDS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "demo": (("--seed", "1", "--jobs", "1", *FEW, "--set", "train.epochs=1"), {"rows", "findings", "report"}),
    "run": (
        (*STREAM, "--method", "sgd", "--seed", "1", *FEW, "--jobs", "0"),
        {"rows", "findings", "failures"},
    ),
    "runs list": ((), {"rows"}),
    "runs doctor": ((), {"damaged", "good", "moved"}),
    "runs show": (("ID",), {"id", "settings", "result", "provenance"}),
    "runs compare": (("ID", "OTHER"), {"rows"}),
    "runs export": (("runs.csv",), {"records", "file"}),
    "runs rm": (("OTHER",), {"removed"}),
    "report": (("--out", "page.html"), {"runs", "report"}),
    "search": (("grid.toml", "--jobs", "1", "--store", "searched"), {"rows"}),
    "list methods": ((), {"rows"}),
    "list streams": ((), {"rows"}),
    "list metrics": ((), {"rows"}),
    "list nets": ((), {"rows"}),
    "data status": (("--data-root", "."), {"rows"}),
    "data fetch": (("--for", "experiment.toml"), {"fetched"}),
    "theory solve": ((*THEORY, "--test-samples", "8"), {"rows"}),
    "theory bound": ((*THEORY, "--test-samples", "8"), {"rows"}),
    "theory order": (THEORY, {"rows"}),
    "theory forecast": ((*TRAINED, "--seeds", "1"), {"rows"}),
    "theory overlay": ((*THEORY, "--widths", "8", "--steps", "5", "--test-samples", "8"), {"rows"}),
    "theory bridge": ((*TRAINED, "--samples", "8"), {"rows"}),
    "theory streams": (("experiment.toml", "--samples", "8", "--points", "0"), {"rows"}),
    "plan": (("mlp", "--input-shape", "1x4x4", "--tasks", "2", "--no-time"), {"choice", "verdict", "costs"}),
    "audit": (("model.py:build", "old.pt", "new.pt", "--samples", "samples.npz"), {"sentence", "probes"}),
    "check": (("method.py",), {"rows"}),
    "paper": ((), {"rows"}),
    "paper keep": (("--into", "kept"), {"copied", "into"}),
    "paper predictions": (("--scale", "small", "--store", "predicted"), {"predictions", "store"}),
    "paper reproduction": (("--out", "R.md", "--figures", "figures"), {"files"}),
}
ELSEWHERE = {"view": "test_view.py", "data prepare": "test_data.py"}
"""One serves until Ctrl-C, the other needs pictures of birds."""
WITH_STORE = ("run", "runs", "report", "paper keep", "paper reproduction", "theory streams")


def commands(app: App, path: tuple[str, ...] = ()) -> Iterator[str]:
    parts = [name for name in app if not name.startswith("-")]
    if not parts or app.default_command is not None:
        yield " ".join(path)
    for name in parts:
        yield from commands(app[name], (*path, name))


def test_the_table_is_complete():
    assert sorted(commands(make_app())) == sorted({*COMMANDS, *ELSEWHERE})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a store and all files that the commands ask for."""
    monkeypatch.chdir(tmp_path)
    content = {
        "name": "two",
        "seeds": [1],
        "stream": {"tasks": 2, "train_size": 20, "test_size": 20},
        "streams": ["rotated-mnist-mini"],
        "methods": ["sgd", "ewc"],
    }
    pairs = run_experiment(make_experiment(content), Store(tmp_path / "store"), jobs=0).pairs
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "method.py").write_text("from orthocl import SGD\nclass Mine(SGD):\n    name = 'mine'\n")
    for name in ("old", "new"):
        torch.save(torch.nn.Linear(4, 3).state_dict(), tmp_path / f"{name}.pt")
    np.savez(tmp_path / "samples.npz", inputs=np.ones((5, 4), "float32"), targets=np.zeros(5, "int64"))
    return {"ID": pairs[0][1].id, "OTHER": pairs[1][1].id}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("switch", ["", "--json", "--quiet"])
def test_manners(command, switch, place, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    arguments, names = COMMANDS[command]
    line = [*command.split(), *(place.get(word, word) for word in arguments)]
    if command.startswith(WITH_STORE):
        line += ["--store", "store"]
    assert call([*line, switch] if switch else line) == 0
    captured = capsys.readouterr()
    if switch:
        assert captured.err == ""
    else:
        assert captured.err.splitlines()[-1].startswith("next: ")
        assert "…" not in captured.out, "nothing is cut off on a narrow terminal"
    if switch == "--json":
        assert names <= set(json.loads(captured.out))
