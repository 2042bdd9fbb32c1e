"""Orders of tasks: how dissimilar tasks are, what R_T an order has, and the order of the smallest R_T.

Paper: section 5.3 (NTK task dissimilarity, complexity measure R_T) and its paragraph on curriculum learning.

What holds of that paragraph (tests/theorems, ERRATA.md): for SGD without ridge a repeated task costs nothing,
so AABB never costs more than ABAB. With a ridge it can be the other way round. For OGD that remembers
everything a repeated task has a zero effective kernel, costs nothing and changes nothing: every arrangement
of repeats costs the same, and the paragraph says nothing.

The order of the smallest R_T. For OGD that remembers everything, without ridge, and tasks that one function of the
kernel can fit all at once, the effective kernel and the function after a set of tasks depend on the set only, so that
    V(S) = min_{t in S} V(S minus t) + cost(S minus t, t)
finds it exactly in T 2^(T-1) evaluations. Otherwise the function depends on the path: with one input, A = (1, 1)
and B = (1, -1), it ends at whichever came first.

What R_T is good for. It is a proxy for how much is explored on the way, and no measure of how good the result is: in
the exact case the function after the last task is the same in every order, and elsewhere the rank correlation of R_T
with the final test error has either sign (-0.43 to 0.70 over all orders of four tasks of digits: docs/theory.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from orthocl.checking import check_value, checked
from orthocl.errors import SettingsError, unknown_name
from orthocl.tangents.cholesky import WELL_CONDITIONED, independent_rows
from orthocl.theory.joint_tasks import Initial, TaskData, join_tasks
from orthocl.theory.kernels import KernelLike, as_kernel, check_memory, check_positive
from orthocl.theory.recursion import RULES, Recursion, Rule, recurse
from orthocl.theory.ridge import check_ridge, check_tolerance, solve_ridge

SearchRule = Literal["auto", "subsets", "exhaustive", "beam"]
SEARCH_RULES = ("auto", "subsets", "exhaustive", "beam")


@dataclass(frozen=True)
class Order:
    """An order of tasks and its R_T.

    Args:
        tasks: task numbers, from 1, in the order of learning.
        complexity: R_T of this order: a proxy, not an error.
        search: how it was found.
        exact: whether no other order can have a smaller R_T.
    """

    tasks: tuple[int, ...]
    complexity: float
    search: str
    exact: bool = False


class Curriculum:
    """Tasks with one joint kernel matrix, to compare orders without computing the kernel again.

    Args:
        kernel: a kernel or a function (x, z) -> matrix.
        tasks: (inputs, targets) pairs; orders refer to them by their position, from 1.
        rule: "sgd" or "ogd".
        ridge: lam.
        memory: samples per task that OGD remembers; None for all.
        initial: f_0, as for `solve_stream`.
        memory_limit: bytes; by default what is free.

    >>> x, flip = torch.eye(2), torch.tensor([1.0, -1.0])
    >>> curriculum = Curriculum(lambda x, z: x @ z.T, [(x, flip), (x, -flip)], rule="sgd")
    >>> curriculum.complexity([1, 1, 2, 2]) < curriculum.complexity([1, 2, 1, 2])
    True
    """

    @checked(besides=("ridge",))
    def __init__(
        self,
        kernel: KernelLike,
        tasks: Sequence[TaskData],
        *,
        rule: Rule = "ogd",
        ridge: float = 0.0,
        memory: int | None = None,
        initial: Initial | float | None = None,
        tolerance: float = 1e-12,
        memory_limit: int | None = None,
    ):
        if rule not in RULES:
            raise unknown_name("rule", rule, RULES)
        ridge = check_ridge(ridge)
        check_tolerance(tolerance)
        if memory is not None and memory < 0:
            raise SettingsError(f"expected a memory of zero samples or more, got {memory}")
        kernel = as_kernel(kernel)
        joint = join_tasks(kernel, tasks, initial)
        count = len(joint.points)
        advice = "take fewer samples per task"
        check_memory(3 * 8 * count**2, memory_limit, f"the joint kernel matrix of {count} points", advice)
        self.gram = kernel.gram(joint.points)
        check_positive(self.gram)
        self.blocks, self.targets, self.samples = joint.blocks, joint.targets, joint.samples
        self.initial = joint.start
        sizes = [len(block) for block in joint.blocks]
        kept = [size if memory is None else min(memory * kernel.outputs, size) for size in sizes]
        self.remembered = [torch.arange(count) for count in kept]
        self.full_memory = kept == sizes
        self.rule: Rule = rule
        self.ridge = ridge
        self.tolerance = tolerance
        self.memory_limit = memory_limit

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def cutoff(self) -> float:
        """Below this a kernel value counts as zero."""
        return self.tolerance * float(self.gram.diagonal().max())

    # -- one order --------------------------------------------------------------------------------------

    def learn(self, order: Sequence[int]) -> Recursion:
        """Learn tasks in this order; tasks may repeat."""
        if not isinstance(order, Sequence):
            raise SettingsError(f"expected an order as a list of task numbers, got {order!r}")
        for number in order:
            check_value("task", number, int)
            if not 1 <= number <= len(self):
                raise SettingsError(f"tasks count from 1 to {len(self)} here, got task {number}")
        return recurse(
            self.gram,
            [self.blocks[number - 1] for number in order],
            [self.targets[number - 1] for number in order],
            self.initial,
            rule=self.rule,
            ridge=self.ridge,
            memory=[self.remembered[number - 1] for number in order],
            tolerance=self.tolerance,
        )

    def complexity_terms(self, order: Sequence[int]) -> list[float]:
        """The terms sqrt(tr K_t S_t) / n_t of R_T for tasks learnt in this order; tasks may repeat."""
        steps = self.learn(order).steps
        return [
            math.sqrt(max(0.0, step.trace * step.dissimilarity)) / self.samples[number - 1]
            for number, step in zip(order, steps, strict=True)
        ]

    def complexity(self, order: Sequence[int]) -> float:
        """R_T of an order. A proxy, not a bound: see `complexity_proxy`."""
        return sum(self.complexity_terms(order))

    def dissimilarity_matrix(self) -> Tensor:
        """S of learning task j right after task i alone, (T + 1, T); row 0 is from initialisation.

        Paper: section 5.3, S-bar. Nothing is trained: it is all closed form. The diagonal is a task after
        itself: zero without ridge only (if the kernel is positive definite).
        """
        count = len(self)
        table = torch.zeros(count + 1, count, dtype=torch.float64)
        states = [self.initial] + [self.learn([task]).outputs[-1] for task in range(1, count + 1)]
        if self.rule == "sgd":
            for j, (rows, target) in enumerate(zip(self.blocks, self.targets, strict=True)):
                residuals = torch.cat([target - state[rows] for state in states], 1)
                kernel = self.gram[rows][:, rows]
                solved = solve_ridge(kernel, residuals, self.ridge, self.cutoff).coefficients
                table[:, j] = (residuals * solved).sum(0).reshape(count + 1, -1).sum(1)
            return table
        for j in range(1, count + 1):
            table[0, j - 1] = self.learn([j]).steps[0].dissimilarity
            for i in range(1, count + 1):
                table[i, j - 1] = self.learn([i, j]).steps[1].dissimilarity
        return table

    # -- orders to compare with -------------------------------------------------------------------------

    def neighbours_order(self, similar: bool = True) -> Order:
        """Start with the cheapest task, then always the nearest to the last one (or the farthest).

        "Similar first" is the reading of the paper's paragraph as a recipe; the opposite is its control.
        """
        table = self.dissimilarity_matrix()
        start = int(table[0].argmin())
        order, left = [start], set(range(len(self))) - {start}
        choose = min if similar else max
        while left:
            last = order[-1]
            following = choose(sorted(left), key=lambda task: float(table[last + 1, task]))
            order.append(following)
            left.remove(following)
        tasks = tuple(task + 1 for task in order)
        name = "similar neighbours" if similar else "dissimilar neighbours"
        return Order(tasks, self.complexity(tasks), name)

    def greedy_order(self) -> Order:
        """Always the task that adds least to R_T."""
        return self._beam(width=1, search="greedy")

    # -- the order of the smallest R_T ------------------------------------------------------------------

    def same_result(self) -> bool:
        """Whether the function after the last task is the same in every order, whatever R_T says.

        So it is for OGD that remembers everything, without ridge, on tasks that one function fits all at once: it
        ends at the function of smallest norm that does.
        """
        return self.rule == "ogd" and self.full_memory and self.ridge == 0 and self.realisable()

    def realisable(self) -> bool:
        """Whether one function of the kernel fits all tasks at once: no dependent point is left with a residual."""
        residual = torch.cat(list(self.targets)) - self.initial
        threshold = torch.full_like(self.gram.diagonal(), self.cutoff)
        kept, factor = independent_rows(self.gram, threshold, WELL_CONDITIONED * self.cutoff / self.tolerance)
        if len(kept) == len(self.gram):
            return True
        fitted = (
            self.gram[:, kept] @ torch.cholesky_solve(residual[kept], factor) if len(kept) else 0 * residual
        )
        left = float((residual - fitted).abs().max())
        return left <= 1e-6 * max(float(residual.abs().max()), 1e-300)

    @checked()
    def best_order(
        self,
        search: SearchRule = "auto",
        beam_width: int = 8,
        progress: Callable[[int, int], None] | None = None,
    ) -> Order:
        """The order of the smallest R_T, which need not be that of the smallest error: see `same_result`.

        Args:
            search: "subsets" is the dynamic programme over subsets (exact only for OGD that remembers
                everything, without ridge, on tasks that can be fitted all at once, see `realisable`; otherwise
                a heuristic, then improved by exchanges), "exhaustive" tries all orders, "beam" is a beam search
                improved by exchanges. "auto" takes the first that is exact: subsets, all orders of up to 6
                tasks, and else the better of the heuristics.
            beam_width: orders kept at each length.
            progress: called with (done, all) subsets or orders.

        Raises:
            SettingsError: for "subsets" with SGD or a partial memory, where it has no meaning, and for
                "exhaustive" with more than 9 tasks.
        """
        if search not in SEARCH_RULES:
            raise unknown_name("search rule", search, SEARCH_RULES)
        sets = self.rule == "ogd" and self.full_memory
        if search == "subsets" and not sets:
            raise SettingsError(
                "the programme over subsets needs OGD that remembers everything (rule='ogd', memory=None): "
                "otherwise what a task costs depends on the order of those before it. Use search='beam'"
            )
        exact = search in ("auto", "subsets") and self.same_result()
        if search == "exhaustive" or (search == "auto" and len(self) <= 6 and not exact):
            return self._exhaustive(progress)
        found = []
        if search == "subsets" or (search == "auto" and sets):
            found.append(self._subsets(progress, exact))
            if exact:
                return found[0]
        if search in ("beam", "auto"):
            found.append(self._beam(beam_width, "beam"))
        return min((self._exchange(order) for order in found), key=lambda order: order.complexity)

    def _exhaustive(self, progress: Callable[[int, int], None] | None) -> Order:
        total = math.factorial(len(self))
        if len(self) > 9:
            raise SettingsError(
                f"{len(self)} tasks have {total:.1e} orders, too many to try all (at most 9 tasks): "
                "use search='beam', or 'subsets' for OGD that remembers everything"
            )
        best: tuple[float, tuple[int, ...]] | None = None
        for done, order in enumerate(itertools.permutations(range(1, len(self) + 1)), start=1):
            value = self.complexity(order)
            if best is None or value < best[0]:
                best = (value, order)
            if progress is not None:
                progress(done, total)
        if best is None:
            raise SettingsError("expected at least one task, got none")
        return Order(best[1], best[0], "exhaustive", exact=True)

    def _subsets(self, progress: Callable[[int, int], None] | None, exact: bool) -> Order:
        check_memory(
            8 * len(self.gram) ** 2 * (len(self) + 2) // 3,
            self.memory_limit,
            f"the programme over subsets of {len(self)} tasks with {len(self.gram)} points",
            "take fewer samples per task or search='beam'",
        )
        costs = _SubsetCosts(self, progress).run()
        tasks = tuple(task + 1 for task in _cheapest_path(costs, len(self)))
        return Order(tasks, self.complexity(tasks), "subsets", exact)

    def _beam(self, width: int, search: str) -> Order:
        kept: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for _ in range(len(self)):
            longer = [
                (self.complexity((*order, task)), (*order, task))
                for _, order in kept
                for task in range(1, len(self) + 1)
                if task not in order
            ]
            kept = sorted(longer)[:width]
        return Order(kept[0][1], kept[0][0], search)

    def _exchange(self, order: Order) -> Order:
        """Reverse segments of the order while that makes it cheaper (2-opt)."""
        best, improved = order, True
        while improved:
            improved = False
            for first, last in itertools.combinations(range(len(self)), 2):
                tasks = best.tasks
                tasks = (*tasks[:first], *reversed(tasks[first : last + 1]), *tasks[last + 1 :])
                value = self.complexity(tasks)
                if value < best.complexity * (1 - 1e-12):
                    best, improved = Order(tasks, value, f"{order.search} + exchanges"), True
        return best


class _SubsetCosts:
    """cost(S, t) for every set S of tasks and every task t outside it, by sweeping tasks out of the kernel.

    Learning task t without ridge replaces the kernel of the others by its Schur complement and their residuals
    by r - G_{.t} G_tt^+ r_t. Each set is reached once, by its tasks in increasing order.
    """

    def __init__(self, curriculum: Curriculum, progress: Callable[[int, int], None] | None):
        self.curriculum = curriculum
        self.count = len(curriculum)
        self.cutoff = curriculum.cutoff
        self.clear = WELL_CONDITIONED * curriculum.cutoff / curriculum.tolerance
        self.progress = progress
        self.visited = 0
        self.costs: list[dict[int, float]] = [{} for _ in range(2**self.count)]

    def run(self) -> list[dict[int, float]]:
        residual = torch.cat(list(self.curriculum.targets)) - self.curriculum.initial
        tasks = list(range(self.count))
        self._visit(
            0, tasks, [len(block) for block in self.curriculum.blocks], self.curriculum.gram, residual, 0
        )
        return self.costs

    def _visit(
        self, subset: int, tasks: list[int], sizes: list[int], gram: Tensor, residual: Tensor, start: int
    ) -> None:
        self.visited += 1
        if self.progress is not None:
            self.progress(self.visited, 2**self.count)
        place = 0
        for position, task in enumerate(tasks):
            rows = slice(place, place + sizes[position])
            place = rows.stop
            threshold = gram.new_full((sizes[position],), self.cutoff)
            kept, factor = independent_rows(gram[rows, rows], threshold, self.clear)
            white = torch.linalg.solve_triangular(factor, residual[rows][kept], upper=False)
            trace = float(gram[rows, rows].diagonal().clamp_min(0).sum()) * residual.shape[1]
            if len(kept) == 0:
                trace = 0.0
            cost = math.sqrt(trace * float(white.square().sum())) / self.curriculum.samples[task]
            self.costs[subset][task] = cost
            if task < start or len(tasks) == 1:
                continue
            others = torch.cat([torch.arange(rows.start), torch.arange(rows.stop, len(gram))])
            across = gram[rows][kept][:, others]
            swept = torch.linalg.solve_triangular(factor, across, upper=False)
            self._visit(
                subset | 1 << task,
                tasks[:position] + tasks[position + 1 :],
                sizes[:position] + sizes[position + 1 :],
                gram[others][:, others] - swept.T @ swept,
                residual[others] - swept.T @ white,
                task + 1,
            )


def _cheapest_path(costs: list[dict[int, float]], count: int) -> list[int]:
    """The order of tasks of least total cost, V(S) = min_t V(S minus t) + cost(S minus t, t)."""
    best = [0.0] + [math.inf] * (2**count - 1)
    last = [-1] * 2**count
    for subset in range(2**count):
        for task, cost in costs[subset].items():
            larger = subset | 1 << task
            if best[subset] + cost < best[larger]:
                best[larger], last[larger] = best[subset] + cost, task
    order, subset = [], 2**count - 1
    while subset:
        order.append(last[subset])
        subset ^= 1 << last[subset]
    return order[::-1]
