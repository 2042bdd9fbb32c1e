"""The closed form of a whole stream, as an object that answers questions about it.

Paper: Theorem 1 (`thm:conv`), Remark 1 (`cor:recursion`), Corollary 1 (`cor:weight-dist`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from orthocl.checking import check_value
from orthocl.errors import SettingsError
from orthocl.tangents.cholesky import ROUNDINGS, GrowingCholesky
from orthocl.theory.joint_tasks import JointTasks, as_matrix
from orthocl.theory.kernels import Kernel, symmetrise
from orthocl.theory.points import Points, PointsLike, row_chunks
from orthocl.theory.recursion import Recursion, Rule, Step

EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class ColumnGroup:
    """Outputs (columns of the targets) that share one memory, what it keeps of each task, the recursion."""

    columns: Tensor
    memory: tuple[Tensor, ...]
    recursion: Recursion


@dataclass(frozen=True)
class Conditioning:
    """How well the kernel form of a stream is conditioned.

    Args:
        dropped: remembered points that were rejected because they lie in the span of the others.
        smallest_pivot: the smallest squared distance of a remembered point from the span of those before it,
            as a share of the largest k(x, x).
        unfitted: for each task the directions of its kernel that count as zero while its residual does not.
        errors: for each task the relative error to expect of what it learns: rounding of k over the smallest eigenvalue
            of the kernel that is solved, K_t + lam; 1 where directions that the residual needs are so small that they
            count as zero, or where the memory leaves nothing above rounding although there is something to fit: there
            may be nothing in exact arithmetic either (a memory that fills the space), but that cannot be told.
    """

    dropped: int
    smallest_pivot: float
    unfitted: tuple[int, ...]
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """The largest relative error to expect of the kernel form, at most 1.

        Where this is too much, `solve_in_feature_space` loses only the square root of it.
        """
        return min(1.0, max(EPS / self.smallest_pivot, *self.errors))


class EffectiveKernel(Kernel):
    """kappa_t: the kernel with the memory of earlier tasks projected out.

    Paper: Theorem 1 (`thm:conv`), kappa_tau; here kappa_1 = k.
    """

    def __init__(self, kernel: Kernel, memory: Points, factor: GrowingCholesky):
        self.kernel = kernel
        self.memory = memory
        self.factor = factor
        self.outputs = kernel.outputs

    def points(self, x: PointsLike) -> Points:
        """The rows that these inputs stand for."""
        return self.kernel.points(x)

    def _whitened(self, x: Points) -> Tensor:
        return self.factor.solve_lower(self.kernel.gram(self.memory, x))

    def _gram(self, x: Points, z: Points | None) -> Tensor:
        plain = self.kernel.gram(x, z)
        if len(self.memory) == 0:
            return plain
        left = self._whitened(x)
        if z is None:
            return symmetrise(plain - left.T @ left)
        return plain - left.T @ self._whitened(z)

    def diagonal(self, x: PointsLike) -> Tensor:
        """kappa_t(x, x)."""
        points = self.points(x)
        plain = self.kernel.diagonal(points)
        if len(self.memory) == 0:
            return plain
        return (plain - self._whitened(points).square().sum(0)).clamp_min(0)


@dataclass(frozen=True, repr=False)
class Solution:
    """The closed form of learning a stream task after task. Tasks count from 1; `after=0` is initialisation.

    Made by `solve_stream`. Vectors have the shape of the targets they belong to: (n,) or (n, c).

    Args:
        kernel: k.
        rule: "sgd" or "ogd".
        ridge: lam.
        tasks: the tasks on the rows of the joint kernel matrix.
        groups: outputs that share a memory; one group unless only ground-truth logits are protected.
        base_diagonal: k(x, x) of all points.
        tolerance: below this share of the largest k(x, x) a kernel value counted as zero.
    """

    kernel: Kernel
    rule: Rule
    ridge: float
    tasks: JointTasks
    groups: tuple[ColumnGroup, ...]
    base_diagonal: Tensor
    tolerance: float = 1e-12

    @property
    def points(self) -> Points:
        """The points of all tasks."""
        return self.tasks.points

    @property
    def blocks(self) -> tuple[Tensor, ...]:
        """For each task its rows in `points`."""
        return self.tasks.blocks

    @property
    def targets(self) -> tuple[Tensor, ...]:
        """For each task its targets, (rows, columns)."""
        return self.tasks.targets

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self.blocks)

    def __repr__(self) -> str:
        return f"Solution({len(self)} tasks, {self.rule}, ridge {self.ridge:g}, {len(self.points)} points)"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{task}</td><td>{self.samples(task)}</td><td>{self.dissimilarity(task):.4g}</td>"
            f"<td>{self.distance(task):.4g}</td></tr>"
            for task in range(1, len(self) + 1)
        )
        head = "<tr><th>task</th><th>samples</th><th>dissimilarity S</th><th>step of the weights</th></tr>"
        return f"<p>{escape(repr(self))}</p><table>{head}{rows}</table>"

    # -- the function ---------------------------------------------------------------------------------

    def predict(self, x: PointsLike, after: int | None = None) -> Tensor:
        """f_t(x), the function after task `after` (the last by default; 0 is f_0).

        Paper: Theorem 1 (`thm:conv`), with f_0 kept (Remark 1 prints the sum without it).
        """
        return self.trajectory(x)[self.last_task(after)]

    def trajectory(self, x: PointsLike) -> list[Tensor]:
        """f_0(x), f_1(x), ..., f_T(x) for one evaluation of the kernel."""
        points = self.kernel.points(x)
        before = as_matrix(self.tasks.initial(points), len(points), self.targets[0].shape[1])
        rows = self._span_rows()
        used = self.points.select(rows)
        moved = [torch.zeros_like(before) for _ in range(len(self))]
        for chunk in row_chunks(len(points), 16_000_000 // max(1, len(rows))):
            cross = self.kernel.gram(points.select(chunk), used)
            for group in self.groups:
                for number, learnt in enumerate(group.recursion.steps):
                    moved[number][chunk[:, None], group.columns[None]] = cross @ learnt.span[rows]
        values = [before]
        for change in moved:
            values.append(values[-1] + change)
        if isinstance(x, Points):  # rows chosen one by one come back one by one
            flat = self.tasks.vector or self.kernel.outputs > 1
            return [value.flatten() if flat else value for value in values]
        return [self.shaped(value, len(points)) for value in values]

    def increment(self, x: PointsLike, task: int) -> Tensor:
        """What task `task` added to the function at x: kappa_t(x, X_t) (K_t + lam I)^-1 r_t.

        Paper: the knowledge increment, Remark 1 (`cor:recursion`).
        """
        values = self.trajectory(x)
        return values[self.check_task(task)] - values[task - 1]

    def train_outputs(self, task: int, after: int | None = None) -> Tensor:
        """f_after(X_task) on the training points of a task, without evaluating the kernel again."""
        return self.shaped(self.output_matrix(task, self.last_task(after)), len(self.blocks[task - 1]))

    def residual(self, task: int) -> Tensor:
        """r_t = y_t - f_{t-1}(X_t): what is left to learn when the task begins."""
        return self.shaped(self._gather(task, "residual"), len(self.blocks[task - 1]))

    def coefficients(self, task: int) -> Tensor:
        """a_t = (K_t + lam I)^-1 r_t."""
        return self.shaped(self._gather(task, "coefficients"), len(self.blocks[task - 1]))

    def task_targets(self, task: int) -> Tensor:
        """y_t as given."""
        return self.shaped(self.targets[self.check_task(task) - 1], len(self.blocks[task - 1]))

    def task_points(self, task: int) -> Points:
        """X_t."""
        return self.points.select(self.blocks[self.check_task(task) - 1])

    def effective_kernel(self, task: int, output: int = 0) -> EffectiveKernel:
        """The kernel kappa_t while a task is learnt; kappa_1 = k. For OGD-GTL it depends on the output."""
        self.check_task(task)
        group = next(group for group in self.groups if output in group.columns.tolist())
        rank = group.recursion.steps[task - 1].memory_rank
        memory = self.points.select(group.recursion.kept[:rank])
        return EffectiveKernel(self.kernel, memory, group.recursion.factor.leading(rank))

    def effective_gram(self, task: int, output: int = 0) -> Tensor:
        """K_t = kappa_t(X_t, X_t), as used in the recursion."""
        self.check_task(task)
        group = next(group for group in self.groups if output in group.columns.tolist())
        return group.recursion.steps[task - 1].effective

    def rank(self, task: int) -> int:
        """How many linearly independent directions were protected while task `task` was learnt."""
        self.check_task(task)
        return sum(group.recursion.steps[task - 1].memory_rank * len(group.columns) for group in self.groups)

    def conditioning(self) -> Conditioning:
        """How far the memory is from being dependent, what was rejected, and how exact each task is solved."""
        pivots = [
            float(panel[:, panel.shape[1] - len(panel) :].diagonal().min()) ** 2
            for group in self.groups
            for panel in group.recursion.factor.panels
        ]
        scale = float(self.base_diagonal.max())
        return Conditioning(
            dropped=sum(len(group.recursion.dropped) * len(group.columns) for group in self.groups),
            smallest_pivot=min(pivots) / scale if pivots and scale > 0 else 1.0,
            unfitted=tuple(sum(step.lost for step in self.steps(task)) for task in range(1, len(self) + 1)),
            errors=tuple(
                max(self._error(step, scale) for step in self.steps(task)) for task in range(1, len(self) + 1)
            ),
        )

    def _error(self, step: Step, scale: float) -> float:
        """The relative error of what one task learns."""
        wanted = max(float(targets.abs().max()) for targets in self.targets)
        if float(step.residual.abs().max()) <= EPS**0.5 * wanted:
            return 0.0  # there is nothing to learn
        hidden = step.memory_rank > 0 and math.isinf(step.smallest)
        missing = self._resolvable(step, scale) or hidden
        cutoff = self.tolerance * scale
        share = cutoff / (cutoff + self.ridge) if step.lost and missing and cutoff > 0 else 0.0
        return min(1.0, max(EPS * scale / step.smallest, share))

    def _resolvable(self, step: Step, scale: float) -> bool:
        """Whether a direction was cut off although it is above rounding."""
        return step.largest_lost > ROUNDINGS * EPS * scale * math.sqrt(len(step.effective))

    def resolvable(self, task: int) -> bool:
        """Whether what a task has to learn lies above rounding, so that an error is one of this form of computing."""
        scale = float(self.base_diagonal.max())
        return any(not math.isinf(s.smallest) or self._resolvable(s, scale) for s in self.steps(task))

    # -- numbers --------------------------------------------------------------------------------------

    def dissimilarity(self, task: int) -> float:
        """S_t = r_t^T (K_t + lam I)^-1 r_t, the NTK task dissimilarity.

        Paper: section 5.3, S-bar. It is zero for a repeated task only without ridge: see ERRATA.md.
        """
        return sum(step.dissimilarity for step in self.steps(task))

    def distance(self, task: int) -> float:
        """||w_t - w_{t-1}||, how far the weights moved for this task.

        Paper: Corollary 1 (`cor:weight-dist`), with the effective kernel kappa_t.
        """
        return math.sqrt(sum(step.squared_distance for step in self.steps(task)))

    def distance_from_initialisation(self, after: int | None = None) -> float:
        """||w_t - w_0||. Since (w_t - w_0).phi(x) = f_t(x) - f_0(x), it needs no new kernel value."""
        return self.distance_between(0, self.last_task(after))

    def distance_between(self, first: int, last: int) -> float:
        """||w_last - w_first||, from the end of one task (0: initialisation) to the end of another."""
        first, last = sorted((self.last_task(first), self.last_task(last)))
        total = 0.0
        for group in self.groups:
            recursion = group.recursion
            if last > first:
                weights = torch.stack([step.span for step in recursion.steps[first:last]]).sum(0)
                total += float((weights * (recursion.outputs[last] - recursion.outputs[first])).sum())
        return math.sqrt(max(0.0, total))

    def effective_trace(self, task: int) -> float:
        """The trace of kappa_t(X_t, X_t), over all outputs."""
        return sum(step.trace for step in self.steps(task))

    def base_trace(self, task: int) -> float:
        """The trace of k(X_t, X_t), over all outputs."""
        rows = self.blocks[self.check_task(task) - 1]
        return float(self.base_diagonal[rows].sum()) * self.targets[task - 1].shape[1]

    def samples(self, task: int) -> int:
        """n_t, the number of inputs of a task."""
        return self.tasks.samples[self.check_task(task) - 1]

    def outputs_per_input(self, task: int) -> int:
        """Numbers that the function gives for one input of a task: they are one sample together."""
        return -(-self.targets[self.check_task(task) - 1].numel() // self.samples(task))

    def max_learning_rate(self, task: int) -> float:
        """The largest learning rate below which full-batch (projected) descent converges on this task.

        Paper: Theorem 1 (`thm:conv`), eta < 1 / ||K_t + lam I||, for the loss of section 3 (no factor 1/2).
        """
        largest = max(float(torch.linalg.eigvalsh(step.effective)[-1]) for step in self.steps(task))
        curvature = max(0.0, largest) + self.ridge
        return 1 / curvature if curvature > 0 else float("inf")

    # -- internals shared with the sibling modules ------------------------------------------------------

    def steps(self, task: int) -> list[Step]:
        """The step of each group of outputs on a task."""
        self.check_task(task)
        return [group.recursion.steps[task - 1] for group in self.groups]

    def _span_rows(self) -> Tensor:
        total = torch.zeros(len(self.points), dtype=torch.float64)
        for group in self.groups:
            for step in group.recursion.steps:
                total += step.span.abs().sum(1)
        return torch.nonzero(total).flatten()

    def _gather(self, task: int, name: str) -> Tensor:
        pieces = torch.empty_like(self.targets[self.check_task(task) - 1])
        for group, step in zip(self.groups, self.steps(task), strict=True):
            pieces[:, group.columns] = getattr(step, name)
        return pieces

    def output_matrix(self, task: int, after: int) -> Tensor:
        """f_after(X_task) as a (rows, columns) matrix."""
        rows = self.blocks[self.check_task(task) - 1]
        values = torch.empty_like(self.targets[task - 1])
        for group in self.groups:
            values[:, group.columns] = group.recursion.outputs[after][rows]
        return values

    def shaped(self, values: Tensor, rows: int) -> Tensor:
        """A (rows, columns) matrix in the shape in which the user gave targets."""
        if self.kernel.outputs > 1 and rows % self.kernel.outputs == 0:
            return values.reshape(rows // self.kernel.outputs, self.kernel.outputs)
        return values.flatten() if self.tasks.vector else values

    def check_task(self, task: int) -> int:
        """The task's number, if there is such a task."""
        check_value("task", task, int)
        if not 1 <= task <= len(self):
            raise SettingsError(f"tasks count from 1 to {len(self)} here, got task {task}")
        return task

    def last_task(self, after: int | None) -> int:
        """The task's number for `after=`: the last by default, 0 for initialisation."""
        if after is None:
            return len(self)
        check_value("after", after, int)
        if not 0 <= after <= len(self):
            raise SettingsError(
                f"after= is a task from 1 to {len(self)}, or 0 for initialisation: got {after}"
            )
        return after
