"""Two alternating tasks: how much can be forgotten at worst.

Reference: Evron, Moroshko, Ward, Srebro, Soudry: How catastrophic can catastrophic forgetting be in linear regression?
COLT 2022.

Derivation. Let P_1, P_2 project on what each task leaves free. Tasks that one w* with ||w*|| <= 1 fits leave
w_k - w* = -(P_2 P_1)^{k/2} w* after k steps (k even). The task seen last has no error; the other, with rows scaled to a
largest singular value of 1, has at most ||(I - P_1) (P_2 P_1)^{k/2} w*||^2. Along a principal angle of cosine c between
the two spans this is at most c^{2(k-1)} (1 - c^2), and half of it on average over the two tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orthocl.errors import SettingsError
from orthocl.theory.overlap import principal_cosines


def worst_alternating_forgetting(first: Tensor, second: Tensor, steps: int) -> float:
    """1/2 max_i (c_i^2)^(k-1) (1 - c_i^2) over the principal angles of two tasks, after k steps in alternation.

    Args:
        first: inputs of the first task, (n_1, p).
        second: of the second.
        steps: k >= 2.

    >>> worst_alternating_forgetting(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]), steps=2)
    0.125
    """
    values = _per_angle(first, second, steps)
    return round(float(values.max()) / 2, 15) if len(values) else 0.0


def mean_alternating_forgetting(first: Tensor, second: Tensor, steps: int) -> float:
    """The same for a w* drawn uniformly from the unit sphere: 1/(2p) sum_i (c_i^2)^(k-1) (1 - c_i^2).

    Each principal angle spans a plane in which (I - P_1) (P_2 P_1)^{k/2} has rank one, so that the sum of the squared
    singular values is its squared Frobenius norm, and E w* w*^T = I/p. Steps must be even.

    >>> mean_alternating_forgetting(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]), steps=2)
    0.0625
    """
    if steps % 2:
        raise SettingsError(f"expected an even number of steps, got {steps}")
    values = _per_angle(first, second, steps)
    return round(float(values.sum()) / (2 * first.shape[1]), 15)


def alternating_forgetting(first: Tensor, second: Tensor, target: Tensor, steps: int) -> float:
    """The mean loss over both tasks after k steps in alternation from zero, with spans in place of scaled inputs.

    The loss of a task is the squared length of the part of w_k - w* in the span of its inputs: what its rows, scaled
    to singular values of 1, would measure.

    Args:
        first: inputs of the first task.
        second: of the second.
        target: w*, which fits both.
        steps: k.
    """
    bases = [torch.linalg.qr(x.double().T)[0] for x in (first, second)]
    error = -target.double()
    for step in range(steps):
        basis = bases[step % 2]
        error = error - basis @ (basis.T @ error)
    return sum(float((basis.T @ error).square().sum()) for basis in bases) / 2


def _per_angle(first: Tensor, second: Tensor, steps: int) -> Tensor:
    if steps < 2:
        raise SettingsError(f"expected at least two steps, got {steps}")
    one, two = first.double(), second.double()
    squares = principal_cosines(one @ one.T, one @ two.T, two @ two.T).square()
    # Angles that rounding cannot tell from zero forget nothing.
    squares = squares[squares < 1 - 1e-9]
    return squares ** (steps - 1) * (1 - squares)
