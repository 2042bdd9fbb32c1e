"""The mean squared error on a task's training points: exactly, bounded, and as printed.

Paper: Lemma `lem:ogd-train-gen-bounds`, Lemma `lem:sgd-train-gen-bounds`, H_{k,tau} of Theorem 3
(`thm:gen-ogd`). Both printed bounds fail on some data: see ERRATA.md.

Derivation. On its own points the function ends at f_t(X_t) - y_t = -lam a_t. Later tasks add their
increments, kappa_k(X_t, X_k) a_k with squared length H_{k,t}. So the error is exactly
    (1/n) || -lam a_t + sum_{k > t} kappa_k(X_t, X_k) a_k ||^2,
and lam S_t = ||f_t(X_t) - y_t||^2 + lam ||w_t - w_{t-1}||^2 (the optimal value of the ridge objective) gives
||lam a_t||^2 <= lam S_t; the triangle inequality does the rest.
"""

from __future__ import annotations

import math

from orthocl.checking import checked
from orthocl.theory.solution import Solution


@checked()
def forgetting_terms(solution: Solution, task: int, after: int | None = None) -> dict[int, float]:
    """H_{k,t} = ||f_k(X_t) - f_{k-1}(X_t)||^2 for each later task k: what learning k changed on task t.

    Zero (to rounding) on what OGD remembers; not so for partial memories and for logits that are not stored.
    """
    return {
        later: float(
            (solution.output_matrix(task, later) - solution.output_matrix(task, later - 1)).square().sum()
        )
        for later in range(solution.check_task(task) + 1, solution.last_task(after) + 1)
    }


def fit_value(solution: Solution, task: int) -> float:
    """The optimal value lam S_t of a task's ridge objective; without ridge its limit, the remaining loss."""
    if solution.ridge > 0:
        return solution.ridge * solution.dissimilarity(task)
    return sum(
        float((step.residual - step.effective @ step.in_range).square().sum())
        for step in solution.steps(task)
    )


@checked()
def empirical_loss(solution: Solution, task: int, after: int | None = None) -> float:
    """The mean squared error of f_after on the training points of a task, measured."""
    errors = solution.output_matrix(task, solution.last_task(after)) - solution.targets[task - 1]
    return float(errors.square().sum()) / solution.samples(task)


@checked()
def empirical_loss_bound(solution: Solution, task: int, after: int | None = None) -> float:
    """(1/n) (sqrt(lam S_t) + sum_{k > t} sqrt(H_{k,t}))^2: never below the measured error."""
    lengths = [math.sqrt(value) for value in forgetting_terms(solution, task, after).values()]
    return (math.sqrt(fit_value(solution, task)) + sum(lengths)) ** 2 / solution.samples(task)


def printed_empirical_bound(solution: Solution, task: int, after: int | None = None) -> float:
    """The bound of Theorem 3 as printed: (lam^2 / n_t) S_t, plus (1 / n_T) sum_k H_{k,t} for SGD."""
    last = solution.last_task(after)
    value = solution.ridge**2 / solution.samples(task) * solution.dissimilarity(task)
    if solution.rule == "sgd":
        value += sum(forgetting_terms(solution, task, last).values()) / solution.samples(last)
    return value
