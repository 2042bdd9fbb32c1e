"""Cost of one training step of each method, as a ratio to a bare PyTorch loop, measured in one run.

    python benchmarks/step_cost.py

The network is the paper's MLP 1024-100-100-10, batch 32, one thread. Bare loop: zero_grad, forward, backward, step on
the same batches. A-GEM is compared with a bare loop that makes the same two passes (batch 32 and reference batch 256).
Each block of 100 steps is timed right after one of the bare loop; ratios are medians over the blocks, so that a busy
machine slows both sides alike.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy

from orthocl.methods import make_method
from orthocl.nets import MLP
from orthocl.streams import Task, TensorSplit
from orthocl.training import Progress, TrainSettings, attach
from orthocl.training.loop import Training

BATCH, SAMPLES, TASKS = 32, 3200, 5
LIMITS = {"sgd": 1.2, "ewc": 2.5, "si": 2.5, "mas": 2.5, "a-gem": 1.3, "a-gem-nt": 1.3}


class Finished(Exception):
    """The steps of a turn are done."""


def data() -> TensorSplit:
    generator = torch.Generator().manual_seed(0)
    return TensorSplit(
        torch.randn(SAMPLES, 1024, generator=generator), torch.randint(10, (SAMPLES,), generator=generator)
    )


def bare(reference: int = 0) -> Callable[[], float]:
    """A hand-written loop over the same batches; with `reference`, a second pass of that many samples."""
    torch.manual_seed(0)
    model, split = MLP((1024,), outputs=10), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = split.samples()
    parameters = list(model.parameters())

    def block() -> float:
        start = perf_counter()
        for index in torch.randperm(SAMPLES).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(inputs[index]), targets[index]).backward()
            if reference:
                chosen = torch.randperm(SAMPLES)[:reference]
                torch.autograd.grad(cross_entropy(model(inputs[chosen]), targets[chosen]), parameters)
            optimizer.step()
        return perf_counter() - start

    return block


def with_method(name: str) -> Callable[[], float]:
    """The product's own loop on a task that comes after `TASKS` finished ones."""
    torch.manual_seed(0)
    model, split = MLP((1024,), outputs=10), data()
    learner = attach(make_method(name), model, torch.optim.SGD(model.parameters(), lr=1e-3))
    small = TensorSplit(split.inputs(slice(0, 320)), split.targets[:320])
    settings = TrainSettings(epochs=1, batch_size=BATCH, learning_rate=1e-3)
    for _ in range(TASKS):
        with learner.learning(small):
            pass
    learner.batch_size = BATCH
    task = Task(TASKS + 1, "next", split, split)

    def block() -> float:
        progress = Progress(losses=[[]] * TASKS, order_seed=0)
        with contextlib.suppress(Finished), learner.learning(task):
            Training(learner, [], settings, progress).take_steps()  # type: ignore
            raise Finished  # so that the task is not remembered and every turn is the same
        return progress.seconds["train"]

    return block


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=15, help="turns of 100 steps for each contestant")
    blocks = parser.parse_args().blocks
    torch.set_num_threads(1)
    names = ["sgd", "ewc", "si", "mas", "stable-sgd", "a-gem", "a-gem-nt", "ogd", "ogd+"]
    bare_one, bare_two = bare(), bare(256)
    contestants = {
        name: (with_method(name), bare_two if name.startswith("a-gem") else bare_one) for name in names
    }
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(blocks + 1):
        for name, (block, reference) in contestants.items():
            reference()  # leaves the caches as the reference does, before either is timed
            seconds = reference(), block()
            if turn:  # the first turn warms up
                ratios[name].append(seconds[1] / seconds[0])
    table = Table(title=f"a step of each method, MLP 1024-100-100-10, batch {BATCH}, after {TASKS} tasks")
    for column in ("method", "ratio", "limit", "against"):
        table.add_column(column)
    for name in names:
        against = "bare, two passes" if name.startswith("a-gem") else "bare"
        ratio = statistics.median(ratios[name])
        limit = LIMITS.get(name)
        colour = "" if limit is None else "[green]" if ratio <= limit else "[red]"
        table.add_row(name, f"{colour}{ratio:.2f}", "" if limit is None else f"{limit}", against)
    Console().print(table)


if __name__ == "__main__":
    main()
