"""The classifier on AlexNet features that the CUB-200 experiments train."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import nn

from orthocl.errors import SettingsError


class BirdClassifier(nn.Sequential):
    """The classifier of the CUB-200 experiments: linear to 256, ReLU, dropout 0.5, linear to 128, ReLU.

    Without `outputs` it is a trunk for `MultiHead`: the heads are the last layer of the paper's table.

    Paper: Table "Classifier module of the architecture used for the CUB200 benchmark", on fc6 (4096) features;
    pool5 (9216) works too.

    >>> BirdClassifier((4096,)).features
    128
    """

    def __init__(
        self,
        input_shape: Sequence[int] = (4096,),
        hidden: tuple[int, int] = (256, 128),
        outputs: int | None = None,
        dropout: float = 0.5,
    ):
        if len(hidden) != 2 or min(hidden) < 1:
            raise SettingsError(
                f"the bird classifier has two hidden layers of at least one unit, got {list(hidden)}"
            )
        layers: list[nn.Module] = [
            nn.Flatten(),
            nn.Linear(prod(input_shape), hidden[0]),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
        ]
        if outputs is not None:
            layers.append(nn.Linear(hidden[1], outputs))
        super().__init__(*layers)
        self.features = hidden[1] if outputs is None else outputs
