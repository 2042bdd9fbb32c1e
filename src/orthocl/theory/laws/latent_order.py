"""In which order to learn tasks whose inputs and targets come from shared latent factors.

Reference: Li and Hiratani: Optimal Task Order for Continual Learning of Multiple Tasks. ICML 2025 (arXiv:2502.03350).
Their model: task k sees x = A_k s and is to answer B_k s, with latent factors s of unit covariance; a linear student
y = W x learns one task after the other to convergence. Their two rules: from the least to the most typical task, and
neighbours should be unlike. The expression below was derived independently from that model.

Derivation. Let A_j^T A_k = c_jk I, with c_kk = 1: similarity of inputs, the same for all factors (random A with many
more inputs than factors come close). Descent on task k ends at W_k = W_{k-1} + (B_k - W_{k-1} A_k) A_k^T, so that
W = sum_j D_j A_j^T with D_k = B_k - sum_{j<k} D_j c_jk, that is B = D U with U the upper triangle of c in the order
of learning. In the end task k errs by W A_k - B_k = sum_{j>k} D_j c_jk, in which only the lower triangle c - U occurs.
With E <B_j, B_k> = b_jk, the similarity of targets, the mean over tasks of the final error is
    (1/T) tr (c - U)^T U^-T b U^-1 (c - U).
For small c it is (1/T) sum_k E |sum_{j>k} c_jk B_j|^2: a task suffers from what is learnt after it, and most from later
tasks that resemble it and want the same of each other. For unrelated targets (b = I) order then plays no part.

When the rules hold. Four tasks with inputs of similarity 0.3 +- 0.15, against the mean of all orders: with targets of
similarity 0.8 the first rule gains 12 % and the second 11 %; with targets as similar as the inputs 1 % and 4 %; with
unrelated targets both lose (1 % and 3 %). So: follow them where tasks want similar things, and not where they do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.errors import SettingsError

MOST_TASKS = 9
"""Orders are compared one by one up to this number of tasks: 9! = 362,880."""


def latent_final_error(inputs: Tensor, targets: Tensor, order: Sequence[int] | None = None) -> float:
    """The expected error after the last task, as a mean over tasks, in units of a task's own target.

    Args:
        inputs: c, similarities of inputs, (T, T), symmetric with ones on the diagonal.
        targets: b, similarities of targets, (T, T).
        order: task numbers, from 1, each once; None for the order of the rows.

    >>> half = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    >>> latent_final_error(half, torch.eye(2))
    0.15625
    """
    c, b = _similarities(inputs, targets)
    tasks = range(1, len(c) + 1)
    if order is not None and sorted(order) != list(tasks):
        raise SettingsError(f"expected each task from 1 to {len(c)} once, got {list(order)}")
    return _final_error(c, b, tuple(order or tasks))


def best_latent_order(inputs: Tensor, targets: Tensor) -> tuple[int, ...]:
    """The order of smallest final error, found by comparing all of them."""
    c, b = _similarities(inputs, targets)
    if len(c) > MOST_TASKS:
        raise SettingsError(
            f"expected at most {MOST_TASKS} tasks, got {len(c)}: use peripheral_first or unlike_neighbours"
        )
    return min(
        itertools.permutations(range(1, len(c) + 1)), key=lambda order: latent_final_error(c, b, order)
    )


def peripheral_first(inputs: Tensor) -> tuple[int, ...]:
    """The first rule: task numbers, from 1, by the sum of their similarities to all others, smallest first.

    >>> peripheral_first(torch.tensor([[1.0, 0.6, 0.5], [0.6, 1.0, 0.1], [0.5, 0.1, 1.0]]))
    (3, 2, 1)
    """
    c, _ = _similarities(inputs, inputs)
    return tuple(int(task) + 1 for task in c.sum(1).argsort(stable=True))


def unlike_neighbours(inputs: Tensor) -> tuple[int, ...]:
    """The second rule: a path through all tasks whose steps are as dissimilar as can be, less typical end first.

    Exhaustive up to nine tasks; beyond that the best of greedy paths from every start.

    >>> unlike_neighbours(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.2], [0.1, 0.2, 1.0]]))
    (1, 3, 2)
    """
    c, _ = _similarities(inputs, inputs)
    count = len(c)
    paths = (
        itertools.permutations(range(count))
        if count <= MOST_TASKS
        else (_greedy_path(c, start) for start in range(count))
    )
    best = min(paths, key=lambda path: sum(float(c[a, b]) for a, b in itertools.pairwise(path)))
    sums = c.sum(1)
    if sums[best[0]] > sums[best[-1]]:
        best = tuple(reversed(best))
    return tuple(task + 1 for task in best)


def _final_error(c: Tensor, b: Tensor, order: tuple[int, ...]) -> float:
    rows = torch.tensor(order) - 1
    c, b = c[rows][:, rows], b[rows][:, rows]
    upper = c.triu()
    left = torch.linalg.solve_triangular(upper, c - upper, upper=True)
    return float((left.T @ b @ left).trace()) / len(c)


def _greedy_path(c: Tensor, start: int) -> tuple[int, ...]:
    path, left = [start], set(range(len(c))) - {start}
    while left:
        path.append(min(left, key=lambda task: float(c[path[-1], task])))
        left.remove(path[-1])
    return tuple(path)


def _similarities(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    for name, matrix in (("inputs", inputs), ("targets", targets)):
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
            raise SettingsError(
                f"expected a square matrix of similarities of {name}, got shape {tuple(matrix.shape)}"
            )
        if not torch.isfinite(matrix).all() or not torch.allclose(matrix, matrix.T):
            raise SettingsError(f"expected similarities of {name} that are finite and symmetric")
    if inputs.shape != targets.shape:
        raise SettingsError(f"expected similarities of the same tasks, got {len(inputs)} and {len(targets)}")
    if not torch.allclose(inputs.diagonal(), torch.ones_like(inputs.diagonal())):
        raise SettingsError("expected ones on the diagonal of the inputs' similarities")
    return inputs.double(), targets.double()
