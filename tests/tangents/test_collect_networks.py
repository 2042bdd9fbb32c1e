"""Tangents of the networks that people use, in float64, against one backward pass of autograd for each of them."""

import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.tangents import Tangents, collect
from orthocl.tangents.compress import Compression

CLASSES, WORDS, LENGTH = 3, 400, 7


class GPT(nn.Module):
    """Written by hand: positions looked up once for all samples, an embedding that is the output layer too."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, width), nn.Embedding(40, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        h = self.words(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.block(h, src_mask=mask)))


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS, n_positions=40, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    )


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=WORDS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
            max_position_embeddings=40, num_labels=CLASSES,
        )
    )  # fmt: skip


class ViT(nn.Module):
    """A class token and positions that all images share."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.first.expand(len(x), -1, -1), self.cut(x).flatten(2).transpose(1, 2)], 1)
        return self.head(self.block(tokens + self.positions)[:, 0])


class ResNetBlock(nn.Module):
    """Two convolutions with norms, and a shortcut."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1)
        self.shortcut = nn.Conv2d(3, width, 1, 2, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.two(functional.relu(self.norm1(self.one(x)), inplace=True)))
        return self.head(functional.relu(inner + self.shortcut(x)).mean((2, 3)))


class Recurrent(nn.Module):
    """Words, two recurrent layers of two directions, and the mean of their states."""

    def __init__(self, kind: type[nn.Module]):
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)
        self.layers = kind(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x))[0].mean(1))


LANGUAGE_MODELS = {"gpt by hand": GPT, "gpt2": gpt2}
NETWORKS = {
    **LANGUAGE_MODELS,
    "bert": bert,
    "vit": ViT,
    "resnet block": ResNetBlock,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
}


def logits(model: nn.Module, x: Tensor) -> Tensor:
    """(samples, classes): of a language model those of the last position."""
    found = model(x)
    found = getattr(found, "logits", found)
    return found[:, -1] if found.dim() == 3 else found


def words(model: nn.Module, x: Tensor) -> Tensor:
    found = model(x)
    return getattr(found, "logits", found)


def make(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(5)
    model = NETWORKS[name]().double()
    images = name in ("vit", "resnet block")
    x = torch.randn(6, 3, 8, 8, dtype=torch.float64) if images else torch.randint(1, WORDS, (6, LENGTH))
    model(x)  # batch statistics that are not 0 and 1
    return model.eval(), x, torch.tensor([0, 1, 2, 0, 1, 2])


def gradients(outputs: list[Tensor], model: nn.Module) -> Tensor:
    weights = list(model.parameters())
    rows = []
    for output in outputs:
        parts = torch.autograd.grad(output, weights, retain_graph=True, allow_unused=True)
        zeros = [
            torch.zeros_like(w) if part is None else part for w, part in zip(weights, parts, strict=True)
        ]
        rows.append(torch.cat([part.flatten() for part in zeros]))
    return torch.stack(rows)


def check_products(found: Tangents, truth: Tensor, model: nn.Module) -> None:
    """All that a protected step and the memory do with tangents, against the explicit matrix."""

    def same(one: Tensor, two: Tensor) -> None:
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-9)

    same(found.dense(), truth)
    same(found.gram(), truth @ truth.t())
    same(sum(block.squares() for block in found.blocks), truth.square().sum(1))
    gradient = [torch.randn_like(p) for p in model.parameters()]
    same(found.coefficients(gradient), truth @ torch.cat([part.flatten() for part in gradient]))
    weights = torch.randn(len(truth), dtype=torch.float64)
    same(torch.cat([part.flatten() for part in found.combine(weights)]), truth.t() @ weights)
    some = torch.tensor([4, 1, 1])
    part = found.select(some)
    same(part.dense(), truth[some])
    same(found.gram(part), truth @ truth[some].t())
    both = Tangents.concatenate([part, found])
    assert [block.kind for block in both.blocks] == [block.kind for block in found.blocks]
    same(both.dense(), torch.cat([truth[some], truth]))
    same(Tangents.from_state_dict(both.state_dict()).gram(part), both.dense() @ truth[some].t())


@pytest.fixture
def no_fallback(monkeypatch):
    def refuse(*_):
        raise AssertionError("a parameter was differentiated sample by sample")

    monkeypatch.setattr(sys.modules["orthocl.tangents.collect"], "per_sample_gradients", refuse)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_labels(name, chunk, no_fallback):
    model, x, y = make(name)
    truth = gradients([logits(model, one[None])[0, label] for one, label in zip(x, y, strict=True)], model)
    found = collect(model, x, y, parameters=dict(model.named_parameters()), outputs=logits, chunk=chunk)
    check_products(found, truth, model)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_words_of_a_tied_language_model(name, no_fallback):
    model, x, _ = make(name)
    y = torch.cat([x[:, 1:], torch.full((6, 1), -100)], 1)
    y[2, 1:] = -100  # fewer targets than are remembered
    parameters = dict(model.named_parameters())
    found = collect(model, x, y, parameters=parameters, outputs=words, variant="tokens", tokens=3)
    rows = []
    for one, target in zip(x, y, strict=True):
        row = words(model, one[None])[0].log_softmax(1)
        rows.append({int(place): row[place, target[place]] for place in (target >= 0).nonzero()[:, 0]})
    truth = [gradients(list(row.values()), model) for row in rows]
    for number, dense in enumerate(found.dense().split(3)):  # which positions are remembered is drawn
        alive = dense[dense.abs().sum(1) > 0]
        distances = torch.cdist(alive, truth[number])
        assert float(distances.min(1).values.max()) < 1e-9
        assert len(set(distances.argmin(1).tolist())) == len(alive) == min(3, len(truth[number]))
    check_products(found, found.dense(), model)
    tied = next(block for block in found.blocks if block.shapes[0] == (WORDS, 8))
    assert tied.kind == "summed"
    assert tied.nbytes / tied.rows < 8 * (LENGTH * (8 + 2) + WORDS + 8 + 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_compressed_tangents_are_as_far_off_as_they_say(name, no_fallback):
    model, x, y = make(name)
    truth = gradients([logits(model, one[None])[0, label] for one, label in zip(x, y, strict=True)], model)
    rules = Compression(energy=0.95, rows=100_000)
    found = collect(
        model, x, y, parameters=dict(model.named_parameters()), outputs=logits, compression=rules, chunk=4
    )
    measured = (found.dense() - truth).norm(dim=1) / truth.norm(dim=1)
    torch.testing.assert_close(found.errors, measured, rtol=1e-4, atol=1e-6)
    assert float(measured.square().mean()) <= 0.05
