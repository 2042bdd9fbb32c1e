"""Compressed OGD on the networks people use: step, memory and collection against plain training.

All times are medians of CPU time of one thread; the ways of one network take their steps in turn within one run, so
read the ratios. Data are random but of low rank, as images are; the network is trained on them for a few steps before
tangents are taken, because those of an untrained network have flat spectra that no real one has. The lines minilm and
minilm-lora are a pretrained network on real texts (docs/fine-tuning.md says where they come from).

    python benchmarks/compressed.py                     all lines (about 40 minutes, 16 GB)
    python benchmarks/compressed.py --network vit       one: resnet18, vit, bert, lstm, lora, minilm, minilm-lora
    python benchmarks/compressed.py --quick             small versions, a minute
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from orthocl import streams
from orthocl.errors import OrthoclError
from orthocl.formatting import size_text
from orthocl.methods import OGD, SGD
from orthocl.nets.minilm import MiniLM
from orthocl.streams.arrays import TensorSplit
from orthocl.training import attach

BATCH = 32
console = Console(width=120)


class Basic(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.one = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.one(x)))
        return functional.relu(self.norm2(self.two(inner)) + self.shortcut(x))


def resnet18(width: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for factor, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
        layers += [Basic(inputs, factor * width, stride), Basic(factor * width, factor * width, 1)]
        inputs = factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class ViT(nn.Module):
    """64 patches of a 32 x 32 image and one more token."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 65, width) / 50)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, 3, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            )
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = torch.cat([self.first.expand(len(x), -1, -1), self.cut(x).flatten(2).transpose(1, 2)], 1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])


class Encoder(nn.Module):
    """BERT-mini: 4 layers of 256, 32 tokens of a vocabulary of 3,000."""

    def __init__(self, width: int, depth: int, words: int = 3000):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Parameter(torch.randn(1, 32, width) / 50)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True)
                for _ in range(depth)
            )
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(x) + self.positions)[:, 0])


class Reader(nn.Module):
    """Words, an LSTM and a linear head."""

    def __init__(self, width: int, words: int = 3000):
        super().__init__()
        self.words, self.layer = nn.Embedding(words, width), nn.LSTM(width, 2 * width, batch_first=True)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.words(x))[0][:, -1])


class LowRank(nn.Module):
    """A frozen linear layer with a trained path of rank 8."""

    def __init__(self, base: nn.Linear, rank: int = 8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def lora(model: Encoder) -> nn.Module:
    """LoRA on the feed-forward layers; everything else frozen."""
    model.requires_grad_(False)
    for block in model.blocks:
        block.linear1, block.linear2 = LowRank(block.linear1), LowRank(block.linear2)
    return model


@dataclass
class Case:
    """A network with a memory."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], Tensor]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    tasks: int
    memory: int


def images(count: int, generator: torch.Generator) -> Tensor:
    shapes = torch.randn(20, 3, 8, 8, generator=generator)
    mixed = torch.einsum("nk,kchw->nchw", torch.randn(count, 20, generator=generator), shapes) / 4
    return functional.interpolate(mixed, scale_factor=4) + 0.1 * torch.randn(
        count, 3, 32, 32, generator=generator
    )


def texts(count: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(count, 32, generator=generator) ** 3 * 3000).long()  # few words are frequent


def real_texts(count: int, generator: torch.Generator) -> Tensor:
    stream = streams.make(
        "text-stream", train_size=500, test_size=2, options={"order": ["ag-news", "sst-2", "qqp"]}
    )
    tokens = torch.cat([task.train.samples()[0] for task in stream])
    return tokens[torch.randperm(len(tokens), generator=generator)[:count]]


def minilm(rank: int) -> nn.Module:
    return nn.Sequential(MiniLM(rank), nn.Linear(MiniLM.features, 10))


def plain(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def adamw_of_adapters(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def cases(quick: bool) -> dict[str, Case]:
    """The lines of the table, or small versions of them."""
    tasks, memory = (2, 10) if quick else (5, 100)
    width = 16 if quick else 64
    bert = (64, 2) if quick else (256, 4)
    return {
        "resnet18": Case(lambda: resnet18(width), images, plain, tasks, memory),
        "vit": Case(lambda: ViT(*((48, 2) if quick else (192, 6))), images, plain, tasks, memory),
        "bert": Case(lambda: Encoder(*bert), texts, adamw, 2, 10 if quick else 100),
        "lstm": Case(lambda: Reader(32 if quick else 128), texts, adamw, 2, 10 if quick else 100),
        "lora": Case(lambda: lora(Encoder(*bert)), texts, adamw, 2, 20 if quick else 500),
        "minilm": Case(lambda: minilm(0), real_texts, adamw, 2, 5 if quick else 100),
        "minilm-lora": Case(lambda: minilm(8), real_texts, adamw_of_adapters, 2, 20 if quick else 500),
    }


def seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def measure(case: Case, energies: list[float], repeats: int, storage: str | None) -> list[list[str]]:
    """Rows of the table: step / plain step, memory / dense, collecting 100 tangents / plain steps, errors."""
    generator = torch.Generator().manual_seed(0)
    count = max(200, case.memory)
    data = [
        TensorSplit(case.inputs(count, generator), torch.randint(10, (count,), generator=generator))
        for _ in range(case.tasks + 1)
    ]
    learners = {}
    for energy in [None, *energies]:
        torch.manual_seed(0)
        model = case.make()
        method = SGD() if energy is None else OGD(memory_per_task=case.memory, energy=energy, storage=storage)
        trained = [p for p in model.parameters() if p.requires_grad]
        learners[energy] = attach(method, model, case.optimizer(trained))

    def step(learner, split: TensorSplit, place: int) -> None:
        x, y = split.samples(torch.arange(place * BATCH, (place + 1) * BATCH) % len(split))
        learner.optimizer.zero_grad()
        learner.loss(learner.model(x), y).backward()
        learner.optimizer.step()

    collecting: dict[float | None, float] = {}
    for energy, learner in learners.items():
        for split in data[:-1]:
            with learner.learning(split):
                for place in range(5):
                    step(learner, split, place)
                started = time.process_time()
            collecting[energy] = time.process_time() - started
    contexts = [learner.learning(data[-1]) for learner in learners.values()]
    for context in contexts:
        context.__enter__()
    times: dict[float | None, list[float]] = {energy: [] for energy in learners}
    for place in range(repeats + 1):
        for energy, learner in learners.items():
            took = seconds(lambda learner=learner, place=place: step(learner, data[-1], place))
            if place:  # the first step is warm-up
                times[energy].append(took)
    base = median(times[None])
    rows = []
    for energy in energies:
        subspace = learners[energy].method.subspace
        weights = sum(p.numel() for p in learners[energy].parameters.values())
        dense = 4 * weights * subspace.size
        rows.append(
            [
                f"{energy}", f"{subspace.size}", f"{1e3 * base:.0f} ms", f"{median(times[energy]) / base:.2f}",
                f"{size_text(subspace.nbytes)}", f"{subspace.nbytes / dense:.1%}",
                f"{(collecting[energy] - collecting[None]) / base * 100 / case.memory:.0f}",
                f"{float(subspace.errors.mean()):.3f} / {float(subspace.errors.max()):.3f}",
            ]
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--network", action="append", help="resnet18, vit, bert, lstm or lora; by default all"
    )
    parser.add_argument("--energy", action="append", type=float, help="share kept; by default 0.99 and 0.999")
    parser.add_argument("--storage", help="type of the cores: bfloat16 takes half of the bytes")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "network", "energy", "m", "plain step", "x plain", "memory", "of dense", "steps per 100 tangents", "error",
        box=None, pad_edge=False,
    )  # fmt: skip
    found = cases(options.quick)
    for name in options.network or found:
        try:
            rows = measure(found[name], options.energy or [0.99, 0.999], options.repeats, options.storage)
        except OrthoclError as error:  # no pretrained network here
            console.print(f"{name} is left out: {error}", highlight=False)
            continue
        for row in rows:
            table.add_row(name, *row)
    console.print(table)


if __name__ == "__main__":
    main()
