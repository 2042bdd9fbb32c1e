from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

import orthocl
from orthocl.cli.app import GROUPS, call, make_app
from orthocl.errors import DataError

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_help_names_every_part(capsys):
    assert call(["--help"]) == 0
    text = capsys.readouterr().out
    for name in ("demo", "run", "runs", "report", "list", "data", "check"):
        assert f" {name} " in text


@pytest.mark.parametrize("name", GROUPS)
def test_every_part_has_help(name, capsys):
    try:
        make_app([name])[name]
    except KeyError:
        pytest.skip(f"no command {name}")
    assert call([name, "--help"]) == 0
    assert "Usage: orthocl " + name in capsys.readouterr().out


def test_version(capsys):
    from orthocl import __version__

    assert call(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_errors_come_without_a_traceback(capsys):
    assert call(["run", "--stream", "rotated-mnist-min", "--method", "sgd"]) == 2
    captured = capsys.readouterr()
    assert "did you mean 'rotated-mnist-mini'" in captured.err
    assert "Traceback" not in captured.err + captured.out


def test_debug_shows_the_traceback():
    from orthocl.errors import SettingsError

    with pytest.raises(SettingsError):
        call(["run", "--debug", "--stream", "rotated-mnist-min", "--method", "sgd"])


@pytest.mark.parametrize("arguments", [["rnu"], ["run", "--strem", "x"], ["run", "--jobs", "many"]])
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    assert call(arguments) == 2
    captured = capsys.readouterr()
    assert "Error" in captured.out + captured.err


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (DataError("gone"), 2), (SystemExit(3), 3)]
)
def test_exit_codes(monkeypatch, capsys, error, code):
    from orthocl.cli import list as listing

    def fail(*_):
        raise error

    monkeypatch.setattr(listing, "_show", fail)
    assert call(["list", "metrics"]) == code


def test_a_bug_is_not_hidden(monkeypatch):
    from orthocl.cli import list as listing

    monkeypatch.setattr(listing, "_show", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        call(["list", "metrics"])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("methods", ["ogd+", "memory_per_task = 100", "stable-sgd"]),
        ("streams", ["rotated-mnist-mini", "15 tasks"]),
        ("metrics", ["aac", "forgetting-since-learnt"]),
        ("nets", ["mlp", "lenet", "hidden"]),
    ],
)
def test_lists(kind, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert call(["list", kind]) == 0
    text = capsys.readouterr().out
    for word in words:
        assert word in text


def test_bytes_are_listed_to_be_read_and_to_be_pasted(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    assert call(["list", "methods"]) == 0
    assert "input_cache = 536870912 (537 MB)" in capsys.readouterr().out


def test_long_work_says_what_it_does_on_terminals_alone(monkeypatch):
    from orthocl.cli import options

    for terminal in (True, False):
        file = io.StringIO()
        monkeypatch.setattr(options, "Terminal", lambda **_: Console(file=file, force_terminal=terminal))  # noqa: B023
        with options.working("thinking"):
            pass
        assert ("thinking ..." in file.getvalue()) == terminal


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", str(EXAMPLES / "own_method.py")], "checking"),
        (["search", str(EXAMPLES.parent / "experiments" / "search_cub200.toml"), "--dry-run"], "reading"),
        (["plan", "mlp", "--input-shape", "1,4,4", "--tasks", "2"], "planning"),
        (["theory", "solve", "--tasks", "1", "--samples", "4", "--test-samples", "4"], "reading"),
    ],
)
def test_what_may_take_seconds_says_so(arguments, words, monkeypatch, capsys):
    said: list[str] = []
    monkeypatch.setattr(Console, "status", lambda self, text, **_: said.append(text) or nullcontext())
    assert call(arguments) == 0
    assert any(words in text for text in said)


def test_the_package_imports_torch_only_when_it_is_used():
    code = (
        "import sys, orthocl; assert 'torch' not in sys.modules; orthocl.OGD; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert all(getattr(orthocl, name) is not None for name in dir(orthocl))
    assert set(orthocl.__all__) < set(dir(orthocl))
    with pytest.raises(AttributeError, match="no attribute 'OGB'"):
        _ = orthocl.OGB


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent differently there")
@pytest.mark.parametrize("seconds", [0.3, 0.8])
def test_ctrl_c_while_torch_is_imported_leaves_no_traceback(seconds):
    command = [sys.executable, "-c", "from orthocl.cli.app import main; print(flush=True); main()", "list"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # the command has begun
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)
