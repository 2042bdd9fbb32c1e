"""How tasks overlap in the space of tangents, and how that space turns while tasks are learnt.

Reference: Doan, Abbana Bennani, Mazoure, Rabusseau, Alquier: A theoretical analysis of catastrophic forgetting through
the NTK overlap matrix. AISTATS 2021. With phi(X) = U S V^T for each task the overlap matrix of two tasks is
V_1^T V_2; its singular values are the cosines of the principal angles between the tasks' tangent spaces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthocl.checking import checked
from orthocl.errors import DataError, SettingsError
from orthocl.streams.base import Task
from orthocl.tangents import Tangents
from orthocl.theory.forecast import Reader
from orthocl.theory.points import real_numbers

Snapshot = Mapping[str, Tensor]
"""A model's state dict."""


@checked()
def principal_cosines(own: Tensor, cross: Tensor, other: Tensor, energy: float = 1.0) -> Tensor:
    """Cosines of the principal angles between two spans, largest first, from inner products alone.

    With K = W L W^T the directions V = phi^T W L^(-1/2) are orthonormal, so V_1^T V_2 = L_1^(-1/2) W_1^T K_12 W_2
    L_2^(-1/2).

    Args:
        own: K_1, inner products of the first rows.
        cross: K_12.
        other: K_2.
        energy: keep the leading directions that hold this share of the squared length of each.

    >>> principal_cosines(torch.eye(2), torch.tensor([[1.0], [0.0]]), torch.eye(1))
    tensor([1.], dtype=torch.float64)
    """
    if not 0 < energy <= 1:
        raise SettingsError(f"expected 0 < energy <= 1, got {energy}")
    own, cross, other = (real_numbers(part, "inner products") for part in (own, cross, other))
    if (
        own.ndim != 2
        or other.ndim != 2
        or own.shape != cross.shape[:1] * 2
        or other.shape != cross.shape[1:] * 2
    ):
        raise DataError(
            f"expected inner products of n, of n and m, and of m rows, got the shapes {tuple(own.shape)}, "
            f"{tuple(cross.shape)} and {tuple(other.shape)}"
        )
    left, right = _whitened(own, energy), _whitened(other, energy)
    cosines: Tensor = torch.linalg.svdvals(left.T @ cross @ right)
    return cosines.clamp(0, 1)


def _whitened(gram: Tensor, energy: float) -> Tensor:
    values, vectors = torch.linalg.eigh(gram)
    values, vectors = values.flip(0), vectors.flip(1)
    kept = values > 1e-10 * float(values[0].clamp_min(1e-300))
    if energy < 1:
        before = values.clamp_min(0).cumsum(0) - values.clamp_min(0)
        kept &= before < energy * float(values.clamp_min(0).sum())
    whitened: Tensor = vectors[:, kept] / values[kept].sqrt()
    return whitened


@checked()
def overlap(tangents: Sequence[Tangents], energy: float = 0.99) -> Tensor:
    """The overlap of every pair of tasks: the mean squared cosine of the principal angles, in [0, 1].

    1 on the diagonal; between spaces of different dimension the mean is over the smaller one.

    Args:
        tangents: of each task, at the same weights.
        energy: share of the squared length that the leading directions of each task hold.
    """
    grams = [each.gram() for each in tangents]
    table = torch.eye(len(tangents), dtype=torch.float64)
    for i, first in enumerate(tangents):
        for j in range(i):
            cosines = principal_cosines(grams[i], first.gram(tangents[j]), grams[j], energy)
            table[i, j] = table[j, i] = float(cosines.square().mean()) if len(cosines) else 0.0
    return table


@dataclass(frozen=True)
class TangentDrift:
    """How the tangents of each task's samples turn and grow as further tasks are learnt.

    Args:
        cosine: (T, T); entry (tau, t) is the mean cosine between the tangents of task tau's samples after task tau
            and after task t >= tau; nan before.
        growth: likewise, the ratio of their root mean squared lengths.
    """

    cosine: Tensor
    growth: Tensor


@checked()
def tangent_drift(
    model: nn.Module,
    snapshots: Sequence[Snapshot],
    tasks: Sequence[Task],
    samples: int = 100,
    chunk: int = 256,
) -> TangentDrift:
    """The drift of tangents at every switch of tasks; cosines of 1 are the NTK regime.

    Args:
        model: the network; its weights are restored afterwards.
        snapshots: state dicts at initialisation and after each task, T + 1 of them.
        tasks: the tasks.
        samples: per task; the tangent of the label's logit of each.
        chunk: samples per forward pass.
    """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count = len(tasks)
    cosine = torch.full((count, count), math.nan, dtype=torch.float64)
    growth = cosine.clone()
    reader = Reader(model, samples, chunk)
    own: list[Tangents] = []
    try:
        for number in range(1, count + 1):
            model.load_state_dict(snapshots[number])
            now = [reader.tangents(task, every=False) for task in tasks[:number]]
            own.append(now[-1])
            for place, (then, later) in enumerate(zip(own, now, strict=True)):
                cosine[place, number - 1], growth[place, number - 1] = turned(then, later)
    finally:
        model.load_state_dict(before)
    return TangentDrift(cosine, growth)


def turned(then: Tangents, now: Tangents) -> tuple[float, float]:
    """The mean cosine between tangents of the same points at two weights, and the ratio of their lengths."""
    lengths, news = then.gram().diagonal(), now.gram().diagonal()
    cosines = then.gram(now).diagonal() / (lengths * news).sqrt().clamp_min(1e-300)
    return float(cosines.mean()), math.sqrt(float(news.mean()) / max(float(lengths.mean()), 1e-300))
