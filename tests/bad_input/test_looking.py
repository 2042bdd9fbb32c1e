"""Commands that seem only to look run no program that an experiment file names, unless they are told to."""

from __future__ import annotations

import pytest

from orthocl.cli.app import call

PART = """
from pathlib import Path
Path("ran").touch()
def build(*arguments, **settings): Path("ran").touch()
"""
PLACES = {
    "net": '{both}[net]\nname = "{spec}"\n',
    "loss": '{both}[train]\nloss = "{spec}"\n',
    "method": 'streams = ["rotated-mnist-mini"]\nmethods = ["{spec}"]\n',
    "method by label": 'streams = ["rotated-mnist-mini"]\n[methods.own]\nmethod = "{spec}"\n',
    "stream": 'streams = ["{spec}"]\nmethods = ["sgd"]\n',
    "stream by key": 'methods = ["sgd"]\n[streams."{spec}"]\n',
    "data set": 'methods = ["sgd"]\n[streams.permuted]\ndata = "{spec}"\n',
    "net of a pair": 'methods = ["sgd"]\n[streams.rotated-mnist-mini.methods.sgd]\nnet.name = "{spec}"\n',
    "grid": '{both}[grid]\nnet.name = ["mlp", "{spec}"]\n',
    "included": 'include = "below.toml"\n',
}
COMMANDS = {
    "run": ["run", "x.toml", "--dry-run"],
    "search": ["search", "x.toml", "--dry-run"],
    "report": ["report", "x.toml"],
    "view": ["view", "x.toml"],
    "data": ["data", "fetch", "--for", "x.toml"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    (tmp_path / "part.py").write_text(PART)
    return tmp_path


def write(folder, place, spec):
    text = PLACES[place].format(both='streams = ["rotated-mnist-mini"]\nmethods = ["sgd"]\n', spec=spec)
    (folder / "below.toml").write_text(PLACES["method"].format(spec=spec))
    (folder / "x.toml").write_text(text)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("spec", ["part.py:build", "part.py", "os:mkdir", "part:build"])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_runs_before_it_is_allowed(folder, capsys, place, spec, command):
    write(folder, place, spec)
    assert call(COMMANDS[command]) == 2
    error = capsys.readouterr().err
    assert spec in error
    assert "if that is meant, say --yes" in error
    assert not (folder / "ran").exists()


def test_the_file_is_run_when_that_is_meant(folder, capsys):
    write(folder, "net", "part.py:build")
    assert call([*COMMANDS["run"], "--yes"]) == 0
    assert (folder / "ran").exists()
    assert "returned a NoneType, not a torch module" in capsys.readouterr().out


def test_nobody_is_asked_about_parts_that_are_built_in(folder, capsys):
    (folder / "x.toml").write_text(
        'name = "a: b"\ndescription = "see x.py"\nstreams = ["rotated-mnist-mini"]\nmethods = ["sgd", "ogd+"]\n'
        "stream.train_size = 20\nstream.tasks = 2\n"
    )
    assert call(COMMANDS["search"]) == 0
    assert "2 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ('net.name = "own.py:fails"', "KeyError: 'x'"),
        ('net.name = "own.py:flat"', "Error"),
        ('train.loss = "own.py:loss"', "ZeroDivisionError"),
        ('train.loss = "own.py:text"', "AttributeError"),
    ],
)
def test_a_part_that_fails_is_a_note_of_the_dry_run(folder, capsys, part, words):
    (folder / "own.py").write_text(
        "import torch\n"
        "def fails(outputs): raise KeyError('x')\n"
        "def flat(outputs): return torch.nn.Linear(3, outputs)\n"
        "def loss(outputs, targets): return 1 / 0\n"
        "def text(outputs, targets): return 'a'\n"
    )
    (folder / "x.toml").write_text(
        f'streams = ["rotated-mnist-mini"]\nmethods = ["sgd"]\nstream.train_size = 20\n{part}\n'
    )
    assert call([*COMMANDS["run"], "--yes"]) == 0
    assert words in capsys.readouterr().out
