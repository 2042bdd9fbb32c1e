"""The second task is a rotation of the first: forgetting of SGD.

References: Goldfarb and Hand: Analysis of Catastrophic Forgetting for Random Orthogonal Transformation Tasks in the
Overparameterized Regime, AISTATS 2023. Goldfarb, Evron, Weinberger, Soudry and Hand: The Joint Effect of Task
Similarity and Overparameterization on Catastrophic Forgetting, ICLR 2024 (rotations of some of the dimensions). The
expressions below were derived independently, and are exact for any number of dimensions.

Derivation. Task 1 is (X, X w*), task 2 is (X O, X w*): the same samples seen through a rotation. With Pi the projector
on the d rows of X and w_1 = v = Pi w*, task 2 ends at w_2 with w_2 - v = O^T Pi (I - O) v, and task 1 then errs by
X O^T Pi (I - O) v. This grows with every singular value of X, so that among all X of norm 1 and rank d the one with
singular values of 1 forgets most; for that one, the law of O makes the expectation the same for every v. Let O rotate
a uniformly random m-dimensional subspace with basis U by a uniformly random R in O(m): O = I - U U^T + U R U^T. With
G = U^T Pi U, averaging over R (odd moments vanish; E[R^T G R .. R^T G R] has two coefficients A, B with
A m^2 + 2 B m = (tr G)^2 and A m + B (m^2 + m) = tr G^2) and over the direction of v:
    d E = tr G^2 (I - G)^2 - (2/m) tr G tr G^2 (I - G) + (A + B) tr G^2 + B (tr G)^2
          + (1/m) tr G tr G (I - G)^2 + (1/m) tr G tr G^3 - (2/m) tr G^3 (I - G).
G has the law of a matrix-variate beta, whose zonal polynomials have the expectations
    E Z_k(G) = (d/2)_k / (p/2)_k Z_k(I_m),   (a)_k = prod_i (a - (i - 1)/2) (a - (i - 1)/2 + 1) ... (k_i factors)
(Constantine 1963; Muirhead, Aspects of Multivariate Statistical Theory, theorem 7.2.7 and table 1 of chapter 7). Up to
degree four they are combinations of products of traces, and so the expectations of those follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from orthocl.errors import SettingsError

Partition = tuple[int, ...]

ZONAL: Mapping[int, Mapping[Partition, Mapping[Partition, int]]] = {
    1: {(1,): {(1,): 1}},
    2: {(2,): {(1, 1): 1, (2,): 2}, (1, 1): {(1, 1): 1, (2,): -1}},
    3: {
        (3,): {(1, 1, 1): 1, (2, 1): 6, (3,): 8},
        (2, 1): {(1, 1, 1): 1, (2, 1): 1, (3,): -2},
        (1, 1, 1): {(1, 1, 1): 1, (2, 1): -3, (3,): 2},
    },
    4: {
        (4,): {(1, 1, 1, 1): 1, (2, 1, 1): 12, (2, 2): 12, (3, 1): 32, (4,): 48},
        (3, 1): {(1, 1, 1, 1): 1, (2, 1, 1): 5, (2, 2): -2, (3, 1): 4, (4,): -8},
        (2, 2): {(1, 1, 1, 1): 1, (2, 1, 1): 2, (2, 2): 7, (3, 1): -8, (4,): -2},
        (2, 1, 1): {(1, 1, 1, 1): 1, (2, 1, 1): -1, (2, 2): -2, (3, 1): -2, (4,): 4},
        (1, 1, 1, 1): {(1, 1, 1, 1): 1, (2, 1, 1): -6, (2, 2): 3, (3, 1): 8, (4,): -6},
    },
}
"""Degree -> zonal polynomial -> its coefficients of products of traces: (2, 1) is tr G^2 tr G."""


def rotation_forgetting(rank: int, parameters: int) -> float:
    """E of the squared error on task 1, in units of ||v||^2, when task 2 is a full random rotation of it.

    Args:
        rank: d, of the inputs.
        parameters: p.

    >>> round(rotation_forgetting(rank=100, parameters=100), 9)
    2.0
    """
    return partial_rotation_forgetting(rank, parameters, parameters)


def partial_rotation_forgetting(rank: int, parameters: int, rotated: int) -> float:
    """The same when only `rotated` of the p dimensions are.

    Args:
        rank: d, of the inputs.
        parameters: p.
        rotated: m, number of dimensions that the rotation acts on.

    >>> round(partial_rotation_forgetting(40, 200, 0), 12)
    0.0
    """
    d, p, m = rank, parameters, rotated
    if not 1 <= d <= p or p < 2:
        raise SettingsError(f"expected 1 <= rank <= parameters, got {d} and {p}")
    if not 0 <= m <= p:
        raise SettingsError(f"expected between 0 and {p} rotated dimensions, got {m}")
    if m == 0:
        return 0.0
    e = expected_traces(d, p, m)
    # B = (m tr G^2 - (tr G)^2) c and A = ((tr G)^2 - 2 B m) / m^2, so that (A + B) tr G^2 + B (tr G)^2 is:
    c = 1 / (m * (m - 1) * (m + 2)) if m > 1 else 0.0
    second = c * (m * e[2, 2] - e[2, 1, 1])
    first = (e[2, 1, 1] - 2 * m * second) / m**2
    mixed = first + second + c * (m * e[2, 1, 1] - e[1, 1, 1, 1])
    total = (
        (e[2,] - 2 * e[3,] + e[4,])
        - 2 / m * (e[2, 1] - e[3, 1])
        + mixed
        + 1 / m * (e[1, 1] - 2 * e[2, 1] + e[3, 1])
        + 1 / m * e[3, 1]
        - 2 / m * (e[3,] - e[4,])
    )
    return total / d


def expected_traces(rank: int, parameters: int, size: int) -> dict[Partition, float]:
    """E of products of traces of U^T Pi U up to degree four; U is a random basis, Pi a projector.

    Args:
        rank: of Pi.
        parameters: dimension of the space.
        size: dimension of the span of U.

    Returns:
        For (2, 1), the expectation of tr G^2 tr G, and so on.

    >>> expected_traces(rank=3, parameters=12, size=4)[1,]
    1.0
    """
    expected: dict[Partition, float] = {}
    for table in ZONAL.values():
        products = list(next(iter(table.values())))
        matrix = torch.tensor([[row[key] for key in products] for row in table.values()], dtype=torch.float64)
        at_identity = matrix @ torch.tensor(
            [float(size) ** len(key) for key in products], dtype=torch.float64
        )
        # Where (p/2)_k vanishes, so does Z_k(I_m), because m is at most p: any ratio will do.
        ratios = [_rising(rank / 2, key) / (_rising(parameters / 2, key) or 1.0) for key in table]
        values = torch.linalg.solve(matrix, torch.tensor(ratios, dtype=torch.float64) * at_identity)
        expected.update(zip(products, values.tolist(), strict=True))
    return expected


def _rising(a: float, partition: Partition) -> float:
    """(a)_k."""
    return math.prod(
        a - number / 2 + step for number, length in enumerate(partition) for step in range(length)
    )
