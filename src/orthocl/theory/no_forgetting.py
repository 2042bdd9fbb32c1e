"""What OGD keeps, as a number; and how its steps relate to those of A-GEM.

Paper: Theorem 2 (`thm:train-unchanged`), Proposition 1 (`prop:ogd-gem`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from orthocl.checking import checked
from orthocl.theory.solution import ColumnGroup, Solution


@dataclass(frozen=True)
class OutputDrift:
    """How far outputs moved since the end of their own task.

    Args:
        task: from 1.
        remembered: the largest change of a protected output (Theorem 2: zero); nan if nothing is protected.
        others: the largest change of an output that is not protected; nan if there is none.
    """

    task: int
    remembered: float
    others: float


@checked()
def forgetting_drift(solution: Solution, after: int | None = None) -> list[OutputDrift]:
    """|f_after(x) - f_k(x)| on the training points of every earlier task k, protected or not.

    Paper: Theorem 2 (`thm:train-unchanged`): zero on what is in memory. It holds at every step, for any loss,
    minibatches and momentum, and for every x whose tangent lies in the span of the memory; it does not hold
    for an optimizer that changes the direction of the projected gradient (Adam, weight decay).
    """
    last = solution.last_task(after)
    drifts = []
    for task in range(1, last):
        moved = (solution.output_matrix(task, last) - solution.output_matrix(task, task)).abs()
        protected = torch.zeros_like(moved, dtype=torch.bool)
        if solution.rule == "ogd":
            for group in solution.groups:
                protected[group.memory[task - 1][:, None], group.columns[None]] = True
        drifts.append(OutputDrift(task, _largest(moved[protected]), _largest(moved[~protected])))
    return drifts


def _largest(values: Tensor) -> float:
    return float(values.max()) if len(values) else float("nan")


@dataclass(frozen=True)
class Alignment:
    """The gradient g of the current task against the gradient g_k of an earlier task's memory.

    Args:
        task: the earlier task k.
        memory_gradient: ||g_k||; the printed proof says zero, which needs an interpolated memory.
        plain: cos(g_k, g); the printed proof says zero.
        projected: cos(g_k, P g) with OGD's projector P; this is zero for any loss if all logits are stored.
        steps: cos between OGD's step P g and the step of A-GEM without positive backward transfer,
            g - (g.g_k / ||g_k||^2) g_k: they are different steps.
    """

    task: int
    memory_gradient: float
    plain: float
    projected: float
    steps: float


Derivative = Callable[[Tensor, Tensor], Tensor]


def squared_loss_derivative(outputs: Tensor, targets: Tensor) -> Tensor:
    """The derivative of (u - y)^2 with respect to u."""
    return 2 * (outputs - targets)


@checked()
def gradient_alignment(
    solution: Solution, task: int, derivative: Derivative = squared_loss_derivative
) -> list[Alignment]:
    """Proposition 1 as numbers: what OGD's first step on `task` does to the loss on each earlier memory.

    Gradients are taken at w_{t-1}, where the task begins. All inner products are kernel values:
    g = Phi_t^T d_t, g_k = Phi_M^T d_M, so g_k.P g = d_M^T kappa_t(M, X_t) d_t.

    Paper: Proposition 1 (`prop:ogd-gem`), for the projected gradient (ERRATA.md).

    Args:
        solution: an OGD solution.
        task: the current task, from 2.
        derivative: of the loss with respect to the outputs, (outputs, targets) -> same shape (n, c).
    """
    current = _loss_slope(solution, task, task - 1, derivative)
    own = solution.task_points(task)
    found = []
    for earlier in range(1, solution.check_task(task)):
        rows = _remembered_samples(solution, earlier)
        slope = _loss_slope(solution, earlier, task - 1, derivative)[rows]
        memory = solution.task_points(earlier).select(rows)
        dot = {"plain": 0.0, "projected": 0.0, "g": 0.0, "pg": 0.0, "ref": 0.0}
        plain_cross, plain_own = solution.kernel.gram(memory, own), solution.kernel.gram(own)
        plain_memory = solution.kernel.gram(memory)
        for group in solution.groups:
            d, m = current[:, group.columns], slope[:, group.columns]
            kernel = solution.effective_kernel(task, output=int(group.columns[0]))
            dot["plain"] += _form(m, plain_cross, d)
            dot["projected"] += _form(m, kernel.gram(memory, own), d)
            dot["g"] += _form(d, plain_own, d)
            dot["pg"] += _form(d, _effective(solution, group, task), d)
            dot["ref"] += _form(m, plain_memory, m)
        found.append(_alignment(earlier, dot))
    return found


def _alignment(task: int, dot: dict[str, float]) -> Alignment:
    length_g, length_pg = max(dot["g"], 0.0) ** 0.5, max(dot["pg"], 0.0) ** 0.5
    length_ref = max(dot["ref"], 0.0) ** 0.5
    # A-GEM-NT steps along g - c g_k with c = g.g_k / ||g_k||^2: (P g).(g - c g_k) = ||P g||^2 - c P g.g_k.
    share = dot["plain"] / dot["ref"] if dot["ref"] > 0 else 0.0
    agem = max(dot["g"] - share * dot["plain"], 0.0) ** 0.5
    inner = dot["pg"] - share * dot["projected"]
    return Alignment(
        task,
        length_ref,
        _ratio(dot["plain"], length_ref * length_g),
        _ratio(dot["projected"], length_ref * length_pg),
        _ratio(inner, length_pg * agem),
    )


def _ratio(value: float, scale: float) -> float:
    return value / scale if scale > 0 else 0.0


def _form(left: Tensor, matrix: Tensor, right: Tensor) -> float:
    return float((left * (matrix @ right)).sum())


def _effective(solution: Solution, group: ColumnGroup, task: int) -> Tensor:
    return group.recursion.steps[task - 1].effective


def _loss_slope(solution: Solution, task: int, after: int, derivative: Derivative) -> Tensor:
    """The derivative of the loss in every output of a task's points, with samples as rows for the user."""
    shape = (solution.samples(task), -1)
    outputs = solution.output_matrix(task, after)
    values = derivative(outputs.reshape(shape), solution.targets[task - 1].reshape(shape))
    return values.detach().double().reshape(outputs.shape)


def _remembered_samples(solution: Solution, task: int) -> Tensor:
    """Rows of all outputs of the samples of a task of which any output is remembered."""
    outputs = solution.kernel.outputs
    rows = torch.cat([group.memory[task - 1] for group in solution.groups])
    samples: Tensor = torch.unique(rows // outputs)
    return (samples[:, None] * outputs + torch.arange(outputs)[None]).flatten()
