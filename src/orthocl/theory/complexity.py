"""Complexity: the paper's measure, which is a proxy, and Rademacher complexities that are bounds.

Paper: Lemma `lem:rademacher-tasks`, Lemma `lem:rademacher-kernels`, R_T of Theorem 3 (`thm:gen-ogd`).
"""

from __future__ import annotations

import math

import torch

from orthocl.checking import check_value, checked
from orthocl.theory.solution import Solution


@checked()
def complexity_terms(solution: Solution, after: int | None = None) -> list[float]:
    """The terms sqrt(tr K_t S_t) / n_t of R_T, one per task."""
    return [
        math.sqrt(max(0.0, solution.effective_trace(task) * solution.dissimilarity(task)))
        / solution.samples(task)
        for task in range(1, solution.last_task(after) + 1)
    ]


@checked()
def complexity_proxy(solution: Solution, after: int | None = None) -> float:
    """R_T = sum_t sqrt(tr K_t S_t) / n_t. A proxy for how much was explored, not a bound on anything.

    Paper: Lemma `lem:rademacher-tasks`. Each task's term is measured on its own sample, so their sum bounds
    the Rademacher complexity on no sample: see ERRATA.md. Use `rademacher_bound` for that.
    """
    return sum(complexity_terms(solution, after))


@checked()
def rademacher_bound(solution: Solution, task: int, after: int | None = None) -> float:
    """A bound of the Rademacher complexity, on the sample of one task, of the class that holds f_after - f_0.

    The class is {sum_k f_k: ||f_k|| <= sqrt(S_k) in the space of kappa_k}, with the definition
    R = (1/n) E sup sum_i e_i f(x_i):
        R <= sum_k sqrt(S_k) / n * sqrt(tr kappa_k(X_task, X_task)),
    all kernels on the same sample. Exact up to a factor between 1/sqrt(2) and 1 for each k.
    """
    return sum(_radii_times_lengths(solution, task, after)) / solution.samples(task)


def rademacher_lower_bound(solution: Solution, task: int, after: int | None = None) -> float:
    """What the same Rademacher complexity is at least: the bound divided by sqrt(2) (Khinchin, Kahane)."""
    return rademacher_bound(solution, task, after) / math.sqrt(2)


@checked()
def rademacher_estimate(
    solution: Solution, task: int, after: int | None = None, draws: int = 1000, seed: int = 0
) -> float:
    """The same Rademacher complexity by drawing signs: sum_k sqrt(S_k) / n * E sqrt(e^T kappa_k e)."""
    check_value("draws", draws, int, minimum=1, maximum=1e9)
    check_value("seed", seed, int, minimum=0, maximum=2**63 - 1)
    generator = torch.Generator().manual_seed(seed)
    points = solution.task_points(task)
    total = 0.0
    for group in solution.groups:
        columns = len(group.columns)
        for number in range(1, solution.last_task(after) + 1):
            kernel = solution.effective_kernel(number, output=int(group.columns[0])).gram(points)
            signs = torch.randint(0, 2, (len(points), draws * columns), generator=generator).double() * 2 - 1
            squares = (signs * (kernel @ signs)).sum(0).reshape(draws, columns).sum(1).clamp_min(0)
            radius = math.sqrt(group.recursion.steps[number - 1].dissimilarity)
            total += radius * float(squares.sqrt().mean())
    return total / solution.samples(task)


def _radii_times_lengths(solution: Solution, task: int, after: int | None) -> list[float]:
    points = solution.task_points(task)
    terms = []
    for group in solution.groups:
        for number in range(1, solution.last_task(after) + 1):
            kernel = solution.effective_kernel(number, output=int(group.columns[0]))
            trace = float(kernel.diagonal(points).clamp_min(0).sum()) * len(group.columns)
            terms.append(math.sqrt(group.recursion.steps[number - 1].dissimilarity * trace))
    return terms
