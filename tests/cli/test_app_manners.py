"""What every command has in common: help without torch, --json, --quiet, a next step."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from orthocl.cli.app import GROUPS, call, make_app
from orthocl.cli.help_only import asks_for_help

COMMANDS = [
    "",
    *GROUPS,
    "runs list",
    "runs compare",
    "data fetch",
    "theory solve",
    "theory forecast",
    "list nets",
]
HELP = """
import sys
from contextlib import redirect_stdout
from io import StringIO
sys.argv = ["orthocl", "--help"]
from orthocl.cli.app import call
for line in {commands!r}:
    with redirect_stdout(StringIO()) as text:
        assert call([*line.split(), "--help"]) == 0, line
    assert "Usage: orthocl" in text.getvalue(), line
    assert "torch" not in sys.modules, line
print("fine")
"""


def test_help_of_every_command_comes_without_torch():
    done = subprocess.run(
        [sys.executable, "-c", HELP.format(commands=COMMANDS)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "orthocl", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0
    assert "Usage: orthocl" in done.stdout
    assert "| torch\n" not in done.stderr


@pytest.mark.parametrize(
    ("line", "only_help"),
    [
        (["orthocl", "run", "-h"], True),
        (["C:/bin/orthocl.exe", "--help"], True),
        (["orthocl", "check", "--", "--help"], False),
        (["other/__main__.py", "--help"], False),
        ([], False),
    ],
)
def test_only_a_line_that_asks_for_help_is_help(line, only_help):
    assert asks_for_help(line) is only_help


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["list", "metrics"], {"rows"}),
        (["data", "status"], {"rows"}),
        (["paper"], {"rows"}),
        (
            ["plan", "mlp", "--input-shape", "4x4", "--tasks", "2", "--no-time"],
            {"choice", "verdict", "costs"},
        ),
        (["theory", "solve", "--tasks", "2", "--samples", "8", "--test-samples", "8"], {"rows", "rule"}),
        (["runs", "list", "--store", "nothing"], {"rows"}),
    ],
)
def test_json_is_one_object_and_nothing_else(arguments, names, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in (["--json", *arguments], [*arguments, "--json"]):
        assert call(line) == 0
        captured = capsys.readouterr()
        assert names <= set(json.loads(captured.out))
        assert captured.err == ""


def test_json_of_a_run_has_every_seed(tmp_path, capsys):
    few = ["--set", "stream.tasks=2", "--set", "stream.train_size=20", "--set", "stream.test_size=20"]
    line = ["run", "--stream", "rotated-mnist-mini", "--method", "sgd", "--seed", "1", "--seed", "2", *few]
    line += ["--jobs", "0", "--store", str(tmp_path)]
    assert call([*line, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["failures"] == []
    assert found["rows"][0]["seeds"] == [1, 2]
    assert call([*line, "--quiet"]) == 0
    captured = capsys.readouterr()
    assert "rotated-mnist-mini" in captured.out
    assert captured.err == ""
    assert call(line) == 0
    assert "next: orthocl report" in capsys.readouterr().err
    assert call(["runs", "list", "--json", "--store", str(tmp_path)]) == 0
    assert [row["seed"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["1", "2"]


def test_quiet_keeps_the_result_and_errors(capsys):
    assert call(["list", "metrics", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert "aac" in captured.out
    assert captured.err == ""
    assert call(["list", "metrics"]) == 0
    assert "next: orthocl run" in capsys.readouterr().err
    assert call(["run", "--stream", "x", "--method", "sgd", "--quiet"]) == 2
    assert "unknown stream" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell):
    text = make_app(["list", "plan"]).generate_completion(shell=shell)
    assert "--input-shape" in text
    assert "methods" in text
