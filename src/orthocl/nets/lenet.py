"""The LeNet of the Split CIFAR-100 experiments."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from orthocl.errors import SettingsError


class LeNet(nn.Sequential):
    """Two 5x5 convolutions with BatchNorm, ReLU and max-pooling, then one hidden linear layer.

    The maximum is taken before the ReLU, which changes nothing but the time: max(0, .) keeps the order.

    Without `outputs` it is a trunk for `MultiHead`. The paper says 200 hidden units, the authors' scripts 100.

    >>> LeNet((3, 32, 32), hidden=200).features
    200
    """

    def __init__(
        self,
        input_shape: Sequence[int] = (3, 32, 32),
        hidden: int = 200,
        outputs: int | None = None,
        dropout: float = 0.0,
        channels: tuple[int, int] = (20, 50),
    ):
        if len(input_shape) != 3 or min(input_shape[1:]) < 4:
            raise SettingsError(
                f"LeNet needs images (channels, height >= 4, width >= 4), got shape {tuple(input_shape)}"
            )
        if len(channels) != 2:
            raise SettingsError(
                f"channels of LeNet are two numbers, one per convolution, got {list(channels)}"
            )
        first, second = channels
        height, width = input_shape[1] // 2 // 2, input_shape[2] // 2 // 2
        layers: list[nn.Module] = [
            nn.Conv2d(input_shape[0], first, 5, padding=2),
            nn.BatchNorm2d(first),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(first, second, 5, padding=2),
            nn.BatchNorm2d(second),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(second * height * width, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
        ]
        if outputs is not None:
            layers.append(nn.Linear(hidden, outputs))
        super().__init__(*layers)
        self.features = hidden if outputs is None else outputs

    def forward(self, input: Tensor) -> Tensor:
        """The same function of images in either layout; channels last, convolutions are faster on a CPU.

        The layout is changed by plain operations, which `torch.func.vmap` can transform.
        """
        output: Tensor = super().forward(input.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))  # type: ignore[no-untyped-call]
        return output
