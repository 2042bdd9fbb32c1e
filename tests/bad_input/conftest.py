"""What every case of bad input must show: the expected exit code, the words that help, and nothing half done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from orthocl.cli.app import call


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str], Sequence[str]], None]:
    """Run a command line in an empty folder: it must end with exit code 2, without a traceback, and leave no run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("ORTHOCL_STORE", raising=False)

    def check(arguments: Sequence[str], words: Sequence[str]) -> None:
        code = call(list(arguments))
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert code == 2, text
        assert "Traceback" not in text
        for word in words:
            assert word in text
        runs = [path for path in tmp_path.rglob("runs") if path.is_dir()]
        assert not any(list(folder.iterdir()) for folder in runs), "nothing half done"

    return check
