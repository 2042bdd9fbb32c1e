"""Drift: how far the stored tangents are from the current ones.

Paper: section 6. OGD protects the outputs as linearised when each task ended; as the network moves, stored tangents
protect the current outputs less and less. OGD+ recomputes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from orthocl.errors import DataError
from orthocl.tangents.subspace import Subspace
from orthocl.tangents.tangents import Tangents

PROBES = 10
"""Samples of a task whose tangents are kept apart, to measure their drift."""
PROBE_BYTES = 2**24
"""Bytes that the copies of a task's probes may take: if tangents are large, fewer are kept."""


def probe_count(samples: int, nbytes: int) -> int:
    """How many of a task's samples are probes, if the tangents of all take so many bytes."""
    return max(1, min(PROBES, samples, PROBE_BYTES * samples // max(1, nbytes)))


@dataclass(frozen=True)
class Drift:
    """Means over the rows. Without drift: cosine 1, relative norm 1, outside 0.

    Args:
        cosine: of the angle between a stored tangent and the current one.
        relative_norm: norm of the current tangent / norm of the stored one.
        outside: norm of the part of the current tangent outside the stored span / its norm: what is unprotected.
    """

    cosine: float
    relative_norm: float
    outside: float


def drift(stored: Tangents, current: Tangents, subspace: Subspace) -> Drift:
    """Compare stored tangents with those of the same outputs at the current weights.

    Args:
        stored: tangents as they were remembered.
        current: tangents of the same rows now.
        subspace: what is protected.
    """
    return drifts([stored], [current], subspace)[0]


def drifts(stored: Sequence[Tangents], current: Sequence[Tangents], subspace: Subspace) -> list[Drift]:
    """Compare stored tangents of several tasks with those of the same outputs at the current weights.

    Args:
        stored: for each task tangents as they were remembered.
        current: tangents of the same rows now.
        subspace: what is protected.
    """
    for before, now in zip(stored, current, strict=True):
        if before.rows != now.rows:
            raise DataError(f"expected the same outputs then and now, got {before.rows} and {now.rows} rows")
    # All of them together: one product with all that is stored, and one solve.
    together = subspace.squares_inside(Tangents.concatenate(current)).split([now.rows for now in current])
    return [_drift(*three) for three in zip(stored, current, together, strict=True)]


def _drift(stored: Tangents, current: Tangents, inside: Tensor) -> Drift:
    before, now = stored.gram().diagonal(), current.gram().diagonal()
    both = stored.gram(current).diagonal()
    tiny = 1e-300
    return Drift(
        cosine=float((both / (before * now).sqrt().clamp(min=tiny)).mean()),
        relative_norm=float((now / before.clamp(min=tiny)).sqrt().mean()),
        outside=float((1 - inside / now.clamp(min=tiny)).clamp(min=0).sqrt().mean()),
    )
