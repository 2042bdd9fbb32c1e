"""In which order to learn tasks when all of them are tested at the end.

Reference: Li and Hiratani: Optimal Task Order for Continual Learning of Multiple Tasks. ICML 2025. They find two rules
in a linear model with latent factors: (1) from the least to the most typical task, (2) neighbours should be unlike.
Here the first is derived for isotropic features, where it is exact; the second does not occur there. Their own model
is in `latent_order`.

Derivation. By the law of `isotropic`, with r = 1 - n/p, the mean over tasks of the final expected loss is
    r^T mean ||w_i||^2 + (1 - r) sum_k r^(T-k) d_k + noise,   d_k = mean_i ||w_k - w_i||^2 for the task learnt k-th.
The weights r^(T-k) grow with k, so that the sum is smallest when d_k falls: the most typical task comes last.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.errors import SettingsError
from orthocl.theory.laws.isotropic import sgd_expected_losses, squared_distances


def typicality_order(teachers: Tensor) -> tuple[int, ...]:
    """Task numbers, from 1, from the least to the most typical: the order of smallest expected average loss.

    >>> typicality_order(torch.tensor([[0.0], [1.0], [5.0]]))
    (3, 1, 2)
    """
    typical = squared_distances(teachers.double()).mean(1)
    return tuple(int(task) + 1 for task in typical.argsort(descending=True, stable=True))


def expected_average_loss(teachers: Tensor, order: Sequence[int], samples: int, noise: float = 0.0) -> float:
    """The mean over all tasks of the expected loss after learning them in this order.

    Args:
        teachers: w_1 .. w_T, (T, p).
        order: task numbers, from 1, each once.
        samples: n per task.
        noise: standard deviation of the labels' noise.
    """
    if sorted(order) != list(range(1, len(teachers) + 1)):
        raise SettingsError(f"expected each task from 1 to {len(teachers)} once, got {list(order)}")
    rows = torch.tensor([number - 1 for number in order])
    return float(sgd_expected_losses(teachers[rows], samples, noise)[-1].mean())
