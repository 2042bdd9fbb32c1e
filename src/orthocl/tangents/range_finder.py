"""Leading directions of many long rows: exactly where they are few or short, by random projection where not.

Reference: Halko, Martinsson, Tropp. Finding Structure with Randomness. SIAM Review 2011 (the adaptive range finder).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Up to this many rows or columns the Gram matrix is decomposed; beyond it random projection begins, unless told sooner.
EXACT = 1024
FIRST_GUESS = 128
# Single precision where at least this share of the energy may stay unresolved anyway.
COARSE = 1e-4


@dataclass(frozen=True)
class Spectrum:
    """Leading directions of rows B (groups, n, width), largest first.

    Args:
        values: squared singular values, (groups, j).
        vectors: directions, (groups, width, j), orthonormal.
        unresolved: energy outside these directions, in all groups.
    """

    values: Tensor
    vectors: Tensor
    unresolved: float


def spectrum(rows: Tensor, unresolved: float, exact: int = EXACT) -> Spectrum:
    """The directions that hold all but `unresolved` of the energy of some rows.

    Args:
        rows: (groups, n, width).
        unresolved: energy that may stay outside them.
        exact: up to this many rows or columns the Gram matrix is decomposed.

    >>> rows = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    >>> found = spectrum(rows, 0.0)
    >>> [round(float(value), 4) for value in found.values[0]], found.vectors.abs()[0, :, 0].round().tolist()
    ([9.0, 2.0], [1.0, 0.0])
    """
    _, count, width = rows.shape
    energy, fewer = _energy(rows), min(count, width)
    if fewer > max(exact, 2 * FIRST_GUESS):
        found = _projected(rows, energy, unresolved, fewer // 2)
        if found is not None:
            return found
    return _exact(rows, coarse=unresolved >= COARSE * energy)


def _exact(rows: Tensor, coarse: bool) -> Spectrum:
    """From the smaller Gram matrix, in float64 where directions that count are below float32's rounding."""
    _, count, width = rows.shape
    if width <= count:
        accurate = rows if coarse else rows.double()
        values, vectors = torch.linalg.eigh(accurate.mT @ accurate)
        return _sorted(values.double(), vectors.to(rows.dtype))
    accurate = rows.double()  # always: the directions are divided by their lengths
    values, combinations = torch.linalg.eigh(accurate @ accurate.mT)
    alive = values > values[:, -1:] * torch.finfo(torch.float64).eps * count
    lengths = torch.where(alive, values.clamp(min=0), 1.0).sqrt()
    vectors = accurate.mT @ (combinations / lengths[:, None])
    return _sorted(torch.where(alive, values, 0.0), vectors.to(rows.dtype))


def _projected(rows: Tensor, energy: float, unresolved: float, most: int) -> Spectrum | None:
    """From random combinations of the rows, more and more of them; None where fewer than `most` are not enough."""
    generator = torch.Generator(device=rows.device).manual_seed(0)
    basis, seen = rows[:, :0].mT, rows[:, :, :0]
    left, guess = energy, FIRST_GUESS
    while left > unresolved:
        if guess >= most:
            return None
        more = guess - basis.shape[2]
        mixing = torch.randn(more, rows.shape[1], generator=generator, dtype=rows.dtype, device=rows.device)
        new = mixing @ rows - (mixing @ seen) @ basis.mT
        new = torch.linalg.qr(new.mT - basis @ (basis.mT @ new.mT))[
            0
        ]  # what rounding left inside, removed too
        basis, seen = torch.cat([basis, new], 2), torch.cat([seen, rows @ new], 2)
        left, guess = max(0.0, energy - _energy(seen)), 2 * guess
    values, inner = torch.linalg.eigh((seen.mT @ seen).double())
    return _sorted(values, basis @ inner.to(rows.dtype), left)


def _energy(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dtype=torch.float64)) ** 2


def _sorted(values: Tensor, vectors: Tensor, unresolved: float = 0.0) -> Spectrum:
    return Spectrum(values.flip(1).clamp(min=0), vectors.flip(2), unresolved)
