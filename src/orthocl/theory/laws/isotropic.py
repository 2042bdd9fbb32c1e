"""SGD on tasks with isotropic Gaussian features: the expected loss of every task after every task.

Reference: Lin, Ju, Liang, Shroff: Theory on Forgetting and Generalization of Continual Learning. ICML 2023.

Derivation. Task t has n_t samples x ~ N(0, I_p) and y = x.w_t + noise of variance s^2. Without ridge
    w(t) = w(t-1) + Pi (w_t - w(t-1)) + X^+ z,
with Pi the projector on the n_t random rows: E Pi = (n_t / p) I and E ||X^+ z||^2 = s^2 n_t / (p - n_t - 1). For any v
the three parts of w(t) - v = (I - Pi)(w(t-1) - v) + Pi (w_t - v) + X^+ z do not mix in expectation, so
    E ||w(t) - v||^2 = (1 - x) E ||w(t-1) - v||^2 + x ||w_t - v||^2 + s^2 n_t / (p - n_t - 1),   x = n_t / p.
The loss of task i on new samples is ||w - w_i||^2 (plus s^2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.errors import SettingsError


def task_sizes(samples: int | Sequence[int], tasks: int) -> list[int]:
    """Samples of each task, from one number for all or one per task."""
    sizes = [samples] * tasks if isinstance(samples, int) else list(samples)
    if len(sizes) != tasks or min(sizes) < 1:
        raise SettingsError(f"expected at least one sample for each of {tasks} tasks, got {samples}")
    return sizes


def squared_distances(teachers: Tensor) -> Tensor:
    """||w_i - w_j||^2 of all pairs of rows."""
    return (teachers[:, None] - teachers[None]).square().sum(2)


def sgd_expected_losses(teachers: Tensor, samples: int | Sequence[int], noise: float = 0.0) -> Tensor:
    """E ||w(t) - w_i||^2 for t = 0 .. T (rows) and every task i (columns), started at zero.

    Args:
        teachers: w_1 .. w_T, (T, p).
        samples: n, or n_t for each task; each below p - 1.
        noise: standard deviation of the labels' noise.

    >>> sgd_expected_losses(torch.eye(2, 10), samples=5)[1]
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """
    teachers = teachers.double()
    tasks, parameters = teachers.shape
    sizes = task_sizes(samples, tasks)
    if max(sizes) >= parameters - 1:
        raise SettingsError(
            f"the law needs fewer than p - 1 = {parameters - 1} samples a task, got {max(sizes)}"
        )
    apart = squared_distances(teachers)
    losses = [teachers.square().sum(1)]
    for task, count in enumerate(sizes):
        share = count / parameters
        spread = noise**2 * count / (parameters - count - 1)
        losses.append((1 - share) * losses[-1] + share * apart[task] + spread)
    return torch.stack(losses)
