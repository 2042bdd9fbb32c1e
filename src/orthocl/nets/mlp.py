"""The multilayer perceptron of the MNIST experiments."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from orthocl.errors import SettingsError


class MLP(nn.Sequential):
    """Flatten, then linear layers with ReLU. Without `outputs` it is a trunk: the last hidden layer is the output.

    Dropout (after each ReLU) is there even at rate 0, so that methods such as Stable SGD can set the rate.

    >>> MLP((1, 32, 32), hidden=(100, 100), outputs=10).parameter_count
    113610
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        hidden: Sequence[int] = (100, 100),
        outputs: int | None = None,
        dropout: float = 0.0,
    ):
        if not hidden or min(hidden) < 1:
            raise SettingsError(f"an MLP needs hidden layers of at least one unit, got {list(hidden)}")
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(input_shape)
        for units in hidden:
            layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(dropout)]
            width = units
        if outputs is not None:
            layers.append(nn.Linear(width, outputs))
            width = outputs
        super().__init__(*layers)
        self.features = width

    @property
    def parameter_count(self) -> int:
        """Number of weights and biases."""
        return sum(parameter.numel() for parameter in self.parameters())
