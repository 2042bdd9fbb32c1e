"""Recurrent layers written out step by step: the same outputs, and the inputs and derivatives of each weight."""

import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from orthocl.tangents import collect
from orthocl.tangents.compress import Compression
from orthocl.tangents.recurrent import readable_recurrent, watch_steps

KINDS = (nn.RNN, nn.LSTM, nn.GRU)
SETTINGS = [
    {},
    {"batch_first": True},
    {"bias": False, "num_layers": 2},
    {"bidirectional": True, "num_layers": 2, "batch_first": True},
]


def states(found):
    output, last = found
    return [
        output.data if isinstance(output, PackedSequence) else output,
        *(last if isinstance(last, tuple) else [last]),
    ]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["padded", "started", "packed", "packed in order", "packed and started"])
def test_outputs_and_last_states_are_those_of_the_layer(kind, settings, form):
    torch.manual_seed(0)
    layer = kind(3, 4, **settings).double().eval()
    first = settings.get("batch_first", False)
    x = torch.randn((5, 6, 3) if first else (6, 5, 3), dtype=torch.float64)
    lengths = torch.tensor([6, 4, 3, 2, 1] if form == "packed in order" else [3, 6, 1, 4, 2])
    if form.startswith("packed"):
        x = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=form == "packed in order")
    rows = settings.get("num_layers", 1) * (1 + settings.get("bidirectional", False))
    start = torch.randn(rows, 5, 4, dtype=torch.float64)
    given = () if not form.endswith("started") else ((start, start + 1) if kind is nn.LSTM else start,)
    expected, uses = layer(x, *given), []
    end = watch_steps(layer, uses.append)
    found = layer(x, *given)
    end()
    assert "forward" not in vars(layer)
    assert len(uses) == 2 * rows
    assert isinstance(found[1], tuple) == (kind is nn.LSTM)
    for one, two in zip(states(found), states(expected), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-13)
    if form.startswith("packed"):
        assert torch.equal(found[0].batch_sizes, expected[0].batch_sizes)
        for name in ("sorted_indices", "unsorted_indices"):
            order = getattr(expected[0], name)
            assert order is getattr(found[0], name) or torch.equal(getattr(found[0], name), order)


class Reader(nn.Module):
    """Classifies sequences, of one length or packed."""

    def __init__(self, kind, settings, packed):
        super().__init__()
        self.layer, self.packed = kind(3, 4, **settings), packed
        self.head = nn.Linear(4 * (1 + settings.get("bidirectional", False)), 3)

    def forward(self, x, lengths):
        if self.packed:
            x = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        elif not self.layer.batch_first:
            x = x.transpose(0, 1)
        _, last = self.layer(x)
        last = last[0] if isinstance(last, tuple) else last
        width = 1 + self.layer.bidirectional
        return self.head(last[-width:].transpose(0, 1).flatten(1))


def rows_of(model, x, lengths, y):
    found = []
    for row in range(len(y)):
        one = slice(row, row + 1)
        parts = torch.autograd.grad(model(x[one], lengths[one])[0, y[row]], list(model.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_tangents_are_those_of_autograd(kind, settings, packed, monkeypatch):
    def refuse(*_):
        raise AssertionError("the per-sample fallback was used")

    monkeypatch.setattr(sys.modules["orthocl.tangents.collect"], "per_sample_gradients", refuse)
    torch.manual_seed(1)
    model = Reader(kind, {**settings, "batch_first": True} if packed else settings, packed).double()
    x, y = torch.randn(5, 6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    lengths = torch.tensor([3, 6, 1, 4, 2])
    found = collect(model, (x, lengths), y, parameters=dict(model.named_parameters()))
    torch.testing.assert_close(found.dense(), rows_of(model, x, lengths, y), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_weights_are_compressed(kind):
    torch.manual_seed(2)
    model = Reader(kind, {"batch_first": True}, packed=False).double()
    x, y, lengths = torch.randn(5, 30, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1]), torch.ones(5)
    rules = Compression(energy=0.9, rows=100_000)
    found = collect(model, (x, lengths), y, parameters=dict(model.named_parameters()), compression=rules)
    kinds = {block.names[0]: block.kind for block in found.blocks}
    assert {kinds["layer.weight_ih_l0"], kinds["layer.weight_hh_l0"]} == {"compressed"}


def test_projected_states_are_differentiated_sample_by_sample():
    torch.manual_seed(3)
    model = Reader(nn.LSTM, {"batch_first": True}, packed=False)
    model.layer = nn.LSTM(3, 6, proj_size=4, batch_first=True)
    model.double()
    assert not readable_recurrent(model.layer)
    x, y, lengths = torch.randn(4, 5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0]), torch.ones(4)
    with pytest.warns(UserWarning, match=r"'layer.weight_ih_l0', .* and 2 more cannot be read"):
        found = collect(model, (x, lengths), y, parameters=dict(model.named_parameters()))
    torch.testing.assert_close(found.dense(), rows_of(model, x, lengths, y), rtol=1e-10, atol=1e-12)


def test_a_layer_that_computes_something_else_keeps_its_own_outputs():
    torch.manual_seed(4)
    layer, uses = nn.GRU(3, 4, batch_first=True), []
    own = layer.forward
    layer.forward = lambda x, hx=None: tuple(part * 2 for part in own(x, hx))
    x = torch.randn(2, 5, 3)
    expected = layer(x)[0]
    end = watch_steps(layer, uses.append)
    assert torch.equal(layer(x)[0], expected)
    assert not uses
    end()


def test_single_sequences_are_left_to_the_layer():
    layer, uses = nn.LSTM(3, 4).eval(), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = watch_steps(layer, uses.append)
        assert layer(torch.randn(5, 3))[0].shape == (5, 4)
    assert not uses
    end()
