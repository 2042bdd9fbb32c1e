"""Leading directions of many long rows: exactly where they are few or short, by random projection where not.

Reference: Halko, Martinsson, Tropp. Finding Structure with Randomness. SIAM Review 2011 (the adaptive range finder).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Up to this many rows or columns the Gram matrix is decomposed; it also is where random projection begins.
EXACT = 512
FIRST_GUESS = 128


@dataclass(frozen=True)
class Spectrum:
    """Leading directions of rows B (groups, n, width), largest first.

    Args:
        values: squared singular values, (groups, j).
        vectors: directions, (groups, width, j), orthonormal.
        unresolved: energy outside of these directions, in all groups.
    """

    values: Tensor
    vectors: Tensor
    unresolved: float


def spectrum(rows: Tensor, unresolved: float) -> Spectrum:
    """The directions that hold all but `unresolved` of the energy of some rows.

    >>> rows = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    >>> found = spectrum(rows, 0.0)
    >>> [round(float(value), 4) for value in found.values[0]], found.vectors.abs()[0, :, 0].round().tolist()
    ([9.0, 2.0], [1.0, 0.0])
    """
    _, count, width = rows.shape
    total = float(rows.double().square().sum())
    guess = FIRST_GUESS
    while min(count, width) > EXACT and 2 * guess < min(count, width):
        found = _projected(rows, guess, total)
        if found.unresolved <= unresolved:
            return found
        guess *= 2
    return _exact(rows, total)


def _exact(rows: Tensor, total: float) -> Spectrum:
    _, count, width = rows.shape
    if width <= count:
        values, vectors = torch.linalg.eigh(rows.mT @ rows)
        return _sorted(values, vectors, total)
    values, combinations = torch.linalg.eigh(rows @ rows.mT)
    largest = values[:, -1:].clamp(min=1e-300 if rows.dtype == torch.float64 else 1e-30)
    alive = values > largest * torch.finfo(rows.dtype).eps * count
    lengths = torch.where(alive, values.clamp(min=0), 1.0).sqrt()
    vectors = rows.mT @ (combinations / lengths[:, None])
    return _sorted(torch.where(alive, values, 0.0), vectors, total)


def _projected(rows: Tensor, guess: int, total: float) -> Spectrum:
    generator = torch.Generator(device=rows.device).manual_seed(0)
    mixing = torch.randn(guess, rows.shape[1], generator=generator, dtype=rows.dtype, device=rows.device)
    basis = torch.linalg.qr((mixing @ rows).mT)[0]
    seen = rows @ basis
    values, inner = torch.linalg.eigh(seen.mT @ seen)
    return _sorted(values, basis @ inner, total)


def _sorted(values: Tensor, vectors: Tensor, total: float) -> Spectrum:
    values = values.flip(1).clamp(min=0)
    return Spectrum(values, vectors.flip(2), max(0.0, total - float(values.double().sum())))
