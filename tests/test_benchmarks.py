"""Benchmarks are run by hand and rarely: what they import must still be there."""

import runpy
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_can_be_started(path: Path) -> None:
    assert callable(runpy.run_path(str(path), run_name="benchmark")["main"])
