"""Layers that carry adapters are found wherever they are, and tangents are derived in pieces of any size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from orthocl.tangents import adapted_weights
from orthocl.tangents.adapted_weights import adapted_layers, collect_whole, derived, merged, whole_weight
from orthocl.tangents.remembering import Remembering


def matrix(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, dtype=torch.float64))


class Adapted(nn.Module):
    """A frozen linear layer and the product of two small matrices; one more matrix is trained and never used."""

    def __init__(self, base: nn.Linear, rank: int = 2, idle: bool = False):
        super().__init__()
        self.base = base.double().requires_grad_(False)
        self.down, self.up = matrix(rank, base.in_features), matrix(base.out_features, rank)
        if idle:
            self.idle = matrix(2, 3)

    def forward(self, x):
        return self.base(x) + 0.5 * x @ self.down.t() @ self.up.t()

    @property
    def whole(self):
        return self.base.weight + 0.5 * self.up @ self.down


class Inner(nn.Module):
    """Adapters as modules of their own, in a dict: their parameters have names of four parts."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 5).double().requires_grad_(False)
        self.adapters = nn.ModuleDict(
            {"one": nn.Linear(4, 2, bias=False).double(), "two": nn.Linear(2, 5, bias=False).double()}
        )

    def forward(self, x):
        return self.base(x) + self.adapters["two"](self.adapters["one"](x))


class Scaled(nn.Module):
    """A frozen vector, and no frozen matrix, beside what is trained."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((5,), 2.0, dtype=torch.float64), requires_grad=False)
        self.weight = matrix(5, 5)

    def forward(self, x):
        return self.scale * (x @ self.weight.t())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scaled = Inner(), Scaled()
        self.plain = nn.Linear(5, 6, bias=False).double().requires_grad_(False)
        self.matrices = Adapted(nn.Linear(6, 6, bias=False), idle=True)

    def forward(self, x):
        return self.matrices(torch.tanh(self.plain(self.scaled(torch.tanh(self.layer(x))))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.out = Block(), Adapted(nn.Linear(6, 3))

    def forward(self, x):
        return self.out(torch.tanh(self.block(x)))


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    return Net()


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def test_adapted_layers_are_found_at_any_depth(model):
    """The smallest linear module with a frozen matrix; a frozen vector, a dict or a layer without adapters is none."""
    found = adapted_layers(model, trained(model))
    assert set(found) == {"block.layer", "block.matrices", "out"}
    assert all(module is model.get_submodule(name) for name, module in found.items())
    more = adapted_layers(model, trained(model), layers=["plain", "base"])
    assert set(more) == {*found, "block.plain"}  # the frozen layer inside an adapted one is part of it


def test_an_adapted_layer_without_bias_is_found_by_its_matrix(model):
    own = {f"only.{name}": p for name, p in trained(model.block.matrices).items()}
    holder = nn.ModuleDict({"only": model.block.matrices})
    assert set(adapted_layers(holder, own)) == {"only"}


def test_whole_weights_are_sums_of_what_is_frozen_and_trained(model):
    weight, bias = whole_weight(model.out, "out")
    torch.testing.assert_close(weight, model.out.whole)
    torch.testing.assert_close(bias, model.out.base.bias)
    layer = model.block.layer
    weight, bias = whole_weight(layer, "block.layer")
    product = layer.adapters["two"].weight @ layer.adapters["one"].weight
    torch.testing.assert_close(weight, layer.base.weight + product)
    torch.testing.assert_close(bias, layer.base.bias)


def test_plain_layers_take_the_place_of_nested_ones_and_give_it_back(model):
    layers = adapted_layers(model, trained(model))
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = model(x)
    with merged(model, layers) as weights:
        assert all(type(model.get_submodule(name)) is nn.Linear for name in layers)
        assert all(weights[name] is model.get_submodule(name).weight for name in layers)
        torch.testing.assert_close(model(x), expected)
    assert all(model.get_submodule(name) is module for name, module in layers.items())
    assert set(dict(model.named_children())) == {"block", "out"}


@pytest.mark.parametrize("chunk", [1, 100, 2**24])
def test_derived_tangents_are_those_of_autograd_however_many_at_once(model, chunk, monkeypatch):
    """Also of a matrix that is trained beside the adapters, and of one that is never used."""
    monkeypatch.setattr(adapted_weights, "CHUNK", chunk)
    parameters = trained(model)
    layers = adapted_layers(model, parameters)
    x, y = torch.randn(7, 4, dtype=torch.float64), torch.arange(7) % 3
    stored = collect_whole(model, x, y, parameters=parameters, layers=layers, remember=Remembering())
    found = derived(model, stored, parameters, layers).dense()
    rows = []
    for row in range(7):
        parts = torch.autograd.grad(
            model(x[row : row + 1])[0, y[row]], list(parameters.values()), allow_unused=True
        )
        whole = [
            torch.zeros_like(p) if g is None else g for g, p in zip(parts, parameters.values(), strict=True)
        ]
        rows.append(torch.cat([part.flatten() for part in whole]))
    torch.testing.assert_close(found, torch.stack(rows), rtol=1e-9, atol=1e-12)
