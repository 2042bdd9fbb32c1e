"""A long stream: 500 tasks of 20 samples, all remembered. Is the memory what was planned, and does anything leak?

    python benchmarks/long_haul.py            # OGD with 10,000 tangents, EWC and plain SGD; some minutes
    python benchmarks/long_haul.py 50         # fewer tasks

OGD projects: the adapter inverts a matrix of all tangents when a task begins, too much for tasks of two steps.

Prints, for each method, what `plan` foresees, what the method says it keeps, how the process grew, and how much more
its tensors grew in the second half of the stream than what is kept: that is what would leak.
"""

import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import orthocl

SAMPLES = 20
INPUTS = 32


@dataclass
class Growth:
    """At half of the stream and at its end: bytes that are kept, and bytes of all tensors in the process."""

    kept: list[int]
    alive: list[int]

    def leaked(self) -> int:
        """How much more the tensors grew than what is kept, over the second half."""
        return (self.alive[1] - self.alive[0]) - (self.kept[1] - self.kept[0])


def tasks(count: int) -> Iterator[TensorDataset]:
    for number in range(count):
        generator = torch.Generator().manual_seed(number)
        yield TensorDataset(
            torch.randn(SAMPLES, INPUTS, generator=generator),
            torch.randint(5, (SAMPLES,), generator=generator),
        )


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(INPUTS, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 5))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def alive() -> int:
    gc.collect()
    tensors = (found for found in gc.get_objects() if type(found) in (torch.Tensor, nn.Parameter))
    stored = [t.untyped_storage() for t in tensors if t.layout == torch.strided and t.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in stored}.values())


def haul(method: orthocl.Method, count: int) -> Growth:
    """Learn a stream in a loop of one's own, and watch the bytes."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    learner = orthocl.attach(method, model, optimizer)
    growth = Growth([], [])
    for number, data in enumerate(tasks(count), start=1):
        with learner.learning(data):
            for x, y in DataLoader(data, batch_size=10, shuffle=True):
                optimizer.zero_grad()
                (cross_entropy(model(x), y) + learner.penalty()).backward()
                optimizer.step()
        if number in (count // 2, count):
            growth.kept.append(method.nbytes())
            growth.alive.append(alive())
    learner.detach()
    return growth


def main(count: int) -> None:
    torch.set_num_threads(1)
    plan = orthocl.plan(network(), torch.zeros(1, INPUTS), tasks=count, memory_per_task=SAMPLES)
    print(f"{count} tasks of {SAMPLES} samples; bytes in MB")
    print(f"{'method':8} {'planned':>9} {'kept':>9} {'process grew':>13} {'leaked in the second half':>26}")
    for method in (
        orthocl.SGD(),
        orthocl.EWC(online=True),
        orthocl.OGD(memory_per_task=SAMPLES, engine="project"),
    ):
        before = resident()
        growth = haul(method, count)
        words = f"{plan.costs['project'].nbytes / 1e6:.1f}" if isinstance(method, orthocl.OGD) else ""
        grew = (resident() - before) / 1e6
        print(
            f"{method.name:8} {words:>9} {method.peak_bytes() / 1e6:9.1f} {grew:13.1f} {growth.leaked() / 1e6:26.1f}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 500)
