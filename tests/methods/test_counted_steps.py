"""What a protected step may do: few operations, no waiting for a device, nothing kept but the anchor."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from orthocl import GPM, OGD, SGD, SGP, KronOGD, OGDPlus, attach
from orthocl.methods import METHODS
from orthocl.tangents import Projector

VIEWS = (
    *(
        "view",
        "reshape",
        "t.",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "squeeze",
        "split",
    ),
    *("unbind", "alias", "detach", "as_strided", "_unsafe_view", "chunk"),
)
WAITS = ("_local_scalar_dense", "item", "tolist", "nonzero", "is_nonzero", "equal")


class Operations(TorchDispatchMode):
    """Counts aten operations, without views."""

    def __init__(self):
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.")
        if not name.startswith(VIEWS):
            self.found[name.partition(".")[0]] += 1
        return function(*args, **(kwargs or {}))

    @property
    def waits(self) -> int:
        return sum(self.found[name] for name in WAITS)


class Layer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.forth, self.back = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.back(nn.functional.gelu(self.forth(self.second(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = (
            nn.Linear(8, 32),
            nn.Sequential(Layer(), Layer()),
            nn.Linear(32, 5),
        )

    def forward(self, x):
        return self.head(self.layers(self.embed(x)).mean(1))


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of rank 4."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 4, bias=False), nn.Linear(4, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.Sequential(LowRank(8, 32), nn.GELU(), LowRank(32, 32)), nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.layers(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def perceptron():
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))


def lenet():
    first, second = nn.Conv2d(3, 8, 5, padding=2), nn.Conv2d(8, 16, 5, padding=2)
    pooled = (nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(first, *pooled, second, *pooled, nn.Flatten(), nn.Linear(256, 20), nn.Linear(20, 5))


NETWORKS = {
    "perceptron": (perceptron, (20,)),
    "lenet": (lenet, (3, 16, 16)),
    "transformer": (Transformer, (6, 8)),
    "low-rank adapters": (Adapted, (6, 8)),
    "recurrent": (Recurrent, (6, 8)),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "decay": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.001),
}
PROJECTING = {
    "ogd": lambda: OGD(memory_per_task=8),
    "ogd, all outputs": lambda: OGD(memory_per_task=4, variant="all"),
    "ogd, compressed": lambda: OGD(memory_per_task=8, energy=0.99),
    "gpm": lambda: GPM(memory_per_task=8),
    "kron-ogd": lambda: KronOGD(memory_per_task=8),
    "sgp": lambda: SGP(memory_per_task=8),
}


def prepared(network, method, optimizer, samples=12):
    """A learner with one finished task, inside its second, and the data of both."""
    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = make()
    learner = attach(method, model, OPTIMIZERS[optimizer](p for p in model.parameters() if p.requires_grad))
    data = TensorDataset(torch.randn(samples, *shape), torch.randint(5, (samples,)))
    with learner.learning(data):
        pass
    return learner, data


def step(learner, data):
    learner.optimizer.zero_grad()
    cross_entropy(learner.model(data.tensors[0]), data.tensors[1]).backward()
    with Operations() as operations:
        learner.optimizer.step()
    return operations


def steps(network, method, optimizer, count):
    learner, data = prepared(network, method, optimizer)
    with learner.learning(data):
        return [step(learner, data) for _ in range(count)], len(learner.parameters)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", PROJECTING)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_protected_step_adds_few_operations_and_never_waits(network, method, optimizer):
    count = 50 if network == "perceptron" else 5
    protected, tensors = steps(network, PROJECTING[method](), optimizer, count)
    plain, _ = steps(network, SGD(), optimizer, count)
    for one, other in zip(protected[1:], plain[1:], strict=True):  # the first prepares the task
        added = one.found.total() - other.found.total()
        assert 0 < added <= 4 * tensors + 12, one.found - other.found
        assert one.waits <= other.waits


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("energy", [1.0, 0.99])
@pytest.mark.parametrize("network", NETWORKS)
def test_the_projection_compiles_into_one_graph(network, energy):
    learner, _ = prepared(network, OGD(memory_per_task=8, energy=energy), "sgd")
    projector = Projector(learner.method.subspace)
    vectors = [torch.randn_like(p) for p in learner.parameters.values()]
    compiled = torch.compile(projector.inside, fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(compiled(vectors), projector.inside(vectors), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ogd", "ogd+", "gpm", "kron-ogd", "adam-nscl"])
def test_between_steps_one_copy_of_the_weights_is_kept_besides_the_memory(name):
    learner, data = prepared("perceptron", METHODS[name](memory_per_task=8), "sgd")
    sizes = sorted(p.numel() for p in learner.parameters.values())
    with learner.learning(data):
        for _ in range(3):
            step(learner, data)
        kept = {t.data_ptr(): t.numel() for t in [*learner.anchor.values(), *learner.started_from.values()]}
        assert sorted(kept.values()) == sizes
        assert not learner._gradient
        assert not learner._before
    assert not learner.anchor


@pytest.mark.parametrize("engine", ["auto", "project", "adapter"])
def test_a_program_that_ends_inside_a_task_ends_normally(engine):
    script = f"""
import torch, orthocl
model = torch.nn.Sequential(torch.nn.Linear(400, 100), torch.nn.ReLU(), torch.nn.Linear(100, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
learner = orthocl.attach(orthocl.OGD(memory_per_task=20, engine={engine!r}), model, optimizer)
data = torch.utils.data.TensorDataset(torch.randn(40, 400), torch.randint(3, (40,)))
with learner.learning(data):
    pass
task = learner.learning(data)
task.__enter__()
torch.nn.functional.cross_entropy(model(data.tensors[0]), data.tensors[1]).backward()
optimizer.step()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_task_entered_by_a_generator_that_is_closed_restores_the_memory():
    learner, data = prepared("perceptron", OGDPlus(memory_per_task=8), "sgd")
    before = learner.method.subspace.rank

    def train():
        with learner.learning(data):
            step(learner, data)
            yield

    steps = train()
    next(steps)
    steps.close()
    assert learner.task is None
    assert learner.tasks_done == 1
    assert learner.method.subspace.rank == before
