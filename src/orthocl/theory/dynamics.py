"""The function during the training of a task, step by step, and the learning rates that are stable.

Paper: Theorem 1 (`thm:conv`, learning rate); Lemma `lem:output-dyn-gen` and `lem:train-target-conv`
(appendix, no regularisation). The printed lemma has the opposite sign and loses a factor 2: see ERRATA.md.

Derivation. One step on ||Phi dw - r||^2 + lam ||dw||^2 off the memory is
    dw <- dw - 2 eta P (Phi^T (Phi dw - r) + lam dw),
so dw = P Phi^T b with b <- b - 2 eta ((K + lam I) b - r) and b(0) = 0, that is
    b(s) = (I - (I - 2 eta (K + lam I))^s) (K + lam I)^-1 r.
It contracts iff 0 < eta < 1 / ||K + lam I||, at the rate max |1 - 2 eta (s_i + lam)|. With lam = 0 the
outputs u = f - f_{t-1} obey u(s) - r = (I - 2 eta K)^s (u(0) - r), u(0) = 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.checking import check_value, checked
from orthocl.errors import SettingsError
from orthocl.theory.points import PointsLike
from orthocl.theory.recursion import Step
from orthocl.theory.solution import Solution


@checked()
def max_learning_rate(solution: Solution, task: int, half: bool = False) -> float:
    """The learning rate below which full-batch descent on a task converges.

    Args:
        solution: the closed form.
        task: from 1.
        half: for the loss with a factor 1/2 on both terms, which is stable up to twice as far.
    """
    return solution.max_learning_rate(task) * (2 if half else 1)


@checked()
def contraction(solution: Solution, task: int, learning_rate: float) -> float:
    """By what factor each step brings the weights nearer to their limit, at worst; above 1 it diverges.

    Directions in which the kernel vanishes are left out without ridge: descent never moves along them.
    """
    rates = []
    for step in solution.steps(task):
        values = torch.linalg.eigvalsh(step.effective).clamp_min(0)
        if solution.ridge == 0:
            values = values[values > 1e-12 * float(solution.base_diagonal.max())]
        rates += (1 - 2 * learning_rate * (values + solution.ridge)).abs().tolist()
    return max(rates, default=0.0)


@checked()
def outputs_during(
    solution: Solution,
    task: int,
    steps: int | Sequence[int],
    learning_rate: float,
    x: PointsLike | None = None,
    half: bool = False,
) -> Tensor:
    """Outputs after a number of full-batch steps on a task, from its start at f_{t-1}.

    Args:
        solution: the closed form.
        task: the task being learnt, from 1.
        steps: a number of steps, or several.
        learning_rate: eta.
        x: where to evaluate; the task's training points by default.
        half: for the loss with a factor 1/2 on both terms.

    Returns:
        Outputs shaped like the targets of x; with several `steps`, stacked along a new first dimension.

    >>> from orthocl.theory.solve import solve_stream
    >>> solution = solve_stream(lambda x, z: x @ z.T, [(torch.tensor([[1.0]]), torch.tensor([1.0]))])
    >>> outputs_during(solution, task=1, steps=[0, 1, 2], learning_rate=0.25).flatten()
    tensor([0.0000, 0.5000, 0.7500], dtype=torch.float64)
    """
    check_value("steps", steps, int | Sequence[int])
    counts = [steps] if isinstance(steps, int) else list(steps)
    if not counts or max(counts) > 1e15 or learning_rate > 1e15:
        raise SettingsError(
            f"expected steps and a learning rate of at most 1e15, got {steps} and {learning_rate}"
        )
    if min(counts) < 0 or learning_rate <= 0:
        raise SettingsError(f"expected steps >= 0 and a learning rate > 0, got {steps} and {learning_rate}")
    points = solution.task_points(task) if x is None else solution.kernel.points(x)
    columns = solution.targets[0].shape[1]
    if x is None:
        start = solution.output_matrix(task, task - 1)
    else:
        start = solution.predict(points, after=task - 1).reshape(len(points), columns)
    values = [start.clone() for _ in counts]
    for group, step in zip(solution.groups, solution.steps(task), strict=True):
        if x is None:
            cross = step.effective
        else:
            kernel = solution.effective_kernel(task, output=int(group.columns[0]))
            cross = kernel.gram(points, solution.task_points(task))
        for value, weights in zip(
            values, _weights_during(solution, step, counts, learning_rate, half), strict=True
        ):
            value[:, group.columns] += cross @ weights
    shaped = [solution.shaped(value, len(points)) for value in values]
    return shaped[0] if isinstance(steps, int) else torch.stack(shaped)


def _weights_during(
    solution: Solution, step: Step, counts: Sequence[int], learning_rate: float, half: bool
) -> list[Tensor]:
    """b(s) for several s, by the eigenvectors of K.

    Directions in which K vanishes never reach the function; left in, they would multiply the rounding noise of
    kappa at other points.
    """
    values, vectors = torch.linalg.eigh(step.effective)
    noise = max(
        1e-12 * float(solution.base_diagonal.max()),
        len(values) * torch.finfo(values.dtype).eps * float(values.abs().max()),
    )
    curvature = values.clamp_min(0) + solution.ridge
    rotated = vectors.T @ step.residual
    rate = learning_rate if half else 2 * learning_rate
    weights = []
    for count in counts:
        safe = torch.where(values > noise, curvature, 1.0)
        factor = torch.where(values > noise, (1 - (1 - rate * safe) ** count) / safe, 0.0)
        weights.append(vectors @ (factor[:, None] * rotated))
    return weights


@checked()
def limit_training_loss(solution: Solution, task: int) -> float:
    """The sum of squares on a task's own training points when descent has converged.

    Without ridge it is the squared length of the residual's part where the kernel vanishes, and so zero only
    for a positive definite kernel (Lemma `lem:train-target-conv` needs that).
    """
    return sum(
        float((step.residual - step.effective @ step.in_range).square().sum())
        for step in solution.steps(task)
    )
