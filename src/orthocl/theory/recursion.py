"""Continual learning as recursive kernel regression, on a joint kernel matrix.

Paper: Theorem 1 (`thm:conv`), Remark 1 (`cor:recursion`), Corollary 1 (`cor:weight-dist`).

For task t with points X_t, targets y_t and the memory M_t of the tasks before it (empty for t = 1):
    kappa_t(x, z) = phi(x)^T P_t phi(z), P_t = I for SGD and off the span of phi(M_t) for OGD,
    K_t = kappa_t(X_t, X_t),   r_t = y_t - f_{t-1}(X_t),   a_t = (K_t + lam I)^-1 r_t,
    f_t(x) = f_{t-1}(x) + kappa_t(x, X_t) a_t,   w_t - w_{t-1} = P_t Phi_t^T a_t.
This is the limit of full-batch (projected) gradient descent on
    sum_i (f(x_i) - y_i)^2 + lam ||w - w_{t-1}||^2.
The printed theorem projects off the tasks 1..t, which leaves nothing to learn: see ERRATA.md.

w_t - w_{t-1} is a combination of tangents of points seen so far: a_t on X_t, and -L^-T V(X_t) a_t on the
memory. These weights ("span") make every later evaluation one product with the plain kernel k.

The memory. With the rows Phi_Z of the memorised tangents, the projector on their span is
Phi_Z^T (Phi_Z Phi_Z^T)^+ Phi_Z, so phi(x)^T P phi(z) = k(x, z) - k(x, Z) k(Z, Z)^+ k(Z, z): a Schur complement,
without a single tangent. Z holds only linearly independent points, so k(Z, Z) = L L^T and
kappa(x, z) = k(x, z) - V(x)^T V(z) with V(x) = L^-1 k(Z, x). L is the growing Cholesky factor of the training
engine (`tangents.cholesky`), whose tolerance is this module's too: a point whose kappa(x, x) is at most
tolerance * scale already lies in the span and is rejected, and so is one whose kappa(x, x) the rounding of k
hides. The output at such a point can still move, by at most sqrt(tolerance * scale) times the length of the step.
The pseudo-inverse of k(Z, Z) is never formed: it loses no-forgetting at the square root of the condition number
at which this form keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from orthocl.tangents.cholesky import GrowingCholesky
from orthocl.theory.ridge import solve_ridge

Rule = Literal["sgd", "ogd"]
RULES = ("sgd", "ogd")


@dataclass(frozen=True)
class Step:
    """What learning one task did, for one group of outputs that share a memory.

    Args:
        residual: r_t, (n, c).
        coefficients: a_t, (n, c).
        in_range: the part of a_t that the function needs (see `ridge`).
        effective: K_t, (n, n).
        span: weights of w_t - w_{t-1} on the tangents of all rows of the joint matrix, (N, c).
        memory_rank: how many independent points were in memory when this task began.
        lost: directions of K_t below the cut-off in which the residual was not zero.
        smallest: the smallest eigenvalue of K_t + lam that counted, and the largest of K_t that was lost.
    """

    residual: Tensor
    coefficients: Tensor
    in_range: Tensor
    effective: Tensor
    span: Tensor
    memory_rank: int
    lost: int = 0
    smallest: float = math.inf
    largest_lost: float = 0.0

    @property
    def dissimilarity(self) -> float:
        """S_t = r_t^T (K_t + lam I)^-1 r_t."""
        return max(0.0, float((self.residual * self.coefficients).sum()))

    @property
    def squared_distance(self) -> float:
        """||w_t - w_{t-1}||^2 = a_t^T K_t a_t."""
        return max(0.0, float((self.in_range * (self.effective @ self.in_range)).sum()))

    @property
    def trace(self) -> float:
        """The trace of Theta_t(X_t, X_t): the trace of K_t, once per output of the group."""
        return float(self.effective.diagonal().sum()) * self.residual.shape[1]


@dataclass
class Recursion:
    """The steps of one group of outputs through a sequence of tasks.

    Args:
        factor: the memory's factor.
        kept: rows of the joint matrix in memory, in the factor's order.
        dropped: rows of the joint matrix that were to be remembered but lie in the span of the others.
        steps: one per task.
        outputs: f_0, f_1, ..., f_T on all rows of the joint matrix, each (N, c).
    """

    factor: GrowingCholesky = field(default_factory=GrowingCholesky)
    kept: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    dropped: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    steps: list[Step] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)


def recurse(
    gram: Tensor,
    blocks: Sequence[Tensor],
    targets: Sequence[Tensor],
    initial: Tensor,
    *,
    rule: Rule,
    ridge: float,
    memory: Sequence[Tensor],
    tolerance: float = 1e-12,
    progress: Callable[[int], None] | None = None,
) -> Recursion:
    """Run the recursion over blocks of rows of a joint kernel matrix; a repeated task is a repeated block.

    Args:
        gram: k on all N rows, (N, N) float64.
        blocks: rows of each task, in the order of learning.
        targets: targets of each task, (n, c).
        initial: f_0 on all rows, (N, c).
        rule: "sgd" or "ogd".
        ridge: lam.
        memory: for each task the rows *within its block* to memorise when it ends ("ogd" only).
        tolerance: relative to the largest k(x, x): below it a kernel value counts as zero.
        progress: called with the task's number when it is done.
    """
    scale = float(gram.diagonal().max()) if len(gram) else 0.0
    cutoff = tolerance * scale
    state = Recursion(outputs=[initial])
    whitened: Tensor | None = None
    for number, (rows, target) in enumerate(zip(blocks, targets, strict=True), start=1):
        if rule == "ogd" and number > 1 and whitened is not None:
            _memorise(state, blocks[number - 2], memory[number - 2], whitened, scale, tolerance)
        base = _square(gram, rows)
        if rule == "ogd":
            whitened = state.factor.solve_lower(_cross(gram, state.kept, rows))
            effective = base - whitened.T @ whitened if len(whitened) else base
            left = effective.diagonal()
            cleared = float(left[left <= cutoff].amax()) if bool((left <= cutoff).any()) else 0.0
            effective = _clean(effective, cutoff)
        else:
            cleared = 0.0
            effective = base.clone()  # a view would keep the whole joint matrix alive
        residual = target - state.outputs[-1][rows]
        solved = solve_ridge(effective, residual, ridge, cutoff)
        span = torch.zeros_like(initial).index_add_(0, rows, solved.in_range)
        if whitened is not None and len(whitened):
            span.index_add_(0, state.kept, -state.factor.solve_upper(whitened @ solved.in_range))
        state.steps.append(
            Step(
                residual,
                solved.coefficients,
                solved.in_range,
                effective,
                span,
                state.factor.size,
                solved.lost,
                solved.smallest,
                max(solved.largest_lost, cleared if solved.lost else 0.0),
            )
        )
        state.outputs.append(state.outputs[-1] + _apply(gram, span))
        if progress is not None:
            progress(number)
    return state


def _memorise(
    state: Recursion, rows: Tensor, chosen: Tensor, whitened: Tensor, scale: float, tolerance: float
) -> None:
    """Put the chosen points of the task just learnt into memory (done only when a next task comes)."""
    effective = state.steps[-1].effective
    if len(chosen) != len(rows):
        effective = effective[chosen][:, chosen]
        whitened = whitened[:, chosen]
    kept = state.factor.join(whitened, effective, scale, tolerance)
    state.kept = torch.cat([state.kept, rows[chosen[kept]]])
    turned_away = torch.ones(len(chosen), dtype=torch.bool)
    turned_away[kept] = False
    state.dropped = torch.cat([state.dropped, rows[chosen[turned_away]]])


def _clean(effective: Tensor, cutoff: float) -> Tensor:
    """Symmetric, and exactly zero for points that lie in the span of the memory."""
    effective = (effective + effective.T) / 2
    spent = effective.diagonal() <= cutoff
    if bool(spent.any()):
        effective[spent] = 0.0
        effective[:, spent] = 0.0
    return effective


def as_slice(rows: Tensor) -> slice | None:
    """The slice of consecutive increasing rows, or None: slices of a matrix are views, not copies."""
    if len(rows) == 0:
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 != len(rows) or not bool((rows == torch.arange(first, last + 1)).all()):
        return None
    return slice(first, last + 1)


def _cross(gram: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    height, width = as_slice(rows), as_slice(columns)
    left = gram[height] if height is not None else gram[rows]
    return left[:, width] if width is not None else left[:, columns]


def _square(gram: Tensor, rows: Tensor) -> Tensor:
    return _cross(gram, rows, rows)


def _apply(gram: Tensor, span: Tensor) -> Tensor:
    """The product gram @ span, reading only the rows between the first and the last non-zero weight."""
    used = torch.nonzero(span.abs().sum(1)).flatten()
    if len(used) == 0:
        return torch.zeros_like(span)
    window = slice(int(used[0]), int(used[-1]) + 1)
    return gram[window].T @ span[window]
