"""Overhead of the laboratory over the bare training loop, as ratios in one run.

    python benchmarks/laboratory.py [--seconds 60] [--rounds 5] [--method ogd+]

The same run of about a minute is done by three processes, each timed from its start to its end: a script with the bare
loop (`training.train`), the command `orthocl run`, and a script that calls `lab.run_experiment`. Both import
torch once more, for the process of the run. They take turns, and each run of the laboratory is divided by the
mean of the bare ones before and after it, because the speed of a machine that does other things as well varies.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev

BARE = """
import sys
from orthocl.lab.experiment.experiment import make_experiment
from orthocl.lab.run.execute import build_learner, make_stream
from orthocl.training import train

(run,) = make_experiment({"streams": [sys.argv[1]], "methods": [sys.argv[2]]}, overrides=sys.argv[4:]).runs
run = run.resolved()
stream = make_stream(run.stream)
print(train(build_learner(run, stream), stream, run.train, seed=run.seed).accuracies[-1])
"""
SCRIPT = """
import sys
from orthocl.lab import make_experiment, run_experiment

experiment = make_experiment({"streams": [sys.argv[1]], "methods": [sys.argv[2]]}, overrides=sys.argv[4:])
run_experiment(experiment, sys.argv[3])
"""
READ = """
import sys
from orthocl.lab import Store

(record,) = Store(sys.argv[1]).records()
print(record.result.accuracies[-1])
"""
STREAM, TASKS = "rotated-mnist-mini", 5
KINDS = ("bare loop", "orthocl run", "run_experiment")


def command(kind: str, method: str, epochs: int, store: str) -> list[str]:
    changes = [f"train.epochs={epochs}", "train.learning_rate=0.005", f"stream.tasks={TASKS}"]
    if kind == "orthocl run":
        flags = ["--stream", STREAM, "--method", method, "--jobs", "1", "--store", store]
        changes = [part for change in changes for part in ("--set", change)]
        program = Path(sys.executable).with_name("orthocl")
        return [str(program), "run", *flags, *changes]
    code = BARE if kind == "bare loop" else SCRIPT
    return [sys.executable, "-c", code, STREAM, method, store, *changes]


def measure(kind: str, method: str, epochs: int) -> tuple[float, str]:
    """Seconds of the whole process, and the final accuracies."""
    with tempfile.TemporaryDirectory() as store:
        clock = time.perf_counter()
        output = _call(command(kind, method, epochs, store))
        seconds = time.perf_counter() - clock
        return seconds, output if kind == "bare loop" else _call([sys.executable, "-c", READ, store])


def _call(parts: list[str]) -> str:
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    made = subprocess.run(parts, env=variables, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return made.stdout.decode()


def compare(method: str, seconds: float, rounds: int) -> None:
    short, _ = measure("bare loop", method, 1)
    longer, _ = measure("bare loop", method, 11)
    epochs = max(1, round(1 + (seconds - short) / (longer - short) * 10))
    print(f"{method}, {TASKS} tasks, {epochs} epochs each, one thread", flush=True)
    before, first = measure("bare loop", method, epochs)
    results = {first}
    bare = [before]
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS[1:]}
    for kind in [*ratios] * rounds:
        spent, result = measure(kind, method, epochs)
        after, again = measure("bare loop", method, epochs)
        ratios[kind].append(2 * spent / (bare[-1] + after))
        bare.append(after)
        results |= {result, again}
        print(f"  {kind:15} {spent:6.2f} s between {bare[-2]:6.2f} and {after:6.2f} s", flush=True)
    print(f"{KINDS[0]:15} {median(bare):6.2f} s, from {min(bare):.2f} to {max(bare):.2f}")
    for kind, values in ratios.items():
        error = stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        print(
            f"{kind:15} {mean(values):.3f} x on average (standard error {error:.3f}), median {median(values):.3f}, "
            f"from {min(values):.3f} to {max(values):.3f}"
        )
    print("all results equal" if len(results) == 1 else f"results differ: {results}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long a run takes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--method", default="sgd")
    arguments = parser.parse_args()
    compare(arguments.method, arguments.seconds, arguments.rounds)


if __name__ == "__main__":
    main()
