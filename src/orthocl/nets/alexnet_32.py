"""The AlexNet for images of 32 x 32 in which projection methods are usually compared on Split CIFAR-100."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthocl.errors import SettingsError

CONVOLUTIONS = ((64, 4), (128, 3), (256, 2))
"""Channels and size of the kernels, each followed by BatchNorm, ReLU, dropout and max-pooling by 2."""
DROPOUT = (0.2, 0.2, 0.5, 0.5, 0.5)


class AlexNet32(nn.Sequential):
    """Three convolutions and two hidden linear layers, without biases, each with BatchNorm and dropout.

    Reference: Serra et al. (HAT, 2018); with BatchNorm in Saha, Garg, Roy (GPM, 2021).

    Args:
        input_shape: channels, height and width.
        hidden: units of the two linear layers.
        outputs: of a last layer; without it this is a trunk for `MultiHead`.
        batch_statistics: normalise by the statistics of the current batch also in tests, as in GPM's experiments. A
            sample's outputs then depend on its neighbours, so it has no tangent of its own: not for OGD.

    >>> sum(p.numel() for p in AlexNet32().parameters())
    6508416
    """

    def __init__(
        self,
        input_shape: Sequence[int] = (3, 32, 32),
        hidden: tuple[int, int] = (2048, 2048),
        outputs: int | None = None,
        batch_statistics: bool = False,
    ):
        if len(input_shape) != 3 or min(input_shape[1:]) < 17:
            raise SettingsError(
                f"alexnet-32 needs images (channels, height >= 17, width >= 17), got shape {tuple(input_shape)}"
            )
        layers: list[nn.Module] = []
        kept = {"track_running_stats": not batch_statistics}
        channels, height, width = input_shape
        for (filters, size), dropout in zip(CONVOLUTIONS, DROPOUT, strict=False):
            layers += [
                nn.Conv2d(channels, filters, size, bias=False),
                nn.BatchNorm2d(filters, **kept),
                nn.ReLU(),
            ]
            layers += [nn.Dropout(dropout), nn.MaxPool2d(2)]
            channels, height, width = filters, (height - size + 1) // 2, (width - size + 1) // 2
        layers.append(nn.Flatten())
        features = channels * height * width
        for units, dropout in zip(hidden, DROPOUT[len(CONVOLUTIONS) :], strict=True):
            layers += [nn.Linear(features, units, bias=False), nn.BatchNorm1d(units, **kept), nn.ReLU()]
            layers.append(nn.Dropout(dropout))
            features = units
        if outputs is not None:
            layers.append(nn.Linear(features, outputs, bias=False))
        super().__init__(*layers)
        self.features = features if outputs is None else outputs
