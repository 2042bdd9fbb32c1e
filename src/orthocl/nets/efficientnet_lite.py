"""EfficientNet-Lite0 with its ImageNet weights, as a trunk whose last layers are fine-tuned.

Reference: Tan, Le. EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. ICML 2019. The Lite
variants drop squeeze-and-excitation and use ReLU6.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.errors import SettingsError
from orthocl.streams.datasets.locate import find_verified
from orthocl.streams.datasets.pretrained import EFFICIENTNET_LITE0

# (kernel, stride, inputs, outputs) of the sixteen blocks; all but the first widen their inputs sixfold.
BLOCKS = (
    (3, 1, 32, 16),
    *((3, 2, 16, 24), (3, 1, 24, 24)),
    *((5, 2, 24, 40), (5, 1, 40, 40)),
    *((3, 2, 40, 80), (3, 1, 80, 80), (3, 1, 80, 80)),
    *((5, 1, 80, 112), (5, 1, 112, 112), (5, 1, 112, 112)),
    *((5, 2, 112, 192), (5, 1, 192, 192), (5, 1, 192, 192), (5, 1, 192, 192)),
    (3, 1, 192, 320),
)
PARTS = {
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "depthwise.0",
    "_bn1": "depthwise.1",
}
PARTS |= {"_project_conv": "project.0", "_bn2": "project.1"}
WHOLE = {"_conv_stem": "stem.0", "_bn0": "stem.1", "_conv_head": "last.0", "_bn1": "last.1", "_fc": "classes"}


class _SameConv(nn.Conv2d):
    """A convolution padded as TensorFlow pads it: what is left over goes to the right and the bottom."""

    def forward(self, x: Tensor) -> Tensor:
        pads = []
        for size, kernel, stride in zip(
            reversed(x.shape[2:]), reversed(self.kernel_size), reversed(self.stride), strict=True
        ):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(functional.pad(x, pads) if any(pads) else x)


def _layer(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    kind = nn.Conv2d if kernel == 1 else _SameConv
    convolution = kind(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, eps=1e-3))


class _Block(nn.Module):
    def __init__(self, kernel: int, stride: int, inputs: int, outputs: int, widen: int):
        super().__init__()
        hidden = inputs * widen
        if widen > 1:
            self.expand = _layer(inputs, hidden, 1)
        self.depthwise = _layer(hidden, hidden, kernel, stride, groups=hidden)
        self.project = _layer(hidden, outputs, 1)
        self.widens, self.skips = widen > 1, stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu6(self.expand(x)) if self.widens else x
        found: Tensor = self.project(functional.relu6(self.depthwise(hidden)))
        return x + found if self.skips else found


class EfficientNetLite0(nn.Module):
    """1280 features per image, or the 1000 logits of ImageNet; batch statistics stay those of ImageNet.

    Images are (samples, 1 or 3 channels, height, width), normalised with mean 0.498 and deviation 0.502 as in training;
    smaller ones are enlarged.

    Args:
        fine_tuned: how many of the last blocks are trained, besides the last convolution; all else is frozen.
        size: images smaller than this are enlarged to it.
        outputs: 1000 for the classes of ImageNet; left out for the features.
    """

    features = 1280

    def __init__(self, fine_tuned: int = 1, size: int = 64, outputs: int | None = None):
        super().__init__()
        if not 0 <= fine_tuned <= len(BLOCKS):
            raise SettingsError(f"EfficientNet-Lite0 has {len(BLOCKS)} blocks to fine-tune, got {fine_tuned}")
        if outputs not in (None, 1000):
            raise SettingsError(
                f"EfficientNet-Lite0 has the 1000 classes of ImageNet or, as a trunk for heads, its features: got "
                f"outputs={outputs}. Put it into a MultiHead"
            )
        self.size = size
        self.stem = _layer(3, 32, 3, 2)
        self.blocks = nn.ModuleList(
            _Block(*block, widen=1 if n == 0 else 6) for n, block in enumerate(BLOCKS)
        )
        self.last = _layer(320, 1280, 1)
        self.classes = nn.Linear(1280, 1000) if outputs else None
        self._load()
        trained = [*self.blocks[len(BLOCKS) - fine_tuned :], self.last]
        self.requires_grad_(False)
        for module in trained:
            for part in module.modules():
                if isinstance(part, nn.Conv2d):
                    part.requires_grad_(True)

    def _load(self) -> None:
        _, files = find_verified(EFFICIENTNET_LITE0)
        (content,) = files.values()  # its checksum is known, and it is read as tensors only
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        self.load_state_dict(_renamed(state, classes=self.classes is not None))

    def train(self, mode: bool = True) -> EfficientNetLite0:
        """Train mode for all but the batch statistics."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Features (samples, 1280), or logits."""
        x = images.expand(-1, 3, -1, -1)
        if min(x.shape[2:]) < self.size:
            x = functional.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False)
        x = functional.relu6(self.stem(x))
        for block in self.blocks:
            x = block(x)
        found = functional.relu6(self.last(x)).mean((2, 3))
        return found if self.classes is None else self.classes(found)


def _renamed(state: Mapping[str, Tensor], *, classes: bool) -> dict[str, Tensor]:
    """The published names -> those of the modules here."""
    found = {}
    for name, value in state.items():
        parts = name.split(".")
        if parts[0] == "_blocks":
            found[".".join(["blocks", parts[1], PARTS[parts[2]], *parts[3:]])] = value
        elif classes or parts[0] != "_fc":
            found[".".join([WHOLE[parts[0]], *parts[1:]])] = value
    return found
