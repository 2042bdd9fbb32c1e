"""The tiny problem on which the conformance suite tries methods: three tasks, a network of a few units."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from orthocl.methods.base import Method
from orthocl.methods.learner import Learner
from orthocl.nets.heads import MultiHead
from orthocl.nets.mlp import MLP
from orthocl.streams.arrays import from_arrays
from orthocl.streams.base import Stream
from orthocl.training.attach import attach
from orthocl.training.loop import TrainSettings, train

SETTINGS = TrainSettings(epochs=2, batch_size=4, learning_rate=0.05, batch_norm="freeze")


def problem(
    heads: Literal["shared", "per-task"] = "shared", samples: int = 10, integer: bool = False
) -> Stream:
    """Three tasks of ten samples with three classes; with `integer` inputs, word numbers from 0 to 6."""
    generator = torch.Generator().manual_seed(7)

    def arrays() -> tuple[Tensor, Tensor]:
        inputs = torch.randn(6, samples, generator=generator).T  # not contiguous
        if integer:
            inputs = torch.randint(7, (samples, 6), generator=generator)
        return inputs, torch.arange(samples) % 3

    return from_arrays([(*arrays(), *arrays()) for _ in range(3)], heads=heads, outputs=3)


class WordModel(nn.Module):
    """Embedding, LayerNorm and a linear layer: a model for integer inputs."""

    def __init__(self, words: int = 7, size: int = 6, outputs: int = 3):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(0.0)
        self.output = nn.Linear(size, outputs)

    def forward(self, words: Tensor) -> Tensor:
        """Outputs of the mean word."""
        mean: Tensor = self.dropout(self.norm(self.embedding(words.long())).mean(1))
        outputs: Tensor = self.output(mean)
        return outputs


def model_for(stream: Stream, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A tiny network for the stream, always with the same initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        if len(stream.heads) > 1:
            return MultiHead(MLP(stream.input_shape, hidden=(5,)), stream.heads).to(dtype)
        return MLP(stream.input_shape, hidden=(5, 4), outputs=3).to(dtype)


OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=SETTINGS.learning_rate),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
    "Nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}
"""The optimizers that every method is tried with, by their names in reports."""


def attached(method: Method, model: nn.Module, optimizer: str = "SGD") -> Learner:
    """A learner with one of `OPTIMIZERS`."""
    torch.manual_seed(5)
    return attach(method, model, OPTIMIZERS[optimizer](model.parameters()), seed=0)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters and buffers."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def trained(
    method: Method,
    stream: Stream | None = None,
    model: nn.Module | None = None,
    optimizer: str = "SGD",
) -> Learner:
    """The learner after the whole stream."""
    stream = problem() if stream is None else stream
    learner = attached(method, model_for(stream) if model is None else model, optimizer)
    train(learner, stream, SETTINGS, seed=0)
    return learner
