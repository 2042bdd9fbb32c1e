"""The short form of `make chaos`: a few disturbances of every store, in one process that imports torch once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(__file__).parent / "storm.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the storm forks")
@pytest.mark.parametrize(("methods", "seed"), [(["sgd", "ogd+"], 6)])
def test_whatever_happens_every_survivor_ends_in_the_identical_result(methods, seed):
    command = [sys.executable, str(STORM), "4", "--seed", str(seed), "--methods", *methods]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "All results are identical" in done.stdout
