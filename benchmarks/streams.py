"""Opening the streams: time to the first batch, time of batches, and peak memory, each in a fresh process.

    python benchmarks/streams.py [--data-root FOLDER] [STREAM ...]

"open" is from `streams.make` (which reads and verifies the files) to the first batch of 32 in the network's hands;
"task" is all training samples of task 2 as one float tensor; "batch" is one batch of 32 by random index. Memory is the
peak of the process above that after the imports: at opening, and after making every task and reading a batch of each.
Its ratio to fifteen (or as many as there are tasks) float copies of the data says what views save. Streams whose data
is not here are left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from time import perf_counter

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from orthocl import streams
from orthocl.errors import DataError

BATCH, BATCHES = 32, 300


def peak() -> float:
    """Peak memory of this process, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure(name: str, data_root: str | None) -> dict[str, float]:
    torch.set_num_threads(1)
    before = peak()
    start = perf_counter()
    stream = streams.make(name, data_root=data_root)
    stream.task(1).train.samples(torch.arange(BATCH))
    opened = perf_counter() - start
    memory_open = peak() - before
    for task in stream:
        task.train.inputs(torch.arange(BATCH))
    memory_tasks = peak() - before
    second = stream.task(2).train
    order = torch.randperm(len(second), generator=torch.Generator().manual_seed(0))[: BATCH * BATCHES]
    batches = order.split(BATCH)
    start = perf_counter()
    for index in batches:
        second.inputs(index)
    batch = (perf_counter() - start) / len(batches)
    start = perf_counter()
    whole = second.inputs()
    task_seconds = perf_counter() - start
    copies = sum(len(task.train) + len(task.test) for task in stream) * whole[0].numel() * 4 / 1e6
    return {
        "open": opened,
        "task": task_seconds,
        "batch": batch,
        "memory_open": memory_open,
        "memory_tasks": memory_tasks,
        "copies": copies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("streams", nargs="*", default=list(streams.STREAMS))
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        try:
            print(json.dumps(measure(arguments.one, arguments.data_root)))
        except DataError as error:
            print(json.dumps({"error": str(error).splitlines()[0]}))
        return
    console = Console()
    table = Table(
        "stream",
        "open (s)",
        "task (s)",
        "batch (us)",
        "memory (MB): open",
        "all tasks",
        "float copies",
        "ratio",
    )
    absent = []
    for name in track(arguments.streams, "measuring", console=console, transient=True):
        command = [sys.executable, __file__, "--one", name]
        if arguments.data_root:
            command += ["--data-root", arguments.data_root]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        if "error" in row:
            absent.append(f"{name}: {row['error']}")
            continue
        table.add_row(
            name,
            f"{row['open']:.2f}",
            f"{row['task']:.2f}",
            f"{row['batch'] * 1e6:.0f}",
            f"{row['memory_open']:.0f}",
            f"{row['memory_tasks']:.0f}",
            f"{row['copies']:.0f}",
            f"{row['memory_tasks'] / row['copies']:.2f}",
        )
    console.print(table)
    for line in absent:
        console.print(f"left out: {line}", highlight=False)


if __name__ == "__main__":
    main()
