"""How far the weights travel, and what bounds it.

Paper: Corollary 1 (`cor:weight-dist`) and Remark 2 (`rem:weight-dist`). `Solution.distance` and
`Solution.distance_from_initialisation` hold the exact numbers.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from orthocl.checking import checked
from orthocl.theory.kernels import KernelLike
from orthocl.theory.points import PointsLike
from orthocl.theory.solution import Solution
from orthocl.theory.solve import solve_stream


@checked()
def radius_bound(solution: Solution, after: int | None = None) -> float:
    """An upper bound of ||w_t - w_0|| from the dissimilarities alone.

    Each step has ||w_k - w_{k-1}||^2 <= S_k (the optimal value of its objective is lam S_k). Under OGD with
    everything remembered the steps are orthogonal, so the squares add: sqrt(sum S_k). Otherwise the lengths
    add: sum sqrt(S_k).
    """
    last = solution.last_task(after)
    values = [solution.dissimilarity(task) for task in range(1, last + 1)]
    if remembers_everything(solution, last):
        return math.sqrt(sum(values))
    return sum(math.sqrt(value) for value in values)


def remembers_everything(solution: Solution, after: int | None = None) -> bool:
    """Whether OGD protects every output of every training point of the tasks before the last one."""
    if solution.rule != "ogd":
        return False
    earlier = solution.last_task(after) - 1
    return all(
        len(rows) == len(block)
        for group in solution.groups
        for rows, block in zip(group.memory[:earlier], solution.blocks[:earlier], strict=True)
    )


@checked()
def transfer_distance(
    kernel: KernelLike,
    source: tuple[PointsLike, Tensor | np.ndarray],
    target: tuple[PointsLike, Tensor | np.ndarray],
) -> float:
    """||w(Q) - w(P)|| of SGD without ridge: sqrt(r^T H_Q^-1 r), r = y_Q - H_QP H_P^-1 y_P.

    Paper: Remark 2 (`rem:weight-dist`), after Theorem 3 of Liu et al. The inverse is of H_Q, the matrix of
    the second task; the remark prints H_P, which has the wrong size when the tasks differ in size.
    """
    return solve_stream(kernel, [source, target], rule="sgd", ridge=0.0, initial=0.0).distance(2)
