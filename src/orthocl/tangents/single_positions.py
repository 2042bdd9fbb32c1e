"""Derivatives of layers that each remembered output sees at one position, such as a language model's output layer.

A batch of n sequences of L positions then has n derivatives of one position each, not of L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from orthocl.tangents.attention import Use


@dataclass(frozen=True)
class AtOnePosition:
    """A derivative (n, L, o) that is zero but for one position of each sample: (n,) and (n, o)."""

    place: Tensor
    values: Tensor
    positions: int

    def whole(self) -> Tensor:
        """With all positions."""
        found = self.values.new_zeros(len(self.values), self.positions, self.values.shape[1])
        found[torch.arange(len(found), device=found.device), self.place] = self.values
        return found


Derivative = Tensor | AtOnePosition


def at_one_position(d: Tensor) -> Derivative:
    """A derivative (n, L, o), as one of single positions if it is one.

    >>> at_one_position(torch.tensor([[[0.0], [2.0]], [[3.0], [0.0]]])).place
    tensor([1, 0])
    >>> at_one_position(torch.ones(1, 2, 1)).shape
    torch.Size([1, 2, 1])
    """
    if d.is_meta:
        place = torch.zeros(len(d), dtype=torch.long, device=d.device)
        return AtOnePosition(place, d[:, 0], d.shape[1])
    used = (d != 0).any(2)
    if int(used.sum(1).max()) > 1:
        return d
    place = used.int().argmax(1)
    return AtOnePosition(place, d[torch.arange(len(d), device=d.device), place], d.shape[1])


def stacked(use: Use, columns: Sequence[Derivative]) -> tuple[Use, Tensor]:
    """A use and its derivatives (n, k, ...) by k outputs, or n k uses with one derivative of one position each."""
    single = [column for column in columns if isinstance(column, AtOnePosition)]
    if len(single) < len(columns):
        whole = [column.whole() if isinstance(column, AtOnePosition) else column for column in columns]
        return use, whole[0][:, None] if len(whole) == 1 else torch.stack(whole, 1)
    place = torch.stack([column.place for column in single], 1)
    samples = torch.arange(len(place), device=place.device)[:, None]
    x = use.x[samples, place].flatten(0, 1)
    return replace(use, x=x), torch.stack([column.values for column in single], 1).flatten(0, 1)[:, None]
