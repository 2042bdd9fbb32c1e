"""Layers of the networks people use, against one backward pass per remembered output."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.tangents import Adapter, Subspace, collect, plan
from orthocl.tangents.compress import Compression
from orthocl.tangents.layers import read, silent, supported


class SqueezeExcite(nn.Module):
    """Convolutions on maps with one position, as in squeeze-and-excite blocks and fully convolutional heads."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.down, self.up, self.head = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 8, 1), nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x))
        x = x * torch.sigmoid(self.up(torch.tanh(self.down(x.mean((2, 3), keepdim=True)))))
        return self.head(x.mean((2, 3), keepdim=True)).flatten(1)


class Experts(nn.Module):
    """Samples go to an expert each; the last one gets none."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 5) for _ in range(3))
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        choice = (x[:, 0] > 0).long()
        mixed = x.new_zeros(len(x), 5)
        for number, expert in enumerate(self.experts):
            mine = choice == number
            mixed[mine] = expert(x[mine])
        return self.head(torch.tanh(mixed))


class CrossAttention(nn.Module):
    """Attention of one sequence to another, with a causal mask in its own."""

    def __init__(self, batch_first: bool = True):
        super().__init__()
        self.own = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.cross = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=False)
        self.same_keys = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.same_values = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.head = nn.Linear(8, 3)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        length = 5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        y, _ = self.own(x, x, x, attn_mask=mask, need_weights=False)
        z, weights = self.cross(torch.tanh(y), x, x + y)
        z = z + self.same_keys(z, z, x)[0] + self.same_values(z, x, x)[0]
        pooled = (z if self.batch_first else z.transpose(0, 1)).mean(1)
        return self.head(pooled) + weights.mean((1, 2))[:, None]


class Conv1D(nn.Module):
    """Hugging Face's linear layer with a transposed weight."""

    def __init__(self, nf: int, nx: int):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = (
            nn.Parameter(torch.randn(nx, nf) / nx**0.5),
            nn.Parameter(torch.randn(nf) / 9),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class TinyGPT(nn.Module):
    """A GPT-2-like block: Conv1D projections, causal attention, learnt positions, tied input and output embeddings."""

    def __init__(self, words: int = 13, width: int = 8):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(6, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attention, self.projection = Conv1D(3 * width, width), Conv1D(width, width)
        self.wide, self.back = Conv1D(4 * width, width), Conv1D(width, 4 * width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        q, k, v = (
            part.unflatten(2, (2, -1)).transpose(1, 2) for part in self.attention(self.norm1(h)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.projection(mixed.transpose(1, 2).flatten(2))
        h = h + self.back(functional.gelu(self.wide(self.norm2(h))))
        return self.head(self.norm3(h)[:, -1])


class Recurrent(nn.Module):
    """Fused recurrent layers go through the fallback, a cell in a loop is read off."""

    def __init__(self):
        super().__init__()
        self.lstm, self.cell, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        h = states[:, 0]
        for place in range(states.shape[1]):
            h = torch.tanh(self.cell(h) + states[:, place])
        return self.head(h)


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


CASES = {
    "squeeze-excite": (SqueezeExcite, (3, 4, 4)),
    "experts": (Experts, (6,)),
    "conv1d": (
        lambda: flat(nn.Conv1d(3, 4, 3, 2, padding=1), nn.Tanh(), nn.Conv1d(4, 4, 2, dilation=2)),
        (3, 9),
    ),
    "conv3d": (
        lambda: flat(nn.Conv3d(2, 3, (2, 3, 2), (1, 2, 1), padding=(1, 1, 0)), nn.Tanh()),
        (2, 3, 4, 4),
    ),
    "transposed": (
        lambda: flat(
            nn.ConvTranspose2d(2, 3, 3, 2, padding=1, output_padding=1),
            nn.Tanh(),
            nn.ConvTranspose2d(3, 2, 2, bias=False),
        ),
        (2, 3, 4),
    ),
    "transposed 1d": (lambda: flat(nn.ConvTranspose1d(2, 3, 3, 2, dilation=2), nn.Tanh()), (2, 5)),
    "grouped": (
        lambda: flat(nn.Conv2d(4, 8, 3, groups=4), nn.Tanh(), nn.Conv2d(8, 8, 3, groups=8, bias=False)),
        (4, 7, 7),
    ),
    "attention": (CrossAttention, (5, 8)),
    "attention, sequence first": (lambda: CrossAttention(batch_first=False), (5, 8)),
    "encoder": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(40, 3)
        ),
        (5, 8),
    ),
    "gpt": (TinyGPT, None),
    "recurrent": (Recurrent, (4, 4)),
}


def make(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(4)
    build, shape = CASES[name]
    x = torch.randint(0, 13, (6, 5)) if shape is None else torch.randn(6, *shape, dtype=torch.float64)
    model = build().double()
    if name == "experts":
        x[:, 0] = x[:, 0].abs() * torch.tensor([1, -1, 1, -1, -1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(x)
    return model.eval(), x, torch.tensor([0, 1, 2, 0, 1, 2])


def jacobian(model: nn.Module, x: Tensor, y: Tensor, outputs: str = "gtl") -> Tensor:
    rows = []
    for sample, label in zip(x, y, strict=True):
        found = model(sample[None])[0]
        for output in [found[label]] if outputs == "gtl" else found[:3]:
            parts = torch.autograd.grad(
                output, list(model.parameters()), retain_graph=True, allow_unused=True
            )
            rows.append(
                torch.cat(
                    [
                        (torch.zeros_like(p) if g is None else g).flatten()
                        for g, p in zip(parts, model.parameters(), strict=True)
                    ]
                )
            )
    return torch.stack(rows)


@pytest.mark.parametrize("name", CASES)
def test_rows_and_products_are_those_of_autograd(name):
    model, x, y = make(name)
    parameters = dict(model.named_parameters())
    truth = jacobian(model, x, y)
    found = collect(model, x, y, parameters=parameters)
    torch.testing.assert_close(found.dense(), truth, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.gram(), truth @ truth.t(), rtol=1e-8, atol=1e-9)
    gradient = [torch.randn_like(p) for p in parameters.values()]
    vector = torch.cat([part.flatten() for part in gradient])
    torch.testing.assert_close(found.coefficients(gradient), truth @ vector, rtol=1e-8, atol=1e-9)
    weights = torch.randn(len(truth), dtype=torch.float64)
    combined = torch.cat([part.flatten() for part in found.combine(weights)])
    torch.testing.assert_close(combined, truth.t() @ weights, rtol=1e-8, atol=1e-9)
    rest = found.select(torch.tensor([4, 1]))
    torch.testing.assert_close(rest.dense(), truth[[4, 1]], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["grouped", "attention", "transposed", "squeeze-excite"])
def test_all_outputs(name):
    model, x, y = make(name)
    found = collect(model, x, y, parameters=dict(model.named_parameters()), variant="all")
    torch.testing.assert_close(found.dense(), jacobian(model, x, y, "all"), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_compressed_rows_are_as_far_off_as_reported(name):
    model, x, y = make(name)
    truth = jacobian(model, x, y)
    rules = Compression(energy=0.95, rows=100_000)
    found = collect(model, x, y, parameters=dict(model.named_parameters()), compression=rules)
    measured = (found.dense() - truth).norm(dim=1) / truth.norm(dim=1)
    torch.testing.assert_close(found.errors, measured, rtol=1e-4, atol=1e-6)
    assert float(measured.square().mean()) <= 0.05


@pytest.mark.parametrize("name", ["attention", "encoder"])
def test_transformers_need_no_per_sample_fallback(name, monkeypatch):
    model, x, y = make(name)

    def refuse(*_):
        raise AssertionError("the per-sample fallback was used")

    monkeypatch.setattr(sys.modules["orthocl.tangents.collect"], "per_sample_gradients", refuse)
    collect(model, x, y, parameters=dict(model.named_parameters()))
    assert "forward" not in vars(
        next((m for m in model.modules() if isinstance(m, nn.MultiheadAttention)), model)
    )


def test_embeddings_touch_few_rows():
    model = nn.Sequential(nn.Embedding(500, 4), nn.Flatten(), nn.Linear(20, 3)).double()
    x, y = torch.randint(0, 500, (6, 5)), torch.zeros(6, dtype=torch.long)
    x[0, 0] = x[0, 1] = x[1, 2]  # a word twice in a sample, and in two samples
    found = collect(model, x, y, parameters=dict(model.named_parameters()))
    assert found.blocks[0].kind == "rows"
    assert found.blocks[0].nbytes < 0.1 * 6 * 500 * 4 * 8
    truth = jacobian(model, x, y)
    torch.testing.assert_close(found.gram(), truth @ truth.t())
    again = type(found).from_state_dict(found.state_dict())
    torch.testing.assert_close(again.dense(), truth)
    both = type(found).concatenate(
        [found, collect(model, x[:, [0] * 5], y, parameters=dict(model.named_parameters()))]
    )
    assert both.blocks[0].kind == "rows"


@pytest.mark.parametrize("name", ["squeeze-excite", "encoder", "gpt", "grouped"])
def test_the_adapter_path_moves_such_layers_too(name):
    model, x, y = make(name)
    parameters = dict(model.named_parameters())
    subspace = Subspace(parameters)
    subspace.append(collect(model, x, y, parameters=parameters), 1)
    before = [p.detach().clone() for p in parameters.values()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    adapter = Adapter(model, subspace, parameters)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        adapter.step(learning_rate=0.05)
    adapter.remove()
    assert subspace.leak([p.detach() - q for p, q in zip(parameters.values(), before, strict=True)]) < 1e-10


@pytest.mark.parametrize("name", [name for name in CASES if name != "experts"])
def test_a_plan_from_shapes_stores_what_the_collection_stores(name):
    model, x, y = make(name)
    parameters = dict(model.named_parameters())
    found = plan(model, x, tasks=2, memory_per_task=3)
    real = collect(model, x, y, parameters=parameters)
    planned = sum(layer.bytes_per_row for layer in found.layers)
    assert planned == pytest.approx(real.nbytes / real.rows, rel=0.02)
    assert found.parameters == sum(p.numel() for p in parameters.values())
    assert not any(p.is_meta for p in model.parameters())


def test_models_without_memory_are_planned():
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 512, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512 * 900, 20_000))
    found = plan(model, torch.zeros(1, 3, 32, 32), tasks=10, memory_per_task=100, energy=0.99)
    assert found.costs["dense"].nbytes > 1e13
    assert found.costs["project"].nbytes < 1e-3 * found.costs["dense"].nbytes


def autograd_rows(module: nn.Module, x: Tensor, d: Tensor) -> Tensor:
    """One backward pass for each sample and each of its derivatives."""
    rows = []
    for sample, derivatives in zip(x, d, strict=True):
        for one in derivatives:
            parts = torch.autograd.grad((module(sample[None])[0] * one).sum(), list(module.parameters()))
            rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows)


READ_OFF = {
    "group norm": (lambda: nn.GroupNorm(2, 6), (6, 3, 4)),
    "batch norm": (lambda: nn.BatchNorm1d(6), (6,)),
    "batch norm of maps": (lambda: nn.BatchNorm2d(6), (6, 3, 4)),
    "batch norm of volumes": (lambda: nn.BatchNorm3d(3), (3, 2, 3, 4)),
    "layer norm": (lambda: nn.LayerNorm(6), (3, 6)),
    "layer norm of two axes": (lambda: nn.LayerNorm((3, 6)), (2, 3, 6)),
    "weights from the right": (lambda: Conv1D(5, 6), (6,)),
    "weights from the right, several positions": (lambda: Conv1D(5, 6), (3, 6)),
}


@pytest.mark.parametrize("name", READ_OFF)
def test_layers_are_read_off_without_a_fallback(name):
    torch.manual_seed(0)
    build, shape = READ_OFF[name]
    module, x = build().double().eval(), torch.randn(4, *shape, dtype=torch.float64)
    with torch.no_grad():
        for part in (*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())):
            part.add_(torch.rand_like(part))
    d = torch.randn(4, 2, *module(x).shape[1:], dtype=torch.float64)
    assert supported(module)
    blocks = read(module, {part: part for part, _ in module.named_parameters()}, x, d)
    assert [name for block in blocks for name in block.names] == [
        part for part, _ in module.named_parameters()
    ]
    torch.testing.assert_close(torch.cat([block.dense() for block in blocks], 1), autograd_rows(module, x, d))


def test_only_the_layer_of_that_name_keeps_its_weight_transposed():
    class Other(Conv1D):
        pass

    assert supported(Conv1D(5, 6))
    assert not supported(Other(5, 6))


class Silent(nn.Module):
    """A convolution that is never called, and a layer that is not, of which only the bias is protected."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear, self.last = nn.Conv1d(2, 3, 2), nn.Linear(4, 5), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x)


def test_only_linear_weights_have_zero_rows_in_no_memory():
    model = Silent().double()
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    parameters = {name: p for name, p in model.named_parameters() if name != "linear.weight"}
    found = collect(model, x, y, parameters=parameters)
    assert sorted(name for block in found.blocks for name in block.names) == sorted(parameters)
    used = {name: p.numel() for name, p in parameters.items()}
    parts = dict(zip(parameters, found.dense().split(list(used.values()), 1), strict=True))
    assert all(float(parts[name].abs().max()) == 0 for name in ("conv.weight", "conv.bias", "linear.bias"))
    torch.testing.assert_close(parts["last.bias"], torch.eye(3, dtype=torch.float64)[y])
    remembered = torch.zeros(4, 1, dtype=torch.float64)
    assert silent(model.conv, {"weight": "w", "bias": "b"}, remembered) is None
    assert silent(model.linear, {"bias": "b"}, remembered) is None
    zero = silent(model.linear, {"weight": "w", "bias": "b"}, remembered)
    assert torch.equal(zero.dense(), torch.zeros(4, 25, dtype=torch.float64))
