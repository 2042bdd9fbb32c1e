"""`solve_stream`: from a kernel and some tasks to the closed form of learning them in turn.

Paper: Theorem 1 (`thm:conv`), for SGD and OGD, any memory, any number of outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from orthocl.checking import checked
from orthocl.errors import DataError, SettingsError, unknown_name, warn
from orthocl.theory.joint_tasks import Initial, JointTasks, TaskData, join_tasks
from orthocl.theory.kernels import Kernel, KernelLike, as_kernel, check_memory, check_positive
from orthocl.theory.points import whole_numbers
from orthocl.theory.recursion import RULES, Rule, recurse
from orthocl.theory.ridge import check_ridge, check_tolerance
from orthocl.theory.solution import ColumnGroup, Solution

NOTICEABLE = 1e-3
"""Relative error by rounding that is worth a warning."""

Memory = int | Sequence[Tensor] | None


@checked(besides=("ridge",))
def solve_stream(
    kernel: KernelLike,
    tasks: Sequence[TaskData],
    *,
    rule: Rule = "ogd",
    ridge: float = 0.0,
    memory: Memory = None,
    labels: Sequence[Tensor] | None = None,
    initial: Initial | float | None = None,
    tolerance: float = 1e-12,
    memory_limit: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Solution:
    """Learn tasks one after the other in closed form.

    The result is the limit of full-batch gradient descent ("sgd") or of projected gradient descent ("ogd") of
    the linearised network on sum_i (f(x_i) - y_i)^2 + ridge * ||w - w_{t-1}||^2, started at w_{t-1}.

    Several outputs. With a kernel of one output and targets (n, c), each column is an output with the same
    kernel (infinitely wide networks: Theta = k (x) I_c). With `EmpiricalNTK(..., outputs="all")` each
    (input, logit) pair is a point and the outputs interact.

    Paper: Theorem 1 (`thm:conv`); its memory is that of the tasks *before* the current one (ERRATA.md).

    Args:
        kernel: a `Kernel`, or any function (x, z) -> matrix.
        tasks: (inputs, targets) pairs in the order of learning; targets (n,) or (n, c).
        rule: "sgd" or "ogd".
        ridge: lam >= 0; at 0 the minimum-norm limit is taken.
        memory: samples per task to remember: None for all, a number for that many from the first, or for each task
            the rows to remember (rows are points: (sample, logit) pairs when all logits are points).
        labels: for each task the class of every sample. When given, only the ground-truth logit of a
            remembered sample is protected (OGD-GTL); otherwise every output is.
        initial: f_0 as a function of `Points`, a constant, or None for the kernel's own (a network's outputs
            for `EmpiricalNTK`, zero otherwise).
        tolerance: a kernel value below tolerance * max k(x, x) counts as zero; at most 1e-3.
        memory_limit: bytes; by default what is free now.
        progress: called with each task's number when it is learnt.

    Raises:
        DataError: targets that do not fit the inputs; a kernel that is infinite, asymmetric or not positive.
        SettingsError: an unknown rule, a ridge that is negative or not finite, a joint matrix that does not fit.

    >>> first = (torch.tensor([[1.0, 0.0]]), torch.tensor([1.0]))
    >>> second = (torch.tensor([[1.0, 1.0]]), torch.tensor([0.0]))
    >>> tasks = [first, second]
    >>> linear = lambda x, z: x @ z.T
    >>> solve_stream(linear, tasks, rule="ogd").predict(torch.tensor([[1.0, 0.0]]), after=2)
    tensor([1.], dtype=torch.float64)
    >>> solve_stream(linear, tasks, rule="sgd").predict(torch.tensor([[1.0, 0.0]]), after=2)
    tensor([0.5000], dtype=torch.float64)
    """
    if rule not in RULES:
        raise unknown_name("rule", rule, RULES)
    ridge = check_ridge(ridge)
    check_tolerance(tolerance)
    kernel = as_kernel(kernel)
    joint = join_tasks(kernel, tasks, initial)
    count, largest = len(joint.points), max(len(block) for block in joint.blocks)
    # The joint matrix, half as much again for the memory's factor, and working copies of the largest task.
    needed = 8 * (count**2 * (3 if rule == "ogd" else 2) // 2 + 4 * count * largest)
    advice = "take fewer samples per task"
    check_memory(needed, memory_limit, f"the joint kernel matrix of {count} points", advice)
    gram = kernel.gram(joint.points)
    check_positive(gram)
    chosen = memory_rows(kernel, joint, memory)
    groups = []
    for columns, rows in _groups(kernel, joint, chosen, labels):
        recursion = recurse(
            gram,
            joint.blocks,
            [target[:, columns] for target in joint.targets],
            joint.start[:, columns],
            rule=rule,
            ridge=ridge,
            memory=rows,
            tolerance=tolerance,
            progress=progress,
        )
        groups.append(ColumnGroup(columns, tuple(rows), recursion))
    solution = Solution(kernel, rule, ridge, joint, tuple(groups), gram.diagonal().clone(), tolerance)
    _warn_of_rounding(solution)
    return solution


def _warn_of_rounding(solution: Solution) -> None:
    for task, error in enumerate(solution.conditioning().errors, start=1):
        if error > NOTICEABLE and solution.resolvable(task):
            warn(
                f"what task {task} adds to the memory is so small that float64 resolves what it learns with a relative "
                f"error of about {error:.0e}: give a ridge, or use solve_in_feature_space, which loses half as many "
                "digits"
            )


@checked()
def ground_truth_rows(labels: Tensor, outputs: int) -> Tensor:
    """Rows of the ground-truth logits among all (sample, logit) points of a task.

    >>> ground_truth_rows(torch.tensor([2, 0]), outputs=3)
    tensor([2, 3])
    """
    classes = whole_numbers(labels, "labels").flatten()
    return torch.arange(len(classes)) * outputs + classes


def memory_rows(kernel: Kernel, joint: JointTasks, memory: Memory) -> list[Tensor]:
    """For each task the rows within its block to remember."""
    sizes = [len(block) for block in joint.blocks]
    if memory is None:
        return [torch.arange(size) for size in sizes]
    if isinstance(memory, int) and not isinstance(memory, bool):
        if memory < 0:
            raise SettingsError(f"expected a memory of zero samples or more, got {memory}")
        return [torch.arange(min(memory * kernel.outputs, size)) for size in sizes]
    if not isinstance(memory, Sequence):
        raise SettingsError(
            f"expected a memory as a number of samples or as rows of each task, got {memory!r}"
        )
    if len(memory) != len(sizes):
        raise SettingsError(f"expected the rows to remember for {len(sizes)} tasks, got {len(memory)}")
    chosen = []
    for number, (rows, size) in enumerate(zip(memory, sizes, strict=True), start=1):
        rows = whole_numbers(rows, f"rows to remember of task {number}").flatten()
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < size:
            raise SettingsError(f"rows to remember of task {number} must lie in 0 .. {size - 1}")
        chosen.append(rows)
    return chosen


def _groups(
    kernel: Kernel, joint: JointTasks, chosen: Sequence[Tensor], labels: Sequence[Tensor] | None
) -> list[tuple[Tensor, list[Tensor]]]:
    """Columns that share a memory, each with the rows of every task to remember.

    With Theta = k (x) I_c the outputs do not interact. All logits protected: one memory for all columns.
    Ground-truth logits protected: output j is projected off the samples labelled j only, so each column is a separate
    recursion.
    """
    columns = joint.targets[0].shape[1]
    everything = torch.arange(columns)
    if labels is None:
        return [(everything, list(chosen))]
    if not isinstance(labels, Sequence) or isinstance(labels, str):
        raise DataError(
            f"expected labels as a list with one vector of classes per task, got {str(labels)[:60]}"
        )
    classes = [whole_numbers(label, "labels").flatten() for label in labels]
    if len(classes) != len(joint.samples):
        raise DataError(f"expected labels of {len(joint.samples)} tasks, got {len(classes)}")
    outputs = kernel.outputs if kernel.outputs > 1 else columns
    for number, (samples, label) in enumerate(zip(joint.samples, classes, strict=True), start=1):
        if len(label) != samples or not 0 <= int(label.min()) <= int(label.max()) < outputs:
            raise DataError(
                f"labels of task {number}: expected {samples} classes in 0 .. {outputs - 1}, "
                f"got {len(label)} in {int(label.min())} .. {int(label.max())}"
            )
    if kernel.outputs > 1:
        rows = []
        for block, label, own in zip(joint.blocks, classes, chosen, strict=True):
            truth = torch.zeros(len(block), dtype=torch.bool)
            truth[ground_truth_rows(label, kernel.outputs)] = True
            rows.append(own[truth[own]])
        return [(everything, rows)]
    return [
        (torch.tensor([j]), [own[label[own] == j] for own, label in zip(chosen, classes, strict=True)])
        for j in range(columns)
    ]
