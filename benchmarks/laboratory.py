"""Overhead of the laboratory over the bare training loop, as a ratio in one run.

    python benchmarks/laboratory.py [--seconds 60] [--method ogd+]

The same run is made by the bare loop (`training.train_member`), by `lab.execute` (store, claim with heartbeat,
checkpoints, progress file, record) and by `lab.run_experiment` (a process of its own as well, which has to import torch
first), in rounds; the shortest of each counts, because whatever else the machine does only adds. The claim: at most 5 %
on a run of about a minute.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch

from orthocl.lab import Experiment, RunOptions, RunSettings, Store, execute
from orthocl.lab.laboratory import ignore, run_experiment
from orthocl.lab.run import build_learner, make_stream
from orthocl.training.together import Member, train_member

OPTIONS = RunOptions(threads=1, checkpoint_seconds=10.0)


def settings(method: str, epochs: int) -> RunSettings:
    return RunSettings.from_dict(
        {
            "stream": {"name": "rotated-mnist-mini", "tasks": 5},
            "method": {"name": method},
            "train": {"epochs": epochs, "learning_rate": 0.005},
            "seed": 1,
        }
    ).resolved()


def bare(run: RunSettings) -> float:
    stream = make_stream(run.stream)
    progress = train_member(Member(build_learner(run, stream), stream, run.seed), run.train)
    return progress.accuracies[-1][0]


def in_process(run: RunSettings) -> float:
    with tempfile.TemporaryDirectory() as directory:
        return execute(run, Store(directory), options=OPTIONS).result.accuracies[-1][0]


def own_process(run: RunSettings) -> float:
    with tempfile.TemporaryDirectory() as directory:
        results = run_experiment(
            Experiment("one", (run,)), Store(directory), jobs=1, options=OPTIONS, on_event=ignore
        )
        return results.pairs[0][1].result.accuracies[-1][0]


def measure(work: Callable[[RunSettings], float], run: RunSettings) -> tuple[float, float, float]:
    """Clock time, processor time of this process and its children, and the result."""
    clock, processor = time.perf_counter(), _processor()
    result = work(run)
    return time.perf_counter() - clock, _processor() - processor, result


def _processor() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def interleaved(method: str, triples: int) -> None:
    """Bare, laboratory, bare, again and again: the time around the training, and the ratio of the training itself."""
    run = replace(settings(method, 1), train=replace(settings(method, 1).train, epochs=13))
    around, ratios = [], []
    for _ in range(triples):
        before, ours, after = _parts(_bare_parts, run), _parts(_own_parts, run), _parts(_bare_parts, run)
        around.append(ours[0] - (before[0] + after[0]) / 2)
        ratios.append(2 * ours[1] / (before[1] + after[1]))
    start, ratio = median(around), median(ratios)
    print(
        f"{start:.2f} s around the training, training itself {ratio:.3f} x: {start / 60 + ratio:.3f} x on a minute"
    )


def _parts(work: Callable[[RunSettings], dict[str, float]], run: RunSettings) -> tuple[float, float]:
    clock = time.perf_counter()
    seconds = work(run)
    inside = sum(seconds[name] for name in ("train", "remember", "evaluate"))
    return time.perf_counter() - clock - inside, inside


def _bare_parts(run: RunSettings) -> dict[str, float]:
    stream = make_stream(run.stream)
    return train_member(Member(build_learner(run, stream), stream, run.seed), run.train).seconds


def _own_parts(run: RunSettings) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        results = run_experiment(
            Experiment("one", (run,)), Store(directory), jobs=1, options=OPTIONS, on_event=ignore
        )
        return results.pairs[0][1].provenance["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long a run takes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--method", default="sgd")
    parser.add_argument(
        "--interleaved", type=int, metavar="TRIPLES", help="short runs in turn: for noisy machines"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.interleaved:
        interleaved(arguments.method, arguments.interleaved)
        return
    run = settings(arguments.method, 1)
    measure(bare, run)  # warm up
    short, _, _ = measure(bare, run)
    longer, _, _ = measure(bare, settings(arguments.method, 11))
    epochs = max(1, round((arguments.seconds - short) / (longer - short) * 10))
    run = replace(run, train=replace(run.train, epochs=epochs))
    print(f"{arguments.method}, 5 tasks, {run.train.epochs} epochs each, one thread, checkpoint every 10 s")
    kinds = {"bare loop": bare, "lab.execute": in_process, "lab.run_experiment": own_process}
    best = {name: [math.inf, math.inf] for name in kinds}
    results = set()
    for name in [*kinds] * arguments.rounds:
        *times, result = measure(kinds[name], run)
        best[name] = [min(old, new) for old, new in zip(best[name], times, strict=True)]
        results.add(result)
    for name, (clock, processor) in best.items():
        ratios = clock / best["bare loop"][0], processor / best["bare loop"][1]
        print(
            f"{name:20} {clock:7.2f} s on the clock ({ratios[0]:.3f} x)   "
            f"{processor:7.2f} s of processor ({ratios[1]:.3f} x)"
        )
    print("all results equal" if len(results) == 1 else f"results differ: {results}")


if __name__ == "__main__":
    main()
