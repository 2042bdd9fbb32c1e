"""What all samples share is given to each of them, where that changes nothing."""

import sys

import pytest
import torch
from torch import Tensor, nn

from orthocl.tangents import collect
from orthocl.tangents.planner import plan
from orthocl.tangents.shared_positions import common_parameters


class Positions(nn.Module):
    """Adds positions in one of the ways that people write."""

    def __init__(self, way: str, length: int = 5):
        super().__init__()
        self.way = way
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
        if way == "parameter":
            self.shared = nn.Parameter(torch.randn(1, length, 4))
        elif way == "parameter without samples":
            self.shared = nn.Parameter(torch.randn(length, 4))
        elif way == "matrix":
            self.shared = nn.Parameter(torch.randn(4, 4))
        elif way == "summed":
            self.shared = nn.Parameter(torch.randn(1, 4))
        else:
            self.shared = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        if self.way == "one row":
            added = self.shared(places)
        elif self.way == "batch of one":
            added = self.shared(places[None])
        elif self.way == "repeated":
            added = self.shared(places[None]).repeat(len(x), 1, 1)
        elif self.way.startswith("parameter"):
            added = self.shared
        elif self.way == "matrix":
            return self.head(torch.tanh(self.words(x).mean(1) @ self.shared))
        else:  # a sum over what is taken for the samples: a copy for each would change the outputs
            added = self.shared.sum(0)
        return self.head(torch.tanh(self.words(x) + added).mean(1))


def rows_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    found = []
    for one, label in zip(x, y, strict=True):
        parts = torch.autograd.grad(model(one[None])[0, label], list(model.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


@pytest.fixture
def fallbacks(monkeypatch):
    """Parameters that were differentiated sample by sample."""
    module, seen = sys.modules["orthocl.tangents.collect"], []
    own = module.per_sample_gradients

    def noted(model, x, y, chosen, remember):
        seen.extend(chosen)
        return own(model, x, y, chosen, remember)

    monkeypatch.setattr(module, "per_sample_gradients", noted)
    return seen


@pytest.mark.parametrize("samples", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("way", ["one row", "batch of one", "parameter", "parameter without samples"])
def test_shared_positions_are_read_off(way, samples, fallbacks):
    torch.manual_seed(0)
    model, x = Positions(way).double(), torch.randint(0, 9, (samples, 5))
    y = torch.arange(samples) % 3
    found = collect(model, x, y, parameters=dict(model.named_parameters()))
    torch.testing.assert_close(found.dense(), rows_of(model, x, y), rtol=1e-10, atol=1e-12)
    assert not fallbacks
    assert not any(name in vars(model) for name in ("shared", "forward"))
    assert [name for name, _ in model.named_parameters()] == list(found.names)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("way", ["repeated", "summed", "matrix"])
def test_where_copies_would_change_the_model_there_are_none(way, chunk, fallbacks):
    torch.manual_seed(1)
    model, x, y = Positions(way).double(), torch.randint(0, 9, (6, 5)), torch.arange(6) % 3
    with pytest.warns(UserWarning, match="'shared"):
        found = collect(model, x, y, parameters=dict(model.named_parameters()), chunk=chunk)
    torch.testing.assert_close(found.dense(), rows_of(model, x, y), rtol=1e-10, atol=1e-12)
    assert set(fallbacks) == {"shared.weight" if way == "repeated" else "shared"}


def test_as_many_positions_as_samples_in_a_later_batch(fallbacks):
    torch.manual_seed(2)
    model, x, y = Positions("one row").double(), torch.randint(0, 9, (7, 5)), torch.arange(7) % 3
    assert len(collect(model, x, y, parameters=dict(model.named_parameters())).dense()) == 7
    found = collect(model, x[:5], y[:5], parameters=dict(model.named_parameters()))  # 5 samples, 5 positions
    torch.testing.assert_close(found.dense(), rows_of(model, x[:5], y[:5]), rtol=1e-10, atol=1e-12)
    assert not fallbacks


def test_only_parameters_that_no_layer_reads_are_common():
    model = nn.Module()
    model.one, model.two = nn.Parameter(torch.zeros(1, 3)), nn.Parameter(torch.zeros(2, 3))
    model.flat, model.linear = nn.Parameter(torch.zeros(1)), nn.Linear(3, 1)
    model.inner = nn.Module()
    model.inner.tied = model.tied = nn.Parameter(torch.zeros(1, 3))
    parameters = dict(model.named_parameters())
    found = common_parameters(model, parameters, {"linear.weight"}, missing=False)
    assert [layer.names for layer in found] == [{"one": "one"}]
    found = common_parameters(model, parameters, {"linear.weight"}, missing=True)
    assert [layer.names for layer in found] == [{"one": "one"}, {"two": "two"}]


def test_a_parameter_that_cannot_be_copied_leaves_the_others_alone(fallbacks):
    torch.manual_seed(3)
    model = nn.Sequential(Positions("parameter"), nn.Linear(3, 3))
    model[0].other, model.forward = (
        nn.Parameter(torch.randn(3, 3)),
        lambda x: model[1](model[0](x) @ model[0].other),
    )
    model, x, y = model.double(), torch.randint(0, 9, (4, 5)), torch.arange(4) % 3
    with pytest.warns(UserWarning, match="'0.other'"):
        found = collect(model, x, y, parameters=dict(model.named_parameters()))
    torch.testing.assert_close(found.dense(), rows_of(model, x, y), rtol=1e-10, atol=1e-12)
    assert set(fallbacks) == {"0.other"}


@pytest.mark.parametrize("way", ["one row", "parameter without samples", "matrix"])
def test_plans_name_what_is_differentiated_sample_by_sample(way):
    model, x = Positions(way), torch.randint(0, 9, (3, 5))
    found = plan(model, x, tasks=2, memory_per_task=48)
    assert found.explicit == ({"shared": 4 * 16} if way == "matrix" else {})
    line = (
        "Differentiated sample by sample and stored whole: shared. 64 B a tangent, and about 1.5 plain steps"
    )
    assert (line in str(found)) == (way == "matrix") == (line in found._repr_html_())
