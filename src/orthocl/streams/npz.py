"""Streams in one .npz file: x_train_1, y_train_1, x_test_1, y_test_1, then the same for task 2 and so on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orthocl.errors import DataError, SettingsError
from orthocl.storage import output_file
from orthocl.streams.arrays import ArrayStream, Heads, from_arrays
from orthocl.streams.base import TaskKind, check_numbers
from orthocl.streams.checks import Array
from orthocl.streams.datasets.npz import read_npz

PARTS = ("x_train", "y_train", "x_test", "y_test")
MOST_BYTES = 8 << 30


def from_npz(
    arrays: str | Path,
    *,
    tasks: int | None = None,
    heads: Heads = "shared",
    kind: TaskKind | None = None,
    outputs: int | None = None,
) -> ArrayStream:
    """A stream of arrays from a file, as `save_npz` (or `numpy.savez`) writes it.

    Args:
        arrays: the file, with the arrays x_train_1, y_train_1, x_test_1, y_test_1, x_train_2, ...
        tasks: use only this many tasks, from the first.
        heads: "shared" (all tasks have the same outputs) or "per-task" (each its own head).
        kind: "classification" or "regression"; by default decided by the targets.
        outputs: number of classes or of regression outputs; by default counted.

    Raises:
        DataError: when arrays are missing, damaged, or cannot be trained on.
    """
    check_numbers(tasks=tasks)
    path = Path(arrays).expanduser()
    if not path.is_file():
        raise DataError(
            f"no such file: {path}: write it with orthocl.streams.save_npz(path, [(x, y, x_test, y_test), ...])"
        )
    found = read_npz(path, most_bytes=MOST_BYTES)
    pattern = re.compile(rf"({'|'.join(PARTS)})_([1-9][0-9]{{0,11}})")
    odd = [name for name in found if not pattern.fullmatch(name)]
    if odd or not found:
        raise DataError(
            f"{path} holds {', '.join(odd[:5]) or 'nothing'}: expected arrays x_train_1, y_train_1, x_test_1, "
            "y_test_1, x_train_2, ..."
        )
    count = max(int(name.rpartition("_")[2]) for name in found)
    wanted = (
        f"{part}_{t}" for t in range(1, count + 1) for part in PARTS
    )  # no list: names can be any number
    missing = next((name for name in wanted if name not in found), None)
    if missing is not None:
        raise DataError(f"{path} has no array {missing}, though it has arrays of task {count}")
    if tasks is not None and not 1 <= tasks <= count:
        raise SettingsError(f"{path.name} holds {count} tasks: tasks must be from 1 to {count}, got {tasks}")
    chosen = [tuple(np.array(found[f"{part}_{t}"]) for part in PARTS) for t in range(1, (tasks or count) + 1)]
    return from_arrays(chosen, heads=heads, kind=kind, outputs=outputs, name=path.stem)  # type: ignore[arg-type]


def save_npz(path: str | Path, tasks: Sequence[tuple[Array, Array, Array, Array]]) -> None:
    """Write (x_train, y_train, x_test, y_test) of each task to a file that an experiment can name."""
    content: dict[str, Any] = {}
    for number, arrays in enumerate(tasks, 1):
        if len(arrays) != len(PARTS):
            raise DataError(f"task {number}: expected (x_train, y_train, x_test, y_test)")
        content |= {f"{part}_{number}": np.asarray(a) for part, a in zip(PARTS, arrays, strict=True)}
    with open(output_file(path), "wb") as file:
        np.savez(file, **content)
