"""The experiment files behind the items."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from orthocl.lab import RunSettings, load_experiment

Scale = Literal["full", "small"]


def experiment_folder(scale: Scale = "full") -> Path:
    """Where the experiment files are: next to this module in an installed package, otherwise in the source tree."""
    here = Path(__file__).parent / "experiments"
    folder = here if here.is_dir() else Path(__file__).parents[3] / "experiments"
    return folder if scale == "full" else folder / "small"


@lru_cache(maxsize=64)
def load_runs(
    path: Path, seeds: tuple[int, ...] = (), overrides: tuple[str, ...] = ()
) -> tuple[RunSettings, ...]:
    """The runs of an experiment file; several items share files."""
    return load_experiment(path, seeds=seeds, overrides=overrides).runs
