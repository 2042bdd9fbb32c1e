"""Networks that people ask about, as shapes: they are built on torch's meta device and hold no values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return functional.relu(self.layers(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    """He et al. 2016: 25.6 M weights."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(count):
            layers.append(Bottleneck(inputs, width, stride if place == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class VisionTransformer(nn.Module):
    """ViT-B/16, Dosovitskiy et al. 2021: 86 M weights."""

    def __init__(self, width: int = 768, depth: int = 12, heads: int = 12, tokens: int = 197):
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))
        layer = [
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        ]
        self.blocks, self.norm, self.head = nn.Sequential(*layer), nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits from the first token."""
        tokens = self.cut(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.positions
        return self.head(self.norm(self.blocks(tokens))[:, 0])  # type: ignore[no-any-return]


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank path in parallel."""

    def __init__(self, width: int, rank: int):
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Base and path."""
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Attention with LoRA on queries and values, and a gated feed-forward layer."""

    def __init__(self, width: int, heads: int, hidden: int, rank: int):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.query, self.value = LowRank(width, rank), LowRank(width, rank)
        self.key, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        for module in (self.norms, self.key, self.out, self.gate, self.up, self.down):
            module.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        h = self.norms[0](x)
        parts = (
            layer(h).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k, v = parts
        x = x + self.out(
            functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        h = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A decoder of 7 B weights with LoRA r = 8 on queries and values; the last token's logits."""

    def __init__(
        self,
        words: int = 32000,
        width: int = 4096,
        depth: int = 32,
        heads: int = 32,
        hidden: int = 11008,
        rank: int = 8,
    ):
        super().__init__()
        self.words = nn.Embedding(words, width).requires_grad_(False)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads, hidden, rank) for _ in range(depth)))
        self.norm = nn.RMSNorm(width).requires_grad_(False)
        self.head = nn.Linear(width, words, bias=False).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the next word."""
        return self.head(self.norm(self.blocks(self.words(x))[:, -1]))  # type: ignore[no-any-return]


KNOWN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "ResNet-50": (resnet50, (3, 224, 224), torch.float32),
    "ViT-B/16": (VisionTransformer, (3, 224, 224), torch.float32),
    "7 B decoder, LoRA r = 8": (Decoder, (512,), torch.long),
}
"""Name -> how to build it, shape and type of one input."""


def without_numbers(name: str) -> tuple[nn.Module, Tensor]:
    """One of the networks and an input, on the meta device."""
    build, shape, dtype = KNOWN[name]
    with torch.device("meta"):
        return build(), torch.zeros(1, *shape, dtype=dtype)
