"""The second task is a rotation of the first: forgetting of SGD.

References: Goldfarb and Hand: Analysis of Catastrophic Forgetting for Random Orthogonal Transformation Tasks in the
Overparameterized Regime, AISTATS 2023. Goldfarb, Evron, Weinberger, Soudry and Hand: The Joint Effect of Task
Similarity and Overparameterization on Catastrophic Forgetting, ICLR 2024 (rotations of some of the dimensions). The
expressions below were derived independently, for inputs with equal singular values.

Derivation. Task 1 is (X, X w*), task 2 is (X O, X w*): the same samples seen through a rotation. With Pi the projector
on the d rows of X and w_1 = v = Pi w*, task 2 ends at w_2 with w_2 - v = O^T Pi (I - O) v, and task 1 then errs by
Pi O^T Pi (I - O) v. Let O rotate a uniformly random m-dimensional subspace with basis U by a uniformly random R in
O(m): O = I - U U^T + U R U^T. With G = U^T Pi U, averaging over R (odd moments vanish; E[R^T G R .. R^T G R] has two
coefficients A, B with A m^2 + 2 B m = (tr G)^2 and A m + B (m^2 + m) = tr G^2) and over the direction of v:
    d E = tr G^2 (I - G)^2 - (2/m) tr G tr G^2 (I - G) + (A + B) tr G^2 + B (tr G)^2
          + (1/m) tr G tr G (I - G)^2 + (1/m) tr G tr G^3 - (2/m) tr G^3 (I - G).
For m = p, G = Pi in a rotated basis and tr G^k = d: exact. For m < p the traces are taken from the limit law of G's
spectrum (Wachter), with an error of order 1/p.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import integrate

from orthocl.errors import SettingsError


def rotation_forgetting(rank: int, parameters: int) -> float:
    """E of the squared error on task 1, in units of ||v||^2, when task 2 is a full random rotation of it.

    Args:
        rank: d, of the inputs.
        parameters: p.

    >>> rotation_forgetting(rank=100, parameters=100)
    2.0
    """
    d, p = _checked(rank, parameters)
    return _forgetting(d, p, p, lambda power: float(d))


def partial_rotation_forgetting(rank: int, parameters: int, rotated: int) -> float:
    """The same when only `rotated` of the p dimensions are, up to an error of order 1/p.

    >>> abs(partial_rotation_forgetting(40, 200, 200) - rotation_forgetting(40, 200)) < 1e-9
    True
    """
    d, p = _checked(rank, parameters)
    if not 0 <= rotated <= p:
        raise SettingsError(f"expected between 0 and {p} rotated dimensions, got {rotated}")
    if rotated == 0:
        return 0.0
    if rotated == p:
        return rotation_forgetting(rank, parameters)
    return _forgetting(d, rotated, p, _limit_traces(d / p, rotated / p, p))


def _checked(rank: int, parameters: int) -> tuple[int, int]:
    if not 1 <= rank <= parameters or parameters < 2:
        raise SettingsError(f"expected 1 <= rank <= parameters, got {rank} and {parameters}")
    return rank, parameters


def _forgetting(d: int, m: int, p: int, trace: Callable[[int], float]) -> float:
    one, two, three, four = (trace(power) for power in (1, 2, 3, 4))
    second = (two * m - one**2) / (m * (m - 1) * (m + 2)) if m > 1 else 0.0
    first = (one**2 - 2 * second * m) / m**2
    total = (
        (two - 2 * three + four)
        - 2 / m * one * (two - three)
        + (first + second) * two
        + second * one**2
        + one / m * (one - 2 * two + three)
        + one / m * three
        - 2 / m * (three - four)
    )
    return total / d


def _limit_traces(a: float, b: float, p: int) -> Callable[[int], float]:
    """Tr G^k by the limit law of the product of two free projectors of traces a and b."""
    middle, half = a * (1 - b) + b * (1 - a), 2 * math.sqrt(a * b * (1 - a) * (1 - b))
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    atom = max(0.0, a + b - 1)

    def trace(power: int) -> float:
        # x = middle + half cos(angle) takes the square roots at the edges out of the integrand.
        def inner(angle: float) -> float:
            x = (low + high) / 2 + (high - low) / 2 * math.cos(angle)
            width = (high - low) / 2 * math.sin(angle)
            return x**power * width**2 / (2 * math.pi * max(x * (1 - x), 1e-300))

        value, _ = integrate.quad(inner, 0, math.pi, limit=200)
        return p * (float(value) + atom)

    return trace
