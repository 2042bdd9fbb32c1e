"""AlexNet up to the layer whose features the CUB-200 experiments use."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from orthocl.errors import SettingsError, unknown_name

LAYERS = {"pool5": 9216, "fc6": 4096}


class AlexNet(nn.Module):
    """The frozen AlexNet: images (batch, 3, 224, 224) to pool5 (9216) or fc6 (4096) features.

    The modules are those of torchvision's AlexNet, in eval mode and under its names, so that its weights fit.
    fc6 ends with the ReLU (torchvision's `classifier[:4]`), as in the authors' experiments.

    >>> AlexNet("pool5").features
    9216
    """

    def __init__(self, layer: str = "fc6"):
        super().__init__()
        if layer not in LAYERS:
            raise unknown_name("layer of AlexNet", layer, LAYERS)
        self.layer = layer
        self.features = LAYERS[layer]
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2),
            nn.AdaptiveAvgPool2d(6),
            nn.Flatten(),
        )
        self.fc6 = (
            nn.Sequential(nn.Linear(9216, 4096), nn.ReLU(inplace=True)) if layer == "fc6" else nn.Identity()
        )
        self.requires_grad_(False)
        self.eval()

    @classmethod
    def from_torchvision(cls, weights: Mapping[str, Tensor], layer: str) -> AlexNet:
        """The network with weights under torchvision's names (`features.0.weight`, `classifier.1.weight`, ...).

        Args:
            weights: by name; those of later layers are not used.
            layer: "pool5" or "fc6".
        """
        network = cls(layer)
        state = {}
        for name in network.state_dict():
            module, _, rest = name.partition(".")
            given = (
                f"features.{rest}" if module == "convolutions" else f"classifier.1.{rest.partition('.')[2]}"
            )
            if given not in weights:
                raise SettingsError(f"AlexNet up to {layer} needs {given!r}, which the weights do not hold")
            state[name] = weights[given]
        network.load_state_dict(state)
        return network

    def forward(self, images: Tensor) -> Tensor:
        """Features of normalised images."""
        output: Tensor = self.fc6(self.convolutions(images))
        return output
