"""How a linearised network learns one task: by a number of steps of descent, or to convergence with a ridge.

Either way the weights move by J^T a for some coefficients `a` on the tangents of the task's points, and every other
output by kappa(x, X) a. With cross-entropy there is no closed form, but the outputs on the task's own points evolve
by themselves: f <- f - (rate / n) K (softmax f - y), a few matrix products per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from orthocl.checking import check_fields, checked
from orthocl.errors import SettingsError, unknown_name
from orthocl.theory.points import real_numbers
from orthocl.theory.ridge import check_ridge, solve_ridge

LossName = Literal["cross-entropy", "squared"]
LOSS_NAMES = ("cross-entropy", "squared")


class Fit(Protocol):
    """A way to learn a task in closed form."""

    def coefficients(self, kernel: Tensor, outputs: Tensor, wanted: Tensor) -> Tensor:
        """Coefficients `a`, (n c,), from the kernel (n c, n c), the outputs (n, c) at the start and one-hot targets."""


@dataclass(frozen=True)
class Descent:
    """Full-batch descent on the mean loss over samples, for a number of steps.

    Args:
        learning_rate: of each step; momentum m is a rate of 1 / (1 - m) times as much.
        steps: how many.
        loss: "cross-entropy", or "squared": half the squared error to one-hot targets.

    Where a full-batch step of this rate would overshoot (training in mini-batches avoids that), the same distance is
    covered in shorter steps.

    >>> fit = Descent(learning_rate=0.5, steps=2, loss="squared")
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> fit.coefficients(one, 0 * one, one)
    tensor([0.7500], dtype=torch.float64)
    """

    learning_rate: float
    steps: int
    loss: LossName = "cross-entropy"

    def __post_init__(self) -> None:
        check_fields(self, besides=("loss", "learning_rate"))
        known = isinstance(self.learning_rate, int | float)
        if not known or not (self.learning_rate > 0 and math.isfinite(self.learning_rate)) or self.steps < 0:
            raise SettingsError(
                f"expected a learning rate > 0 and steps >= 0, got {self.learning_rate} and {self.steps}"
            )
        if self.loss not in LOSS_NAMES:
            raise unknown_name("loss", self.loss, LOSS_NAMES)

    def coefficients(self, kernel: Tensor, outputs: Tensor, wanted: Tensor) -> Tensor:
        """By stepping through the outputs."""
        count = len(outputs)
        curvature = largest_eigenvalue(kernel) / count * (0.5 if self.loss == "cross-entropy" else 1.0)
        pieces = max(1, math.ceil(self.learning_rate * curvature / 1.9))
        rate = self.learning_rate / pieces / count
        total = torch.zeros(outputs.numel(), dtype=kernel.dtype)
        start = outputs.flatten()
        for _ in range(self.steps * pieces):
            now = (start + kernel @ total).reshape(outputs.shape)
            guess = now.softmax(1) if self.loss == "cross-entropy" else now
            total = total - rate * (guess - wanted).flatten()
        return total


@dataclass(frozen=True)
class Regularised:
    """The minimum of sum ||f - y||^2 + ridge ||w - w_{t-1}||^2 with one-hot y: Theorem 1's own step."""

    ridge: float

    def __post_init__(self) -> None:
        check_ridge(self.ridge)

    def coefficients(self, kernel: Tensor, outputs: Tensor, wanted: Tensor) -> Tensor:
        """(K + ridge)^-1 (y - f)."""
        residual = (wanted - outputs).reshape(-1, 1)
        cutoff = 1e-12 * float(kernel.diagonal().max())
        return solve_ridge(kernel, residual, self.ridge, cutoff).in_range[:, 0]


def forgetting_vector(cross: Tensor, kernel: Tensor, residual: Tensor, ridge: float) -> Tensor:
    """K_old,new (K_new + ridge)^-1 (y - f): by how much learning a task moves each old output.

    Doan, Abbana Bennani, Mazoure, Rabusseau, Alquier: A theoretical analysis of catastrophic forgetting through the
    NTK overlap matrix, AISTATS 2021, for SGD; with the effective kernels for OGD and others.

    Args:
        cross: K_old,new.
        kernel: K_new.
        residual: y - f on the new task, one entry per row of its kernel.
        ridge: lam.

    >>> forgetting_vector(torch.tensor([[0.5]]), torch.tensor([[1.0]]), torch.tensor([2.0]), ridge=1.0)
    tensor([0.5000], dtype=torch.float64)
    """
    check_ridge(ridge)
    cross, kernel, residual = (
        real_numbers(part, name)
        for part, name in ((cross, "the cross kernel"), (kernel, "the kernel"), (residual, "the residual"))
    )
    kernel, cutoff = kernel.double(), 1e-12 * float(kernel.diagonal().max())
    solved = solve_ridge(kernel, residual.double().reshape(-1, 1), ridge, cutoff).in_range
    return (cross.double() @ solved)[:, 0]


def largest_eigenvalue(matrix: Tensor, iterations: int = 50) -> float:
    """By power iteration: two digits are enough to tell a stable learning rate."""
    if not len(matrix):
        return 0.0
    vector = torch.ones(len(matrix), dtype=matrix.dtype) / math.sqrt(len(matrix))
    for _ in range(iterations):
        vector = matrix @ vector
        vector = vector / vector.norm().clamp_min(torch.finfo(matrix.dtype).tiny)
    return float(vector @ (matrix @ vector))


@checked()
def early_stopping_ridge(samples: int, learning_rate: float, steps: int) -> float:
    """The ridge that stopping early amounts to, for descent on the mean of half the squared error.

    After s steps of size eta / n on ||.||^2 / 2 a direction of curvature c is fitted by 1 - (1 - eta c / n)^s,
    as a ridge n / (eta s) fits it to first order: c / (c + n / (eta s)).

    >>> early_stopping_ridge(samples=100, learning_rate=0.1, steps=1000)
    1.0
    """
    if samples < 1 or not learning_rate > 0 or steps < 1:
        raise SettingsError(
            f"expected at least one sample and step and a learning rate above zero, got {samples}, {steps} and "
            f"{learning_rate}"
        )
    return samples / (learning_rate * steps)
