"""Small problems and slow, obvious references that every test of the tangents is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.nets import MLP, LeNet, MultiHead


class Block(nn.Module):
    """Embedding, one transformer block (attention keeps its weights behind the layer's back), a linear head."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(x)).mean(1))


class Shared(nn.Module):
    """A layer called twice, and another used without being called."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)
        self.silent = nn.Linear(6, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.twice(torch.tanh(self.twice(x)))
        return self.last(inner) + functional.linear(x, self.silent.weight)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 6, bias=False)
        self.decoder = nn.Linear(6, 6)
        self.decoder.weight = self.encoder.weight
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.decoder(torch.tanh(self.encoder(x))))


def convolutions() -> nn.Module:
    """Groups, strides, dilation, padding modes, in-place activations; the second convolution is worth patches."""
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, padding="same", groups=2, dilation=2),
        nn.ReLU(inplace=True),
        nn.GroupNorm(2, 6),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 40, (3, 2), stride=(2, 1), padding=1, padding_mode="circular", bias=False),
        nn.ReLU(inplace=True),
        nn.MaxPool2d((1, 2)),
        nn.Conv2d(40, 40, (2, 1), stride=1, dilation=1),
        nn.BatchNorm2d(40),
        nn.Flatten(),
        nn.Linear(80, 3),
    )


@dataclass
class Problem:
    """A model in float64 with data and the parameters to protect."""

    model: nn.Module
    x: Tensor
    y: Tensor
    frozen: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    parameters: dict[str, nn.Parameter] = field(init=False)

    def __post_init__(self):
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(not name.startswith(self.frozen) if self.frozen else True)
        skipped = self.frozen + self.unprotected
        self.parameters = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if not (skipped and name.startswith(skipped))
        }

    def jacobian(self, variant: str = "gtl") -> Tensor:
        """Gradients of the remembered outputs, one backward pass each."""
        modes = [(m, m.training) for m in self.model.modules()]
        self.model.eval()
        rows = []
        for x, y in zip(self.x, self.y, strict=True):
            outputs = self.model(x[None])[0]
            chosen = {"gtl": [outputs[y]], "ave": [outputs.mean()], "all": list(outputs)}[variant]
            for output in chosen:
                found = torch.autograd.grad(
                    output, list(self.parameters.values()), retain_graph=True, allow_unused=True
                )
                rows.append(flat(found, self.parameters))
        for module, mode in modes:
            module.training = mode
        return torch.stack(rows)


def flat(gradient: Sequence[Tensor | None], parameters: Mapping[str, Tensor]) -> Tensor:
    """One vector."""
    parts = [
        torch.zeros_like(p) if g is None else g for g, p in zip(gradient, parameters.values(), strict=True)
    ]
    return torch.cat([part.reshape(-1) for part in parts])


def _images(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.randn(7, *shape, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2, 2])


def _mlp() -> Problem:
    return Problem(MLP((6,), (9, 8), 3).double(), *_images(6))


def _lenet() -> Problem:
    model = LeNet((3, 8, 8), hidden=7, outputs=3, channels=(4, 5)).double()
    model(torch.randn(20, 3, 8, 8, dtype=torch.float64))  # running statistics that are not 0 and 1
    return Problem(model, *_images(3, 8, 8))


def _heads() -> Problem:
    model = MultiHead(MLP((6,), (9, 8)), {"a": 2, "b": 3}).double()
    model.select("b")
    return Problem(model, *_images(6), unprotected=("heads",))


def _frozen() -> Problem:
    return Problem(MLP((6,), (9, 8), 3).double(), *_images(6), frozen=("1.weight", "4.bias"))


def _transformer() -> Problem:
    return Problem(Block().double(), torch.randint(0, 11, (7, 5)), torch.tensor([0, 1, 2, 0, 1, 2, 2]))


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "mlp": _mlp,
    "lenet": _lenet,
    "heads": _heads,
    "frozen": _frozen,
    "transformer": _transformer,
    "convolutions": lambda: Problem(convolutions().double(), *_images(4, 8, 8)),
    "shared": lambda: Problem(Shared().double(), *_images(6)),
    "tied": lambda: Problem(Tied().double(), *_images(6)),
    "sequence": lambda: Problem(
        nn.Sequential(
            nn.Linear(30, 40), nn.Tanh(), nn.LayerNorm(40), nn.Linear(40, 40), nn.Flatten(), nn.Linear(80, 3)
        ).double(),
        *_images(2, 30),
    ),
}


@pytest.fixture(params=list(PROBLEMS))
def problem(request: pytest.FixtureRequest) -> Problem:
    torch.manual_seed(3)
    return PROBLEMS[request.param]()


@pytest.fixture
def make_problem() -> Callable[[str], Problem]:
    def make(name: str) -> Problem:
        torch.manual_seed(3)
        return PROBLEMS[name]()

    return make


@pytest.fixture
def reject_dense() -> Callable[[Tensor, Tensor], Tensor]:
    """g minus its projection on the rows of a matrix, by singular value decomposition."""

    def reject(rows: Tensor, vector: Tensor) -> Tensor:
        _, values, basis = torch.linalg.svd(rows, full_matrices=False)
        basis = basis[values > 1e-9 * values.max()]
        return vector - basis.t() @ (basis @ vector)

    return reject
