"""Everything works on a model that is on another device, with the same numbers as on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from orthocl import OGD, AdapterOGD, OGDPlus, attach, plan
from orthocl.methods import METHODS

# ---- the tool -------------------------------------------------------------------------------------------------


def test_the_pretend_device_refuses_to_meet_the_cpu(elsewhere):
    there, here = torch.ones(2).to("meta"), torch.ones(2)
    for mix in (
        lambda: there + here,
        lambda: here.add_(there),
        lambda: torch.cat([here, there]),
        lambda: torch.equal(here, there),
        lambda: here[there.long()],
        lambda: torch._foreach_sub([there], [here]),
        lambda: there.index_put_((torch.tensor([0]),), here[:1]),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mix()
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.randn(2, generator=torch.Generator(), device="meta")


def test_the_pretend_device_computes_and_copies(elsewhere):
    there = torch.arange(3.0).to("meta")
    assert (
        there.device.type
        == (there + 1).device.type
        == torch.zeros(2, device=there.device).device.type
        == "meta"
    )
    assert there.cpu().device.type == "cpu"
    assert (2 * there + torch.tensor(1.0)).tolist() == [1.0, 3.0, 5.0]
    assert there[torch.tensor([2])].tolist() == [2.0]
    assert float(there.sum()) == 3.0
    there.view(3)[:1].copy_(torch.ones(1))
    assert there.tolist() == [1.0, 1.0, 2.0]
    model = elsewhere(nn.Linear(2, 1))
    model(torch.ones(1, 2).to("meta")).sum().backward()
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


# ---- the library ----------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(7, 8), nn.Parameter(torch.randn(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.words(x) + self.places).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = (
            nn.Embedding(7, 5),
            nn.LSTM(5, 6, batch_first=True),
            nn.Linear(6, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(self.words(x))[0][:, -1])


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.LayerNorm(9), nn.Linear(9, 3))


def convolutions() -> nn.Module:
    first, second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 24, 2)
    return nn.Sequential(
        first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(216, 3)
    )


NETWORKS = {
    "perceptron": (perceptron, (6,)),
    "convolutions": (convolutions, (2, 4, 4)),
    "transformer": (Transformer, None),
    "recurrent": (Recurrent, None),
}
SMALL = {
    "stable-sgd": {"dropout": None},
    "sketch-ogd": {"sketch": 5},
    "pca-ogd": {"components": 3},
    "orfit": {"components": 5},
}


def method(name: str, **settings: object):
    chosen = METHODS[name]
    given = {"memory_per_task": 6, **SMALL.get(name, {}), **settings}
    known = {key: value for key, value in given.items() if hasattr(chosen, key)}
    return chosen(**known)


def model_of(network: str) -> nn.Module:
    torch.manual_seed(1)
    return NETWORKS[network][0]()


def task(network: str, number: int) -> TensorDataset:
    generator, shape = torch.Generator().manual_seed(number), NETWORKS[network][1]
    x = (
        torch.randint(7, (8, 6), generator=generator)
        if shape is None
        else torch.randn(8, *shape, generator=generator)
    )
    return TensorDataset(x, torch.randint(3, (8,), generator=generator))


def learn(learner, data: TensorDataset, middle=None) -> None:
    with learner.learning(data):
        for step in range(3):
            x, y = (part.to(learner.device) for part in data.tensors)
            learner.optimizer.zero_grad()
            (cross_entropy(learner.model(x), y) + learner.penalty()).backward()
            learner.optimizer.step()
            if middle is not None and step == 1:
                middle(learner)


def attached(chosen, model: nn.Module, optimizer: str = "sgd", **settings: object):
    steps = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer](model.parameters(), lr=0.01)
    return attach(chosen, model, steps, seed=0, **settings)


def numbers(model: nn.Module) -> list[Tensor]:
    return [value.detach().cpu() for value in model.state_dict().values()]


def assert_same(one: nn.Module, other: nn.Module) -> None:
    for mine, theirs in zip(numbers(one), numbers(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def tensors_in(state: object) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [found for part in parts for found in tensors_in(part)]


def numbers_on_the_cpu(learner) -> list[tuple[int, ...]]:
    """Shapes of what the method keeps in floating point on the CPU, although the model is elsewhere."""
    kept = tensors_in(learner.method.state_dict())
    return [tuple(part.shape) for part in kept if part.is_floating_point() and part.device.type == "cpu"]


def learn_three(learner, network: str) -> None:
    for number in (1, 2, 3):
        learn(learner, task(network, number))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"adapter-ogd"}))
def test_every_method_learns_elsewhere_as_it_does_on_the_cpu(elsewhere, name, optimizer):
    here = attached(method(name), model_of("perceptron"), optimizer)
    there = attached(method(name), elsewhere(model_of("perceptron")), optimizer)
    for learner in (here, there):
        learn_three(learner, "perceptron")
    assert_same(here.model, there.model)
    assert here.method.monitor(here).keys() == there.method.monitor(there).keys()
    assert not numbers_on_the_cpu(there)


CASES = {
    "all outputs": lambda: OGD(memory_per_task=4, variant="all"),
    "refreshed": lambda: OGDPlus(memory_per_task=4, memory_total=8),
    "compressed": lambda: OGD(memory_per_task=6, energy=0.9),
    "bfloat16": lambda: OGD(memory_per_task=6, storage="bfloat16"),
    "principal": lambda: method("pca-ogd", energy=0.9),
    "inputs": lambda: method("gpm"),
    "both sides": lambda: method("kron-ogd"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_representation_works_elsewhere(elsewhere, network, case):
    here = attached(CASES[case](), model_of(network))
    there = attached(CASES[case](), elsewhere(model_of(network)))
    for learner in (here, there):
        learn_three(learner, network)
    assert_same(here.model, there.model)
    assert not numbers_on_the_cpu(there)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"adapter-ogd"}))
def test_a_loaded_memory_moves_to_the_model(elsewhere, name, tmp_path):
    here = attached(method(name), model_of("perceptron"))
    for number in (1, 2):
        learn(here, task("perceptron", number))
    here.save(tmp_path / "memory")
    copied = model_of("perceptron")
    copied.load_state_dict(here.model.state_dict())
    there = attached(method(name), elsewhere(copied))
    there.load(tmp_path / "memory")
    assert not numbers_on_the_cpu(there)
    for learner in (here, there):
        learn(learner, task("perceptron", 3))
    assert_same(here.model, there.model)
    there.save(tmp_path / "back")
    back = attached(method(name), model_of("perceptron"))
    back.load(tmp_path / "back")
    assert all(part.device.type == "cpu" for part in tensors_in(back.method.state_dict()))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_representation_can_be_loaded_elsewhere(elsewhere, network, case, tmp_path):
    here = attached(CASES[case](), model_of(network))
    learn(here, task(network, 1))
    here.save(tmp_path / "memory")
    copied = model_of(network)
    copied.load_state_dict(here.model.state_dict())
    there = attached(CASES[case](), elsewhere(copied))
    there.load(tmp_path / "memory")
    assert not numbers_on_the_cpu(there)
    for learner in (here, there):
        learn(learner, task(network, 2))
    assert_same(here.model, there.model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ogd+", "gpm", "sgp"])
def test_a_task_that_was_saved_in_its_middle_goes_on_elsewhere(elsewhere, name, tmp_path):
    here = attached(method(name), model_of("perceptron"))
    learn(here, task("perceptron", 1))
    copied, data = model_of("perceptron"), task("perceptron", 2)

    def save(learner) -> None:
        learner.save(tmp_path / "memory")
        copied.load_state_dict(learner.model.state_dict())

    learn(here, data, middle=save)
    there = attached(method(name), elsewhere(copied))
    there.load(tmp_path / "memory")
    x, y = (part.to(there.device) for part in data.tensors)
    with there.learning(data, resumed=True):
        cross_entropy(there.model(x), y).backward()
        there.optimizer.step()
    assert_same(here.model, there.model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ogd", "ogd+", "pca-ogd", "gpm", "ewc"])
@pytest.mark.parametrize("network", ["perceptron", "convolutions"])
def test_certificates_are_those_of_the_cpu(elsewhere, network, name):
    here = attached(method(name), model_of(network))
    there = attached(method(name), elsewhere(model_of(network)))
    found = []
    for learner in (here, there):
        for number in (1, 2):
            learn(learner, task(network, number))
        found.append(learner.certificate({"task 1": task(network, 1)}))
    for mine, theirs in zip(*(certificate.probes for certificate in found), strict=True):
        assert mine.name == theirs.name
        assert mine.change.measured == pytest.approx(theirs.change.measured, rel=1e-3, abs=1e-6)
        assert mine.change.total == pytest.approx(theirs.change.total, rel=1e-3, abs=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("energy", [1.0, 0.9])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_plan_needs_no_numbers_and_is_the_same(elsewhere, network, energy):
    x = task(network, 1).tensors[0]
    settings = {"tasks": 3, "memory_per_task": 6, "energy": energy}
    there = plan(elsewhere(model_of(network)), x.to("meta"), **settings)
    here = plan(model_of(network), x[:1], **settings)
    assert there == here


class LowRank(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


@pytest.mark.parametrize("energy", [1.0, 0.9])
def test_one_memory_for_many_adapters_works_elsewhere(elsewhere, energy, tmp_path):
    learners = []
    for place in (lambda model: model, elsewhere):
        torch.manual_seed(1)
        model = place(nn.Sequential(LowRank(6, 9), nn.ReLU(), LowRank(9, 3)))
        trained = [p for p in model.parameters() if p.requires_grad]
        steps = torch.optim.SGD(trained, lr=0.01)
        learners.append(attach(AdapterOGD(memory_per_task=6, energy=energy), model, steps, seed=0))
        learn_three(learners[-1], "perceptron")
    here, there = learners
    assert_same(here.model, there.model)
    here.save(tmp_path / "memory")
    there.load(tmp_path / "memory")
    assert not numbers_on_the_cpu(there)
    for learner in learners:
        learn(learner, task("perceptron", 4))
    assert_same(here.model, there.model)


def test_data_that_is_there_already_is_not_moved(elsewhere):
    learner = attached(OGD(memory_per_task=6), elsewhere(model_of("perceptron")))
    there = TensorDataset(*(part.to("meta") for part in task("perceptron", 1).tensors))
    learn(learner, there)
    learn(learner, there)
    assert not numbers_on_the_cpu(learner)
