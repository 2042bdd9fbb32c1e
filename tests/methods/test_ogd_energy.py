"""OGD with shares of energy: the promises, step by step, on small versions of the networks people use."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from orthocl.errors import SettingsError
from orthocl.lab import MethodSettings, RunSettings, StreamSettings
from orthocl.methods import OGD, PCAOGD, OGDPlus
from orthocl.nets import LeNet
from orthocl.streams import TensorSplit
from orthocl.tangents import compress
from orthocl.training import attach


class Residual(nn.Module):
    """Two convolutions with batch normalisation and a shortcut."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.one, self.two = (nn.Conv2d(6, 6, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.stem(x)))
        x = torch.relu(x + self.norms[2](self.two(torch.relu(self.norms[1](self.one(x))))))
        return self.head(x.mean((2, 3)))


class TinyViT(nn.Module):
    """Patches, positions, one encoder layer, mean pooling."""

    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, 8, 4, 4)
        self.positions = nn.Parameter(torch.randn(4, 8) / 4)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.cut(x).flatten(2).transpose(1, 2) + self.positions).mean(1))


class TiedGPT(nn.Module):
    """Embedding, causal encoder layer, the embedding again as output layer."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.head(self.encoder(self.words(x), src_mask=mask)[:, -1])


NETWORKS = {
    "lenet": lambda: LeNet((3, 8, 8), hidden=12, outputs=3, channels=(4, 5)),
    "resnet": Residual,
    "vit": TinyViT,
    "gpt": TiedGPT,
}


def data(name: str, seed: int, dtype: torch.dtype) -> TensorSplit:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (16,), generator=generator)
    if name == "gpt":
        return TensorSplit(torch.randint(0, 9, (16, 5), generator=generator), labels)
    return TensorSplit(torch.randn(16, 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype), labels)


def network(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(5)
    return NETWORKS[name]().to(dtype)


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    return {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.02),
        "momentum": lambda: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=0.002, weight_decay=0.01),
    }[name]()


def learn(learner, split: TensorSplit, steps: int, check=None) -> None:
    with learner.learning(split):
        for step in range(steps):
            x, y = split.samples(torch.arange(4 * step, 4 * step + 4) % 16)
            learner.optimizer.zero_grad()
            (learner.loss(learner.model(x), y) + learner.penalty()).backward()
            learner.optimizer.step()
        if check is not None:
            learner.merge()
            check()


def vector(parameters) -> Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


def true_tangents(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    rows = []
    for sample, label in zip(x, y, strict=True):
        parts = torch.autograd.grad(model(sample[None])[0, label], list(model.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]))
    model.train()
    return torch.stack(rows)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_energy_is_dense_projection_after_many_steps(name):
    model, first, second = network(name), data(name, 1, torch.float64), data(name, 2, torch.float64)
    learner = attach(OGD(memory_per_task=5, energy=1.0), model, torch.optim.SGD(model.parameters(), lr=0.02))
    learn(learner, first, 6)
    x, y = first.samples(learner.method.remembered[1])
    rows = true_tangents(model, x, y)
    basis = torch.linalg.svd(rows, full_matrices=False)[2]
    # The same task by hand, with explicit gradients and frozen batch statistics.
    reference = network(name)
    reference.load_state_dict(model.state_dict())
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    own = list(reference.parameters())
    for step in range(200):
        inputs, targets = second.samples(torch.arange(4 * step, 4 * step + 4) % 16)
        loss = nn.functional.cross_entropy(reference(inputs), targets)
        flat = vector(torch.autograd.grad(loss, own))
        flat = flat - basis.t() @ (basis @ flat)
        with torch.no_grad():
            for parameter, part in zip(own, flat.split([p.numel() for p in own]), strict=True):
                parameter.sub_(0.02 * part.view_as(parameter))
    learn(learner, second, 200)
    start_to_end = vector(model.parameters()) - vector(own)
    assert float(start_to_end.norm()) <= 1e-9 * float(vector(own).norm())


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_change_by_no_more_than_the_reported_error(name, optimizer):
    model, first, second = network(name), data(name, 1, torch.float64), data(name, 2, torch.float64)
    learner = attach(OGD(memory_per_task=5, energy=0.95), model, optimizer_of(optimizer, model))
    learn(learner, first, 6)
    errors = learner.method.subspace.errors
    assert float(errors.mean()) > 0
    assert float(errors.square().mean()) <= 0.05
    kept = torch.cat(learner.method.subspace._places)
    x, y = first.samples(learner.method.remembered[1][kept])
    rows, start = true_tangents(model, x, y), vector(model.parameters())
    moved = []
    learn(learner, second, 12, lambda: moved.append(vector(model.parameters()) - start))
    change = (rows @ moved[0]).abs()
    bound = errors * rows.norm(dim=1) * moved[0].norm()
    assert bool((change <= bound * (1 + 1e-6) + 1e-9).all())
    report = learner.method.monitor(learner)
    assert 0 < report["error_mean"] <= report["error_worst"] < 1


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_leaks_into_what_is_stored(name, optimizer):
    model = network(name, torch.float32)
    learner = attach(OGD(memory_per_task=6, energy=0.95), model, optimizer_of(optimizer, model))
    learn(learner, data(name, 1, torch.float32), 6)
    start = [p.detach().clone() for p in learner.parameters.values()]
    leaks = []

    def check() -> None:
        moved = [p.detach() - q for p, q in zip(learner.parameters.values(), start, strict=True)]
        leaks.append(learner.method.subspace.leak(moved))

    learn(learner, data(name, 2, torch.float32), 12, check)
    assert leaks[0] < 1e-6


def test_the_worst_tangent_can_be_bounded():
    model = network("vit")
    method = OGD(memory_per_task=8, energy=0.8, worst_energy=0.95)
    learner = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.02))
    learn(learner, data("vit", 1, torch.float64), 4)
    assert float(method.subspace.errors.square().max()) <= 0.05 + 1e-12


@pytest.mark.parametrize(
    ("kind", "name"), [*((OGD, name) for name in NETWORKS), (OGDPlus, "vit"), (PCAOGD, "vit")]
)
def test_saved_in_the_middle_of_a_task_it_goes_on_to_the_bit(kind, name, tmp_path):
    def fresh():
        model = network(name)
        return attach(
            kind(memory_per_task=6, energy=0.95), model, torch.optim.SGD(model.parameters(), lr=0.02)
        )

    def steps(learner, split, numbers):
        for step in numbers:
            x, y = split.samples(torch.arange(4 * step, 4 * step + 4) % 16)
            learner.optimizer.zero_grad()
            learner.loss(learner.model(x), y).backward()
            learner.optimizer.step()

    first, second = data(name, 1, torch.float64), data(name, 2, torch.float64)
    straight = fresh()
    learn(straight, first, 4)
    with straight.learning(second):
        steps(straight, second, range(3))
        saved = {key: value.detach().clone() for key, value in straight.model.state_dict().items()}
        torch.save(straight.state_dict(), tmp_path / "state")
        steps(straight, second, range(3, 6))
    again = fresh()
    again.model.load_state_dict(saved)
    again.load_state_dict(torch.load(tmp_path / "state", weights_only=False))
    with again.learning(second, resumed=True):
        steps(again, second, range(3, 6))
    assert torch.equal(vector(straight.model.parameters()), vector(again.model.parameters()))
    assert torch.equal(straight.method.subspace.tangents.gram(), again.method.subspace.tangents.gram())


def test_ogd_plus_compresses_anew():
    model = network("vit")
    learner = attach(
        OGDPlus(memory_per_task=5, energy=0.95), model, torch.optim.SGD(model.parameters(), lr=0.05)
    )
    for number in (1, 2, 3):
        learn(learner, data("vit", number, torch.float64), 6)
    errors = learner.method.subspace.errors
    assert len(errors) == learner.method.subspace.size == 15
    rows = []
    for piece in learner.method.memory:
        rows.append(true_tangents(model, piece.inputs, piece.targets))
    truth = torch.cat(rows)[_order(learner.method.subspace)]
    measured = (learner.method.subspace.tangents.dense() - truth).norm(dim=1) / truth.norm(dim=1)
    torch.testing.assert_close(errors, measured, rtol=1e-4, atol=1e-6)


def _order(subspace) -> Tensor:
    starts = torch.tensor([0, 5, 10])
    return torch.cat([places + start for places, start in zip(subspace._places, starts, strict=True)])


def test_impossible_shares_are_refused_before_anything_is_learnt():
    model = network("lenet")
    with pytest.raises(SettingsError, match=r"energy of ogd must be at most 1, got 1\.5"):
        attach(OGD(energy=1.5), model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner = attach(OGD(energy=0.5, worst_energy=1.5), model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SettingsError, match="between 0 and 1"):
        learn(learner, data("lenet", 1, torch.float64), 1)


def test_records_without_compression_are_as_before():
    def recorded(**settings):
        run = RunSettings(StreamSettings("rotated-mnist-mini"), MethodSettings("ogd", settings))
        return run.resolved().recorded()["method"]["settings"]

    assert "energy" not in recorded()
    assert recorded(energy=0.99)["energy"] == 0.99


def test_a_bound_on_the_worst_tangent_that_is_missed_is_said(monkeypatch):
    monkeypatch.setattr(compress, "TRIES", 1)
    model = network("vit")
    method = OGD(memory_per_task=8, energy=0.5, worst_energy=0.999)
    learner = attach(method, model, torch.optim.SGD(model.parameters(), lr=0.02))
    with pytest.warns(UserWarning, match=r"0\.\d+ at worst, less than the 0\.\d+ and 0\.999\d* asked for"):
        learn(learner, data("vit", 1, torch.float64), 4)
