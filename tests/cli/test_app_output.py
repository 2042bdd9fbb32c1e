"""Output that cannot be written: a reader that has seen enough is no failure, a full disk is one, in words."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from orthocl.cli import app
from orthocl.cli import list as listing
from orthocl.cli.app import call
from orthocl.cli.output import Terminal


def failing(error):
    def show(*_):
        raise error

    return show


def test_a_broken_pipe_that_rich_has_noticed_is_no_failure(monkeypatch):
    def show(*_):
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904  # as rich does

    monkeypatch.setattr(listing, "_show", show)
    assert app.call(["list", "metrics"]) == 0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "secret"), "Permission denied: secret"),
        (MemoryError(), "not enough memory"),
        (RecursionError(), "nested too deeply"),
    ],
)
def test_errors_of_the_system_are_said_without_a_traceback(monkeypatch, capsys, error, words):
    monkeypatch.setattr(listing, "_show", failing(error))
    assert app.call(["list", "metrics"]) == 2
    assert words in capsys.readouterr().err
    with pytest.raises(type(error)):
        app.call(["list", "metrics", "--debug"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_output_and_a_closed_pipe():
    """Both in one process each, because Python itself writes the rest of the output when it ends."""
    command = [sys.executable, "-m", "orthocl", "--version"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    line = f'set -o pipefail; "{sys.executable}" -m orthocl list metrics | head -c 1'
    assert subprocess.run(["bash", "-c", line], capture_output=True, check=False).returncode == 0


def test_no_name_or_path_steers_the_terminal(capsys):
    for line in (
        ["runs", "list", "--store", "x\x1b[31m"],
        ["run", "\x9b31m.toml"],
        ["run", "--seed", "\x1b]0;a\x07"],
    ):
        call(line)
        captured = capsys.readouterr()
        assert not set("\x1b\x9b\x07") & set(captured.out + captured.err)


def test_colours_remain(capsys):
    Terminal(force_terminal=True, color_system="standard").print("[red]a[/]\x1bb", highlight=False)
    assert capsys.readouterr().out == "\x1b[31ma\x1b[0m\ufffdb\n"
