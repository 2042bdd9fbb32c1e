"""The capacity law of OGD: what it costs to remember everything as the memory fills the space.

Derived for this project; no earlier statement of it is known to us. Setting as in `isotropic`, with OGD that remembers
all samples.

Derivation. Let M be the span of all remembered samples, of dimension N = n_1 + ... + n_{t-1}, and Q its projector. OGD
started at zero stays in M, so off M the error of w(t-1) for a target v is v's own part, of expected squared length
(1 - N/p) ||v||^2 (M is uniformly random). In M let e(v) = Q (w(t-1) - v). A sample of task t is x = (z, y), off and
in M; OGD solves z.d = x.(w_t - w(t-1)) + noise for the step d off M:
    d = Pi_Z (w_t - w(t-1))_off + Z^+ (Y (w_t - w(t-1))_in + noise).
The first part gives Pi_Z (w_t - v) of expected squared length (n_t / p) ||w_t - v||^2 in the new directions. The second
is what OGD pays: it must explain with the free directions what the frozen ones get wrong, E tr (Z Z^T)^-1 =
n_t / (p - N - n_t - 1) times ||e(w_t)||^2 + s^2. With x_t = n_t / p, k_t = n_t / (p - n_1 - ... - n_t - 1):
    E_t(v) = E_{t-1}(v) + x_t ||w_t - v||^2 + k_t (E_{t-1}(w_t) + s^2),     E_0 = 0,
    E ||w(t) - v||^2 = (1 - (n_1 + ... + n_t) / p) ||v||^2 + E_t(v).
For two tasks without noise, D = ||w_1 - w_2||^2: (1 - 2x) ||w_1||^2 + x (1 + k_2) D on the first task, against
(1 - x)^2 ||w_1||^2 + x D of SGD. So OGD wins on the old task iff D / ||w_1||^2 < x / k_2 = (p - 2n - 1) / p: the fuller
the memory, the more alike the tasks must be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orthocl.errors import SettingsError
from orthocl.theory.laws.isotropic import squared_distances, task_sizes


def ogd_expected_losses(teachers: Tensor, samples: int | Sequence[int], noise: float = 0.0) -> Tensor:
    """E ||w(t) - w_i||^2 of OGD with full memory, for t = 0 .. T (rows) and every task i (columns).

    Args:
        teachers: w_1 .. w_T, (T, p).
        samples: n, or n_t for each task; together below p - 1.
        noise: standard deviation of the labels' noise.

    >>> ogd_expected_losses(torch.eye(2, 11), samples=2)[2, 0]
    tensor(1.1212, dtype=torch.float64)
    """
    teachers = teachers.double()
    tasks, parameters = teachers.shape
    sizes = task_sizes(samples, tasks)
    if sum(sizes) >= parameters - 1:
        raise SettingsError(
            f"the memory of {sum(sizes)} samples leaves no room: the law needs fewer than p - 1 = {parameters - 1}"
        )
    apart, own = squared_distances(teachers), teachers.square().sum(1)
    inside = torch.zeros(tasks, dtype=torch.float64)
    losses, seen = [own], 0
    for task, count in enumerate(sizes):
        seen += count
        price = count / (parameters - seen - 1)
        inside = inside + count / parameters * apart[task] + price * (inside[task] + noise**2)
        losses.append((1 - seen / parameters) * own + inside)
    return torch.stack(losses)


@dataclass(frozen=True)
class CapacityLaw:
    """Two tasks without noise: expected losses on the old one, and who wins.

    Args:
        ogd: E L_1 of OGD, in units of ||w_1||^2.
        sgd: E L_1 of SGD.
        dissimilarity: D / ||w_1||^2.
        threshold: (p - 2n - 1) / p; OGD wins below it.
    """

    ogd: float
    sgd: float
    dissimilarity: float
    threshold: float

    @property
    def ogd_wins(self) -> bool:
        """Whether OGD is expected to be better on the old task's new samples."""
        return self.dissimilarity < self.threshold


def capacity_law(parameters: float, samples: float, dissimilarity: float) -> CapacityLaw:
    """The law for two tasks of n samples each.

    Args:
        parameters: p, or a measured rank in its place.
        samples: n remembered per task, with 2n + 1 < p.
        dissimilarity: D / ||w_1||^2.

    >>> capacity_law(100, 20, 0.5).ogd_wins, capacity_law(100, 20, 0.7).ogd_wins
    (True, False)
    """
    if not 0 < 2 * samples < parameters - 1 or dissimilarity < 0:
        raise SettingsError(
            f"the law needs 0 < 2n < p - 1 and D >= 0, got n = {samples:g}, p = {parameters:g}, D = {dissimilarity:g}"
        )
    share, price = samples / parameters, samples / (parameters - 2 * samples - 1)
    return CapacityLaw(
        ogd=1 - 2 * share + share * (1 + price) * dissimilarity,
        sgd=(1 - share) ** 2 + share * dissimilarity,
        dissimilarity=dissimilarity,
        threshold=(parameters - 2 * samples - 1) / parameters,
    )
