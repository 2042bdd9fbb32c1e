"""Two processes that train copies of a model: they stay the same, and take the steps of one process.

Run as a program, this file is one of the processes.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Subset, TensorDataset

from orthocl import OGD, attach
from orthocl.errors import UnsupportedError
from orthocl.methods import METHODS
from orthocl.methods.ranks import Ranks

CASES = {
    # name: method, settings, which data each process gives, attached to, momentum
    "momentum": ("ogd", {"memory_per_task": 10}, "same", "ddp", 0.9),
    "projected": ("ogd+", {"memory_per_task": 10}, "same", "ddp", 0.0),
    "raw": ("ogd", {"memory_per_task": 10}, "same", "raw", 0.0),
    "shards": ("ogd+", {"memory_per_task": 10}, "shards", "ddp", 0.0),
    "a-gem": ("a-gem", {"memory_per_task": 10, "reference_batch": 7}, "same", "ddp", 0.0),
    "ewc": ("ewc", {"fisher_samples": 8}, "same", "ddp", 0.0),
}


@pytest.mark.parametrize("count", [0, 1, 7, 9])
def test_shares_of_samples_add_up(count):
    shares = [Ranks.share(SimpleNamespace(own=own, count=3), count) for own in range(3)]  # type: ignore[arg-type]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1
    assert all(isinstance(share, int) for share in shares)


def tasks():
    generator = torch.Generator().manual_seed(0)
    return [
        TensorDataset(
            torch.randn(24, 256, generator=generator).double(), torch.randint(3, (24,), generator=generator)
        )
        for _ in range(3)
    ]


def run(case, rank=0, world=1):
    """Train three tasks with batches of 8, of which this process takes its share; returns what must agree."""
    name, settings, given, to, momentum = CASES[case]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 3)).double()
    whole = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    # Without a seed every process would draw its own samples.
    torch.manual_seed(17 + rank)
    learner = attach(
        METHODS[name](**settings),
        whole if to == "ddp" else model,
        optimizer,
        seed=3 if world == 1 or rank == 0 else 99,
    )
    for data in tasks():
        mine = Subset(data, range(rank, len(data), world)) if given == "shards" else data
        with learner.learning(mine):
            for start in range(0, 24, 8):
                rows = torch.arange(start + rank, start + 8, world)
                optimizer.zero_grad()
                (
                    cross_entropy(whole(data.tensors[0][rows]), data.tensors[1][rows]) + learner.penalty()
                ).backward()
                optimizer.step()
    memory = getattr(learner.method, "memory", None)
    samples = [piece.inputs.sum() for piece in memory] if memory is not None else []
    return {
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]),
        "samples": torch.stack(samples) if samples else torch.zeros(0),
    }


def refusals():
    """What `attach` says to models whose weights are spread over the processes."""
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    found = []
    for spread in (fsdp.FullyShardedDataParallel, getattr(fsdp, "fully_shard", None)):
        if spread is None:  # it came with torch 2.6
            continue
        mesh = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
        old = {"device_id": torch.device("cpu")}
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        model = spread(model, **(old if isinstance(spread, type) else mesh))
        try:
            attach(OGD(), model, torch.optim.SGD(model.parameters(), lr=0.1))
        except UnsupportedError as error:
            found.append(str(error))
        else:
            found.append("attached")
    return found


def adapter():
    """What is said of an adapter in one of several processes, whose gradients it would not see."""
    model = nn.Linear(4, 2)
    whole = DistributedDataParallel(model)
    learner = attach(OGD(engine="adapter"), whole, torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        with learner.learning(TensorDataset(torch.randn(4, 4), torch.tensor([0, 1, 0, 1]))):
            return "used"
    except UnsupportedError as error:
        return str(error)


def main(rank, world, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    results = {case: run(case, rank, world) for case in CASES}
    torch.save({**results, "refusals": refusals(), "adapter": adapter()}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()),
    reason="this torch has no gloo, which joins the processes",
)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    worker = [sys.executable, __file__]
    running = [
        subprocess.Popen([*worker, str(rank), "2", str(folder)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@needs_gloo
@pytest.mark.parametrize("case", CASES)
def test_processes_stay_the_same_and_take_the_steps_of_one(both, case):
    first, second = (results[case] for results in both)
    assert torch.equal(first["weights"], second["weights"])
    assert torch.equal(first["samples"], second["samples"])
    if case == "shards":
        assert len(first["samples"]) == 3
        return
    alone = run(case)
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=0, atol=1e-10)


@needs_gloo
def test_weights_spread_over_processes_are_refused(both):
    """FSDP, both kinds of it that torch has."""
    for results in both:
        assert results["refusals"]
        assert all("spread over processes" in refusal for refusal in results["refusals"])


@needs_gloo
def test_the_adapter_by_name_is_refused(both):
    assert all("several processes train the model" in results["adapter"] for results in both)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
