from __future__ import annotations

import gc
import sys
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from orthocl.cli.known_networks import KNOWN, without_numbers
from orthocl.cli.plan import app, parse_size
from orthocl.errors import DataError, SettingsError
from orthocl.methods import OGD
from orthocl.nets import MLP, LeNet, MultiHead
from orthocl.tangents import Adapter, Subspace, collect, plan
from orthocl.tangents.costs import LayerShape, adapter_is_cheaper
from orthocl.tangents.packed_symmetric import SymmetricMatrix
from orthocl.tangents.planner import planned, protected_parameters
from orthocl.tangents.price_list import price_list
from orthocl.training import attach


@pytest.mark.parametrize("variant", ["gtl", "all"])
@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_planned_bytes_are_those_of_the_real_memory(name, variant):
    torch.manual_seed(0)
    model = MLP((40,), (30, 30), 4) if name == "mlp" else LeNet((3, 8, 8), 50, 4, channels=(5, 6))
    shape = (40,) if name == "mlp" else (3, 8, 8)
    parameters = dict(model.named_parameters())
    samples = 100
    x, y = torch.randn(samples, *shape), torch.randint(0, 4, (samples,))
    found = plan(model, x, tasks=5, memory_per_task=20, batch_size=4, variant=variant)
    subspace = Subspace(parameters)
    subspace.append(collect(model, x, y, parameters=parameters, variant=variant), 1)
    assert subspace.rank == found.rows == samples * (4 if variant == "all" else 1)
    assert found.costs["project"].nbytes == pytest.approx(subspace.nbytes + found.probe_bytes, rel=0.05)
    adapter = Adapter(model, subspace, parameters, batch_size=4)
    assert [layer.adapted for layer in found.layers].count(True) == len(adapter.layers)
    kept = subspace.nbytes + found.probe_bytes + adapter.nbytes
    assert found.costs["adapter"].nbytes == pytest.approx(kept, rel=0.05)
    adapter.remove()
    assert found.costs["dense"].nbytes == found.rows * sum(p.numel() for p in parameters.values()) * 4


def test_multiply_adds_of_the_paper_network():
    found = plan(
        MLP((1, 32, 32), outputs=10),
        torch.zeros(2, 1, 32, 32),
        tasks=15,
        memory_per_task=100,
        samples_per_task=60_000,
    )
    assert [layer.kind for layer in found.layers] == ["factored"] * 3
    assert [layer.adapted for layer in found.layers] == [True, True, False]
    per_row = 32 * (1024 + 2 * 100) + 32 * 2 * 200 + 2 * 100  # the last layer sorted by output
    assert found.costs["adapter"].madds == 1500 * per_row + 1500**2
    assert found.costs["dense"].madds == 2 * 1500 * 113_610
    assert (found.cache_bytes, found.cache_saves) == (60_000 * 1500 * 4, 32 * 1024 * 1500)
    assert found.choice == "adapter"
    assert found.caches
    assert found.advice() == []
    both = found.costs["adapter"].nbytes + found.cache_bytes
    assert [replace(found, budget=budget).caches for budget in (both, both - 1)] == [True, False]


def test_a_network_whose_dense_basis_would_not_fit_anywhere():
    with torch.device("meta"):
        size = sum(p.numel() for p in MLP((3072,), (2000, 2000), 100).parameters())
    found = plan(MLP((3072,), (2000, 2000), 100), torch.zeros(1, 3072), tasks=30, memory_per_task=100)
    assert found.parameters == size
    assert found.costs["dense"].nbytes > 100e9
    assert found.costs["adapter"].nbytes < 0.5e9


def test_advice_names_what_would_fit():
    model = MLP((30,), (20,), 4)
    options = {"tasks": 5, "memory_per_task": 50, "variant": "all"}
    free = plan(model, torch.zeros(1, 30), **options)
    tight = plan(model, torch.zeros(1, 30), **options, budget=free.costs["project"].nbytes // 2)
    assert tight.choice is None
    assert "more than the budget" in tight.advice()[0]
    assert any("'gtl'" in line for line in tight.advice())
    most = tight.largest_memory()
    assert f"remember {most} samples" in tight.advice()[1]
    options["memory_per_task"] = most
    assert plan(model, torch.zeros(1, 30), **options, budget=tight.budget).choice is not None
    options["memory_per_task"] = most + 2
    assert plan(model, torch.zeros(1, 30), **options, budget=tight.budget).choice is None


def test_warning_when_memory_is_short():
    found = plan(MLP((30,), (20,), 4), torch.zeros(1, 30), tasks=5, memory_per_task=50)
    assert found.warning(available=10**12) is None
    assert "available" in str(found.warning(available=1000))


def test_heads_and_frozen_layers_are_not_planned():
    model = MultiHead(MLP((6,), (9, 8)), {"a": 2, "b": 3})
    model.trunk[1].weight.requires_grad_(False)
    found = plan(model, torch.zeros(1, 6), tasks=2, memory_per_task=3)
    assert {layer.name for layer in found.layers} == {"trunk.1", "trunk.4"}
    assert found.parameters == 9 + 9 * 8 + 8


def test_refusals():
    with pytest.raises(SettingsError, match="tasks must be"):
        plan(nn.Linear(2, 2), torch.zeros(1, 2), tasks=0, memory_per_task=1)
    with pytest.raises(DataError, match="at least one sample"):
        plan(nn.Linear(2, 2), torch.zeros(0, 2), tasks=1, memory_per_task=1)


def test_cost_model_rules():
    wide = LayerShape(1024, 100, 1, 1024, 102_500)
    assert adapter_is_cheaper(wide, 32)
    assert not adapter_is_cheaper(wide, 1000)
    assert not adapter_is_cheaper(LayerShape(100, 10, 1, 100, 1010), 32)
    assert wide.adapter(32, first=True) - wide.adapter(32, first=True, cached=True) == 32 * 1024
    assert LayerShape(9, 64, 100, 900, 640, groups=64).choose() == "dense"
    assert LayerShape(1, 50, 1, 1, 50).choose() == "dense"
    assert LayerShape(4608, 512, 16, 8192, 2_359_296).choose(logits=10) == "patches"


def test_command(capsys):
    arguments = ["lenet", "--input-shape", "3,32,32", "--hidden", "200", "--tasks", "20", "--multi-head"]
    with pytest.raises(SystemExit) as done:
        app(arguments)
    assert not done.value.code
    printed = capsys.readouterr().out
    assert "2,000 tangents of 666,910 weights" in printed
    assert "trunk.9" in printed
    with pytest.raises(SystemExit) as done:
        app([*arguments, "--budget", "30MB"])
    assert done.value.code == 1
    assert "Nothing fits" in capsys.readouterr().out


def test_command_refuses_nonsense():
    with pytest.raises(SettingsError, match="did you mean 'lenet'"):
        app(["lenett", "--input-shape", "3,32,32", "--tasks", "2"])
    with pytest.raises(SettingsError, match="input shape"):
        app(["lenet", "--input-shape", "3,x", "--tasks", "2"])
    with pytest.raises(SettingsError, match="cannot be imported"):
        app(["nowhere:model", "--input-shape", "3", "--tasks", "2"])
    with pytest.raises(SettingsError, match="such as 500MB"):
        parse_size("plenty")
    assert [parse_size(text) for text in ("10", "2 kB", "1.5GB", "3T")] == [
        10,
        2000,
        1_500_000_000,
        3 * 10**12,
    ]


def test_well_known_networks_have_their_well_known_sizes():
    weights = {name: sum(p.numel() for p in without_numbers(name)[0].parameters()) for name in KNOWN}
    assert weights["ResNet-50"] == 25_557_032
    assert weights["ViT-B/16"] == 86_567_656
    assert 6.7e9 < weights["7 B decoder, LoRA r = 8"] < 6.8e9
    model, example = without_numbers("7 B decoder, LoRA r = 8")
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 32 * 2 * 2 * 8 * 4096
    assert example.is_meta


def test_price_list_of_a_convolutional_network():
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    found = {p.way: p for p in price_list(model, torch.zeros(1, 3, 32, 32), rows=500, card=10**9)}
    weights = sum(p.numel() for p in model.parameters())
    assert found["OGD, dense"].nbytes == 500 * weights * 4
    assert found["OGD, energy 0.99"].nbytes < found["OGD, energy 0.999"].nbytes < found["OGD"].nbytes
    assert found["OGD, energy 0.99"].most > found["OGD"].most > 0
    assert found["OGD+"].nbytes == found["OGD"].nbytes + 500 * 3 * 32 * 32 * 4
    assert found["GPM"].most is None
    largest = found["OGD, energy 0.99"].most
    options = {"tasks": 1, "energy": 0.99, "budget": 10**9}
    assert plan(model, torch.zeros(1, 3, 32, 32), memory_per_task=largest, **options).choice is not None


def test_a_plan_measures_the_errors_of_its_examples():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.Tanh(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 4)
    )
    found = plan(model, torch.randn(8, 3, 8, 8), tasks=5, memory_per_task=100, energy=0.95)
    assert 0 < found.error_mean <= found.error_worst < 1
    assert found.error_mean**2 <= 0.05
    assert "compressed" in {layer.kind for layer in found.layers}


def test_plan_and_engine_adapt_the_same_layers():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 8), nn.ReLU(), nn.Linear(8, 4)
    )
    x, y = torch.randn(12, 300), torch.randint(4, (12,))
    parameters = dict(model.named_parameters())
    for batch_size in (4, 32, 400):
        found = plan(model, x, tasks=1, memory_per_task=12, batch_size=batch_size)
        subspace = Subspace(parameters)
        subspace.append(collect(model, x, y, parameters=parameters), 1)
        adapter = Adapter(model, subspace, parameters, batch_size=batch_size)
        adapted = {layer.name for layer in found.layers if layer.adapted}
        names = {
            name for name, module in model.named_modules() if module in [a.module for a in adapter.layers]
        }
        adapter.remove()
        assert adapted == names


def test_command_needs_a_network_or_the_table():
    with pytest.raises(SettingsError, match="--table"):
        app([])


@pytest.mark.parametrize("engine", ["project", "adapter"])
@pytest.mark.parametrize(("hidden", "samples"), [(256, 20), (16, 5)])
def test_training_takes_the_bytes_that_were_planned(engine, hidden, samples):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, hidden), nn.ReLU(), nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 5)
    )
    tasks = 12
    found = plan(model, torch.zeros(1, 32), tasks=tasks, memory_per_task=samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    method = OGD(memory_per_task=samples, engine=engine)
    learner = attach(method, model, optimizer)
    for _ in range(tasks + 1):  # the plan is for training with the tangents of all tasks
        data = TensorDataset(torch.randn(20, 32), torch.randint(5, (20,)))
        with learner.learning(data):
            for x, y in DataLoader(data, batch_size=10):
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()
    before_the_last = found.costs[engine].nbytes
    one_more = plan(model, torch.zeros(1, 32), tasks=tasks + 1, memory_per_task=samples).costs[engine].nbytes
    assert 0.97 * before_the_last <= method.peak_bytes() <= 1.03 * one_more


def test_costs_of_three_ways_by_hand():
    """One layer of 10 inputs and 3 outputs: 33 weights, 100 samples with all of 3 outputs, float32."""
    found = plan(
        nn.Linear(10, 3), torch.zeros(1, 10), tasks=5, memory_per_task=20, variant="all", samples_per_task=70
    )
    rows = 300
    assert (found.rows, found.parameters) == (rows, 33)
    (layer,) = found.layers
    assert found.costs["dense"].nbytes == rows * 33 * 4
    assert found.costs["dense"].madds == 2 * rows * 33
    assert found.costs["project"].madds == rows * layer.projection + 2 * rows**2
    factors = int(layer.bytes_per_row * rows) + found.probe_bytes
    assert found.costs["project"].nbytes == factors + 4 * rows * (rows + 64)
    triangle = SymmetricMatrix(torch.eye(rows))._stored.numel()
    extra = found.costs["adapter"].nbytes - found.costs["project"].nbytes
    assert extra == 4 * (triangle + 33 + layer.copied * rows)
    assert found.costs["adapter"].madds == layer.step * rows + rows**2


def test_the_cached_kernel_has_a_column_for_each_sample_not_for_each_row():
    """70 inputs of a task against 5 x 20 remembered ones, of three outputs each."""
    model = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))
    found = plan(
        model,
        torch.zeros(1, 40),
        tasks=5,
        memory_per_task=20,
        batch_size=2,
        variant="all",
        samples_per_task=70,
    )
    assert found.layers[0].adapted
    assert found.cache_bytes == 70 * 100 * 4
    assert found.cache_saves == 2 * 40 * 100


@pytest.mark.parametrize("variant", ["gtl", "all"])
def test_the_largest_memory_is_the_largest_that_fits(variant):
    model, example = nn.Linear(10, 3), torch.zeros(1, 10)
    settings = {"tasks": 3, "variant": variant}
    budget = plan(model, example, memory_per_task=40, **settings).leanest
    found = plan(model, example, memory_per_task=200, budget=budget, **settings)
    most = found.largest_memory()
    assert isinstance(most, int)
    assert 0 < most <= 40
    assert plan(model, example, memory_per_task=most, **settings).leanest <= budget
    # Probes are counted at the plan's own size, and a panel of the factor: a few samples less than what fits.
    assert plan(model, example, memory_per_task=most + 8, **settings).leanest > budget
    none = plan(model, example, memory_per_task=200, budget=found.probe_bytes, **settings)
    assert none.largest_memory() == 0
    assert plan(model, example, memory_per_task=200, **settings).largest_memory() == 200


def test_a_plan_fits_in_exactly_its_bytes():
    model, example = MLP((20,), (30,), 3), torch.zeros(1, 20)
    found = plan(model, example, tasks=2, memory_per_task=30)
    for path in ("adapter", "project"):
        exact = plan(model, example, tasks=2, memory_per_task=30, budget=found.costs[path].nbytes)
        assert exact.choice is not None
        assert exact.advice() == []
    tight = plan(model, example, tasks=2, memory_per_task=30, budget=found.leanest - 1)
    assert tight.choice is None
    assert tight.advice()[0].startswith("needs ")
    assert found.warning(available=found.leanest) is None
    assert "will need" in found.warning(available=found.leanest - 1)


def test_ogd_plus_pays_for_its_samples_too():
    """The same bytes hold fewer samples: as many as fit with 80 more bytes each."""
    example = torch.zeros(1, 20)
    found = {price.way: price for price in price_list(MLP((20,), (30,), 3), example, rows=50, card=10**6)}
    plain, plus = found["OGD"], found["OGD+"]
    assert plus.nbytes == plain.nbytes + 50 * 20 * 4
    assert 0 < plus.most < plain.most
    assert plus.most == pytest.approx(plain.most * plain.nbytes / plus.nbytes, abs=1)
    dense = found["OGD, dense"]
    assert dense.most == 10**6 // (dense.nbytes // 50)


def test_nothing_is_cached_where_nobody_said_how_many_samples_or_no_layer_sees_them():
    dense = nn.Sequential(nn.Flatten(), nn.Linear(192, 100), nn.Tanh(), nn.Linear(100, 3))
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    for model, samples in ((dense, None), (conv, 70), (conv, None)):
        found = plan(model, torch.zeros(1, 3, 8, 8), tasks=2, memory_per_task=5, samples_per_task=samples)
        assert (found.cache_bytes, found.cache_saves, found.caches) == (0, 0, False)
    assert plan(dense, torch.zeros(1, 3, 8, 8), tasks=2, memory_per_task=5, samples_per_task=70).caches


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 6), nn.Linear(6, 3)

    def forward(self, words):
        return self.head(self.embedding(words).mean(1))


@pytest.mark.parametrize("label", ["labels", "label"])
def test_labels_in_a_dict_are_no_input(label):
    model, words = Words(), torch.zeros(2, 5, dtype=torch.long)
    expected = plan(model, words, tasks=2, memory_per_task=5)
    batch = {"words": words, label: torch.tensor([0, 1])}
    assert plan(model, {"words": words}, tasks=2, memory_per_task=5) == expected
    assert plan(model, batch, tasks=2, memory_per_task=5) == expected
    assert plan(model, (words,), tasks=2, memory_per_task=5) == expected


class Wilful(nn.Sequential):
    """Looks at its inputs' values, so that shapes alone do not say what it computes."""

    def forward(self, x):
        return super().forward(x) if float(x.abs().sum()) < 1e9 else super().forward(-x)


@pytest.mark.parametrize("samples", [1, 3])
def test_models_that_look_at_values_are_planned_as_others_are(samples):
    torch.manual_seed(0)
    layers = [nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 3)]
    x = torch.randn(samples, 40)
    settings = {"tasks": 2, "memory_per_task": 5, "batch_size": 4}
    found, expected = plan(Wilful(*layers), x, **settings), plan(nn.Sequential(*layers), x, **settings)
    assert [layer.adapted for layer in expected.layers] == [True, True, False]
    assert found == expected


def test_numbers_that_the_adapter_copies_by_hand():
    """None of a convolution's and of adapted factors, all derivatives of those moved directly, inputs of the last."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(288, 50), nn.Tanh(), nn.Linear(50, 4)
    )
    for batch_size, copied in ((2, [0, 0, 50]), (4000, [0, 50, 50])):
        found = plan(model, torch.zeros(1, 3, 8, 8), tasks=1, memory_per_task=5, batch_size=batch_size)
        assert [layer.adapted for layer in found.layers] == [False, batch_size == 2, False]
        assert [layer.copied for layer in found.layers] == copied


class Held(nn.Module):
    """A layer in two containers, used once."""

    def __init__(self):
        super().__init__()
        layer, self.last = nn.Linear(300, 200), nn.Linear(200, 4)
        self.one, self.two = nn.ModuleList([layer]), nn.ModuleList([layer])

    def forward(self, x):
        return self.last(torch.tanh(self.one[0](x)))


def test_a_layer_in_two_containers_is_planned_and_adapted():
    torch.manual_seed(0)
    model, x = Held(), torch.randn(6, 300)
    parameters = dict(model.named_parameters())
    found = plan(model, x, tasks=1, memory_per_task=6, batch_size=4)
    assert {layer.name: layer.adapted for layer in found.layers} == {"last": False, "one.0": True}
    subspace = Subspace(parameters)
    subspace.append(collect(model, x, torch.arange(6) % 4, parameters=parameters), 1)
    adapter = Adapter(model, subspace, parameters, batch_size=4)
    assert [layer.module for layer in adapter.layers] == [model.one[0]]
    adapter.remove()


@pytest.mark.parametrize("energy", [1.0, 0.99])
def test_a_network_is_surveyed_once_however_many_tasks_arrive(energy, monkeypatch):
    """Until it has grown, its head is another one, or something else is asked."""
    module, seen = sys.modules["orthocl.tangents.planner"], []
    own = module.survey
    monkeypatch.setattr(module, "survey", lambda *given: seen.append(1) or own(*given))
    model = MultiHead(MLP((1, 8, 8), hidden=(300,)), {"a": 2, "b": 2})
    shown, asked = torch.zeros(1, 1, 8, 8), {"memory_per_task": 20, "energy": energy, "batch": None}
    for tasks in (1, 2, 5):
        found = planned(model, shown, tasks=tasks, parameters=protected_parameters(model), **asked)
        assert found == plan(model, shown, tasks=tasks, **asked)
    assert len(seen) == 1 + 3
    model.select("b")
    planned(model, shown, tasks=5, parameters=protected_parameters(model), **asked)
    planned(model, shown, tasks=5, parameters=protected_parameters(model), **{**asked, "energy": 0.9})
    planned(model, shown, tasks=5, parameters=dict(model.named_parameters()), **asked)
    assert len(seen) == 4 + 3


def test_remembered_plans_do_not_keep_their_networks():
    model = nn.Linear(4, 3)
    alive = weakref.ref(model)
    outputs = partial(lambda held, net, x: net(x), model)  # holds the model, as closures do
    shown, parameters = torch.zeros(1, 4), dict(model.named_parameters())
    planned(model, shown, tasks=1, parameters=parameters, memory_per_task=2, outputs=outputs)
    del model, outputs, parameters
    gc.collect()
    assert alive() is None


def test_planning_leaves_batch_statistics_alone():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for energy in (1.0, 0.9):
        plan(model, torch.randn(8, 2, 4, 4), tasks=2, memory_per_task=8, energy=energy)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert model.training
