"""Cost of a protected step in your own loop, as a ratio to the same loop without a method, measured in one run.

    python benchmarks/own_loop.py
    python benchmarks/own_loop.py --memory 300 --blocks 3      smaller

The network is the paper's MLP 1024-100-100-10, batch 32, one thread, after 15 remembered tasks. Blocks of 50 steps of
both loops are timed in turn, in processor time; ratios are medians over the blocks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import process_time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import orthocl
from orthocl.nets import MLP

BATCH, SAMPLES, TASKS, STEPS = 32, 3200, 15, 50
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-3),
    "SGD with momentum and decay": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, weight_decay=1e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "every=10": ({}, {"every": 10}),
    'engine="adapter"': ({"engine": "adapter"}, {}),
}


def samples(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 1024), torch.randint(10, (count,)))


def block(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: TensorDataset) -> float:
    """Seconds of the processor for some steps."""
    inputs, targets = data.tensors
    start = process_time()
    for step in range(STEPS):
        index = torch.arange(step * BATCH, (step + 1) * BATCH) % SAMPLES
        optimizer.zero_grad()
        cross_entropy(model(inputs[index]), targets[index]).backward()
        optimizer.step()
    return process_time() - start


def ratio(make: Callable[..., torch.optim.Optimizer], way: str, memory: int, blocks: int) -> float:
    """Of the protected loop to the plain one."""
    torch.manual_seed(0)
    settings, options = WAYS[way]
    data, plain, protected = samples(SAMPLES), MLP((1024,), (100, 100), 10), MLP((1024,), (100, 100), 10)
    bare, optimizer = make(plain.parameters()), make(protected.parameters())
    method = orthocl.OGD(memory_per_task=memory // TASKS, **settings)
    learner = orthocl.attach(method, protected, optimizer, **options)
    for _ in range(TASKS):
        with learner.learning(samples(memory // TASKS)):
            pass
    with learner.learning(data):
        found = [block(protected, optimizer, data) / block(plain, bare, data) for _ in range(blocks + 1)]
    return statistics.median(found[1:])  # the first one warms up


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", type=int, default=1500, help="remembered gradients")
    parser.add_argument("--blocks", type=int, default=9, help="blocks of 50 steps of each loop")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        title=f"a protected step, x a plain one; MLP 1024-100-100-10, m = {given.memory}, batch {BATCH}"
    )
    for column in ("optimizer", *WAYS):
        table.add_column(column)
    for name, make in OPTIMIZERS.items():
        ways = [way for way in WAYS if way != 'engine="adapter"' or name == "SGD"]
        ratios = [f"{ratio(make, way, given.memory, given.blocks):.1f}" for way in ways]
        table.add_row(name, *ratios, *["-"] * (len(WAYS) - len(ways)))
    Console().print(table)


if __name__ == "__main__":
    main()
