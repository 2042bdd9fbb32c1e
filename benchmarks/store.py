"""How the time to list a store grows with the number of its runs: with an index, and without one.

    python benchmarks/store.py              # 1,000 and 10,000 runs
    python benchmarks/store.py 100000       # instead of 10,000

Prints seconds and, because machines differ, ratios: the time per run in the large store against the small one, and the
time with an index against the time to read every record.
"""

import contextlib
import io
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from orthocl.cli.app import call
from orthocl.lab import MethodSettings, Record, Result, RunSettings, Store, StreamSettings
from orthocl.lab.experiment.settings import identity

SMALL = 1_000


def fill(directory: Path, count: int) -> Store:
    """A store with this many records, of fifteen tasks each."""
    tasks = 15
    settings = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("ogd")).resolved()
    rows = [[0.5 + 0.01 * column for column in range(tasks)] for _ in range(tasks + 1)]
    monitors = [{"memory_bytes": 8.0, "kept": 1.0} for _ in range(tasks)]
    result = Result(rows, [{1: 1.0}] * tasks, [], monitors, [[0.1] * 5] * tasks, 7, [1000] * tasks)
    stream = {"name": "s", "fingerprint": "f", "settings": {}, "tasks": [f"task {n}" for n in range(tasks)]}
    store = Store(directory)
    for seed in range(count):
        seeded = replace(settings, seed=seed)
        run = identity(seeded, "f")
        record = Record(run, seeded, stream, result=result, provenance={"seconds": {"total": 3.0}})
        folder = store.folder(run)
        os.makedirs(folder)
        (folder / "record.json").write_text(record.to_json())  # not through the store: no flush to the disk
    return store


def seconds(store: Store) -> float:
    """Time of `orthocl runs list`, without the start of Python."""
    out = io.StringIO()
    clock = time.perf_counter()
    with contextlib.redirect_stdout(out):
        assert call(["runs", "list", "--store", str(store.directory)]) == 0
    took = time.perf_counter() - clock
    assert out.getvalue().count("finished") == len(store.ids())
    return took


def main(large: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        times = {}
        for count in (SMALL, large):
            store = fill(Path(folder) / str(count), count)
            times[count] = seconds(store), min(seconds(store) for _ in range(3))
            print(f"{count:>7,} runs: {times[count][0]:.2f} s without index, {times[count][1]:.2f} s with it")
        (small, small_warm), (cold, warm) = times[SMALL], times[large]
        print(
            f"time per run, large against small store: {warm / large / (small_warm / SMALL):.2f} with index"
        )
        print(f"time per run, large against small store: {cold / large / (small / SMALL):.2f} without")
        print(f"without index against with it: {cold / warm:.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
