"""The recursion on the tangents themselves: slower and larger than on the kernel, and more accurate.

Paper: Theorem 1 (`thm:conv`), in the space of the weights.

The kernel form forms k = Phi Phi^T, whose condition number is the square of that of Phi: inputs of two tasks that
are a relative 1e-6 apart cost it twelve digits, and points whose squared distance from the memory is below 1e-12 of
the largest k(x, x) are rejected. Here the memory is an orthonormal basis of the tangents and each task a least
squares problem solved by a singular value decomposition, which lose only as many digits as Phi itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orthocl.checking import checked
from orthocl.errors import unknown_name
from orthocl.theory.empirical import EmpiricalNTK
from orthocl.theory.joint_tasks import Initial, JointTasks, TaskData, as_matrix, join_tasks
from orthocl.theory.kernels import check_finite, check_memory
from orthocl.theory.points import PointsLike
from orthocl.theory.recursion import RULES, Rule
from orthocl.theory.ridge import check_ridge, check_tolerance
from orthocl.theory.solve import Memory, memory_rows


@dataclass(frozen=True)
class FeatureStep:
    """What learning one task did.

    Args:
        displacement: w_t - w_{t-1}, (parameters, columns).
        dissimilarity: S_t = r_t^T (K_t + lam I)^-1 r_t.
        rank: directions that were protected.
        smallest: the smallest singular value of the task's projected tangents that was kept, as a share of the
            longest tangent.
    """

    displacement: Tensor
    dissimilarity: float
    rank: int
    smallest: float


@dataclass(frozen=True, repr=False)
class FeatureSolution:
    """The closed form of a stream in the space of the weights. Tasks count from 1; `after=0` is initialisation.

    Made by `solve_in_feature_space`.
    """

    kernel: EmpiricalNTK
    rule: Rule
    ridge: float
    tasks: JointTasks
    steps: tuple[FeatureStep, ...]

    def displacement(self, after: int | None = None) -> Tensor:
        """w_after - w_0, (parameters, columns)."""
        last = len(self.steps) if after is None else after
        total = torch.zeros_like(self.steps[0].displacement)
        for step in self.steps[:last]:
            total = total + step.displacement
        return total

    def predict(self, x: PointsLike, after: int | None = None) -> Tensor:
        """f_after(x), in the shape of the targets."""
        points = self.kernel.points(x)
        start = as_matrix(self.tasks.initial(points), len(points), self.tasks.targets[0].shape[1])
        values = start + self.kernel.features(points) @ self.displacement(after)
        if self.kernel.outputs > 1 and len(points) % self.kernel.outputs == 0:
            return values.reshape(-1, self.kernel.outputs)
        return values.flatten() if self.tasks.vector else values

    def distance(self, task: int) -> float:
        """||w_t - w_{t-1}||."""
        return float(self.steps[task - 1].displacement.norm())

    def distance_from_initialisation(self, after: int | None = None) -> float:
        """||w_t - w_0||."""
        return float(self.displacement(after).norm())

    def dissimilarity(self, task: int) -> float:
        """S_t."""
        return self.steps[task - 1].dissimilarity

    def rank(self, task: int) -> int:
        """How many directions were protected while a task was learnt."""
        return self.steps[task - 1].rank


@checked(besides=("ridge",))
def solve_in_feature_space(
    kernel: EmpiricalNTK,
    tasks: Sequence[TaskData],
    *,
    rule: Rule = "ogd",
    ridge: float = 0.0,
    memory: Memory = None,
    initial: Initial | float | None = None,
    tolerance: float = 1e-12,
    memory_limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> FeatureSolution:
    """`solve_stream` on explicit tangents, for networks whose tangents fit in memory.

    Use it when `Solution.conditioning` says that the kernel form has lost too many digits.

    Args:
        kernel: of a network; its tangents are the features.
        tasks: (inputs, targets) pairs, as for `solve_stream`.
        rule: "sgd" or "ogd".
        ridge: lam >= 0.
        memory: as for `solve_stream`.
        initial: as for `solve_stream`.
        tolerance: a direction shorter than this share of the longest tangent counts as zero.
        memory_limit: bytes; by default what is free now.
        progress: called with each task's number when it is learnt.

    >>> from orthocl.nets import MLP
    >>> x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> kernel = EmpiricalNTK(MLP((4,), hidden=(8,), outputs=1))
    >>> solution = solve_in_feature_space(kernel, [(x, torch.ones(6)), (-x, torch.zeros(6))])
    >>> bool((solution.predict(x, after=2) - 1).abs().max() < 1e-9)
    True
    """
    if rule not in RULES:
        raise unknown_name("rule", rule, RULES)
    ridge = check_ridge(ridge)
    check_tolerance(tolerance)
    joint = join_tasks(kernel, tasks, initial)
    width = sum(parameter.numel() for parameter in kernel.parameters.values())
    advice = "use solve_stream, which never forms the tangents"
    what = f"the tangents of {len(joint.points)} points in {width} parameters"
    check_memory(4 * 8 * width * len(joint.points), memory_limit, what, advice)
    features = check_finite(kernel.features(joint.points))
    scale = float(features.norm(dim=1).max())
    chosen = memory_rows(kernel, joint, memory)
    basis = features.new_zeros(width, 0)
    outputs = joint.start
    steps = []
    for number, (rows, target) in enumerate(zip(joint.blocks, joint.targets, strict=True), start=1):
        own = off_basis(features[rows], basis)
        step = _fit(own, target - outputs[rows], ridge, tolerance * scale, basis.shape[1], scale)
        steps.append(step)
        outputs = outputs + features @ step.displacement
        if rule == "ogd" and number < len(joint.blocks):
            basis = extend_basis(basis, own[chosen[number - 1]], tolerance * scale)
        if progress is not None:
            progress(number)
    return FeatureSolution(kernel, rule, ridge, joint, tuple(steps))


def off_basis(rows: Tensor, basis: Tensor) -> Tensor:
    """Rows with their part in the span of an orthonormal basis removed, twice so that nothing is left of it."""
    for _ in range(2):
        rows = rows - (rows @ basis) @ basis.T
    return rows


def extend_basis(basis: Tensor, rows: Tensor, shortest: float) -> Tensor:
    """An orthonormal basis of the span of a basis and of further rows; directions below `shortest` are dropped."""
    if not len(rows):
        return basis
    _, lengths, directions = torch.linalg.svd(off_basis(rows, basis), full_matrices=False)
    fresh = off_basis(directions[lengths > shortest], basis)
    return torch.cat([basis, torch.linalg.qr(fresh.T)[0]], 1)


def _fit(
    rows: Tensor, residual: Tensor, ridge: float, shortest: float, rank: int, scale: float
) -> FeatureStep:
    """Least squares with a ridge, by singular values: s / (s^2 + lam) along each direction."""
    left, lengths, right = torch.linalg.svd(rows, full_matrices=False)
    kept = lengths > shortest
    rotated = left.T @ residual
    safe = torch.where(kept, lengths, 1.0)
    gain = torch.where(kept, safe / (safe.square() + ridge), 0.0)
    inside = torch.where(kept, 1 / (safe.square() + ridge), 0.0)
    total = float((inside[:, None] * rotated.square()).sum())
    if ridge > 0:
        seen = float((kept[:, None] * rotated.square()).sum())
        total += max(0.0, float(residual.square().sum()) - seen) / ridge
    smallest = float(lengths[kept].min()) / scale if bool(kept.any()) else math.nan
    return FeatureStep(right.T @ (gain[:, None] * rotated), total, rank, smallest)
