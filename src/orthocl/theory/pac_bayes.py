"""PAC-Bayes bounds in the effective kernel: small enough to be informative on real data.

Paper: what its dissimilarity S_t is good for; the bound itself is after McAllester, Seeger and Maurer.

Setting. Before S_t is drawn, w_{t-1} and P_t are fixed (S_t independent of earlier samples). Prior: weights
w_{t-1} + P_t g with g normal of variance s^2, that is the Gaussian process GP(f_{t-1}, s^2 kappa_t). Posterior: mean
w_T (w_T - w_{t-1} lies in the range of P_t, because later projectors are nested in it), and the covariance that a
Gaussian process has after seeing X_t with noise v: s^2 (kappa_t - kappa_t(., X)(K + v)^-1 kappa_t(X, .)). Then
    KL = 1/2 [log det(I + K / v) - tr K (K + v)^-1] + ||w_T - w_{t-1}||^2 / (2 s^2),
and with probability 1 - delta', for all posteriors at once (Maurer 2004),
    kl(empirical Gibbs error || Gibbs error) <= (KL + log(xi(n) / delta')) / n,
    xi(n) = sum_k C(n, k) (k/n)^k (1 - k/n)^(n - k) <= 2 sqrt(n).
For after = t the last term of KL is at most S_t / (2 s^2): the paper's dissimilarity, at the rate S / n.

A prior from part of the data. Let A be some samples of S_t and B the rest, the choice fixed before the data: by a
permutation, not by position, since rows may come in an order that depends on them, such as class after class.
Given A, take as prior the mean w_A
of ridge regression on A from w_{t-1} and the covariance after seeing A; the bound is then on B alone. All of it is
closed form: (C + v)^-1 on B, C the prior's kernel, is the block of (K + v)^-1, so that
    KL = 1/2 [log det(I + K / v) - log det(I + K_A / v) - (n_B - v tr_B (K + v)^-1)]
         + (||w_T - w_A||^2 + ||f_T(A) - f_A(A)||^2 / v) / (2 s^2).
If B is independent of the samples of ALL other tasks, later ones too, the prior's mean may be the end w'_T of the
same stream learnt without B, which is nearer to w_T than w_A is when much was learnt after task t. w'_T - w_{t-1}
lies in the range of P_t as well, so that only the two distances change. Such a prior belongs to one `after`, and what
is remembered of S_t must not be chosen by looking at S_t, or A's memory would know B.

The Gibbs error at (x, y) is the probability Phi(-y f_T(x) / sigma(x)) that a draw of the posterior has the wrong
sign. Where the mean is wrong it is at least 1/2, so the error of f_T itself is at most twice the Gibbs error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from scipy import optimize, special
from torch import Tensor

from orthocl.errors import DataError, SettingsError
from orthocl.theory.points import row_chunks
from orthocl.theory.recursion import recurse
from orthocl.theory.ridge import solve_ridge
from orthocl.theory.solution import Solution

Prior = Literal["other-samples", "earlier-tasks", "initialisation"]
PRIORS = ("other-samples", "earlier-tasks", "initialisation")
SCALES = tuple(4.0**power for power in range(-8, 9))
"""Choices of s^2 and of v; the bound pays for the choice."""
SHARES = (0.0, 0.5)
"""Choices of the share of the sample that the prior may see."""
TOGETHER = len(SCALES) ** 2 * len(SHARES)


@dataclass(frozen=True)
class GibbsBound:
    """A PAC-Bayes bound of the Gibbs error.

    Args:
        value: the bound.
        empirical: the Gibbs error on the samples it is measured on.
        divergence: KL of posterior and prior.
        samples: on how many it is measured.
        share: of the task's sample that the prior has seen.
        scale: s^2.
        noise: v.
    """

    value: float
    empirical: float
    divergence: float
    samples: int
    share: float
    scale: float
    noise: float


@dataclass(frozen=True)
class _Problem:
    """Prior and posterior on the points of the task: where the prior starts, its kernel, how far the posterior is."""

    start: Tensor
    kernel: Tensor
    squared_distance: float
    final: Tensor
    targets: Tensor
    ridge: float
    cutoff: float
    reduced: Callable[[int], tuple[float, float]] | None = None

    def ordered(self, order: Tensor) -> _Problem:
        """The same with the points in another order."""
        return replace(
            self,
            start=self.start[order],
            kernel=self.kernel[order][:, order],
            final=self.final[order],
            targets=self.targets[order],
        )


def gibbs_bound(
    solution: Solution, task: int, after: int, delta: float, prior: Prior = "earlier-tasks"
) -> GibbsBound:
    """The smallest PAC-Bayes bound over fixed grids of s^2, v and the prior's share, at level delta altogether.

    Args:
        solution: the closed form, of one output.
        task: whose distribution.
        after: after which task.
        delta: the probability of failure.
        prior: "earlier-tasks" starts at f_{t-1} in kappa_t and needs S_t independent of earlier samples;
            "other-samples" uses the samples of later tasks too and needs independence of them, and a memory that was
            not chosen by looking at the task's samples;
            "initialisation" starts at f_0 in k and needs nothing.
    """
    outputs = solution.outputs_per_input(task)
    if outputs != 1:
        raise SettingsError(
            "the PAC-Bayes form bounds the sign's error of one output with targets +-1, "
            f"got {outputs} outputs: use form='sound', or one output"
        )
    if prior == "other-samples" and not remembers_by_number(solution, task):
        raise SettingsError(
            "the prior 'other-samples' needs what is remembered of a task to be chosen without looking at its samples, "
            "but rows were given: remember a number of samples (memory=20), or take prior='earlier-tasks'"
        )
    problem = _problem(solution, task, after, prior).ordered(prior_order(solution.samples(task)))
    if bool((problem.targets == 0).any()):
        raise DataError("the PAC-Bayes form needs targets that have a sign: some are zero")
    values, vectors = torch.linalg.eigh(problem.kernel)
    values = values.clamp_min(0)
    noises = torch.tensor(SCALES, dtype=torch.float64)
    # diag K (K + v)^-1, one column per v; as 1 - v diag (K + v)^-1 it would vanish in rounding where v is large
    learnt = vectors.square() @ (values[:, None] / (values[:, None] + noises))
    volume = (1 + values[:, None] / noises).log().sum(0)  # log det (I + K / v)
    found = []
    for share in SHARES:
        seen = int(share * len(problem.final))
        if share == 0 or seen >= 1:
            found.append(_best(problem, seen, share, learnt, volume, delta / TOGETHER))
    return min(found, key=lambda bound: bound.value)


def prior_order(samples: int) -> Tensor:
    """The order in which the prior sees the samples of a task: a permutation fixed before the data."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(0))


def remembers_by_number(solution: Solution, task: int) -> bool:
    """Whether a number of samples of a task is remembered, from the first on, and not rows that somebody chose."""
    return solution.rule == "sgd" or all(
        torch.equal(group.memory[task - 1], torch.arange(len(group.memory[task - 1])))
        for group in solution.groups
    )


def _problem(solution: Solution, task: int, after: int, prior: Prior) -> _Problem:
    first = task - 1 if prior != "initialisation" else 0
    if prior != "initialisation":
        kernel = solution.effective_gram(task)
    else:
        kernel = solution.kernel.gram(solution.task_points(task))
    return _Problem(
        start=solution.output_matrix(task, first)[:, 0],
        kernel=kernel,
        squared_distance=solution.distance_between(first, after) ** 2,
        final=solution.output_matrix(task, after)[:, 0],
        targets=solution.targets[task - 1][:, 0],
        ridge=solution.ridge,
        cutoff=solution.tolerance * float(solution.base_diagonal.max()),
        reduced=(lambda seen: _without(solution, task, after, seen)) if prior == "other-samples" else None,
    )


def _without(solution: Solution, task: int, after: int, seen: int) -> tuple[float, float]:
    """||w_T - w'_T||^2 and ||f_T(A) - f'_T(A)||^2, where w'_T has seen only some samples A of a task."""
    group = solution.groups[0]
    gram = solution.kernel.gram(solution.points)
    blocks, targets, memory = (list(each) for each in (solution.blocks, solution.targets, group.memory))
    place, chosen = task - 1, prior_order(solution.samples(task))[:seen].sort()[0]
    blocks[place], targets[place] = blocks[place][chosen], targets[place][chosen]
    memory[place] = torch.nonzero(torch.isin(chosen, memory[place])).flatten()
    other = recurse(
        gram,
        blocks[:after],
        targets[:after],
        solution.tasks.start,
        rule=solution.rule,
        ridge=solution.ridge,
        memory=memory[:after],
        tolerance=solution.tolerance,
    )
    own = torch.stack([step.span for step in group.recursion.steps[:after]]).sum(0)
    span = own - torch.stack([step.span for step in other.steps]).sum(0)
    moved = group.recursion.outputs[after] - other.outputs[after]
    return max(0.0, float((span * moved).sum())), float(moved[blocks[place]].square().sum())


def _best(
    problem: _Problem, seen: int, share: float, learnt: Tensor, volume: Tensor, delta: float
) -> GibbsBound:
    """The best s^2 and v when the prior has seen the first `seen` samples."""
    noises = torch.tensor(SCALES, dtype=torch.float64)
    moved = problem.final - problem.start
    length, apart = problem.squared_distance, 0.0
    if seen:
        own = problem.kernel[:seen, :seen]
        if problem.reduced is not None:
            length, apart = problem.reduced(seen)
        else:
            residual = (problem.targets - problem.start)[:seen, None]
            weights = solve_ridge(own, residual, problem.ridge, problem.cutoff).in_range[:, 0]
            fitted = own @ weights
            length = max(0.0, length - 2 * float(weights @ moved[:seen]) + float(weights @ fitted))
            apart = float((moved[:seen] - fitted).square().sum())
        spectrum = torch.linalg.eigvalsh(own).clamp_min(0)
        volume = volume - (1 + spectrum[:, None] / noises).log().sum(0)
    count = len(problem.final) - seen
    rest = learnt[seen:]
    shape = (volume - rest.sum(0)).clamp_min(0) / 2  # over v
    means = (length + apart / noises) / 2  # over v, for s = 1
    spread = (noises * rest).sqrt()  # (n_B, v), for s = 1
    margins = (problem.targets.sign() * problem.final)[seen:]
    level = math.log(_maurer(count) / delta)
    empirical = _gibbs_table(margins, spread)
    divergence = shape + means / noises[:, None]  # (s^2, v): the grids are the same
    budget = (divergence + level) / count
    # kl^-1(q, b) <= q + sqrt(2 q b) + 2 b: only the most promising pairs are inverted.
    rough = empirical + (2 * empirical * budget).sqrt() + 2 * budget
    found = []
    for place in rough.flatten().topk(3, largest=False).indices.tolist():
        i, j = divmod(place, len(SCALES))
        error = float(empirical[i, j])
        value = kl_inverse(error, float(budget[i, j]))
        found.append(GibbsBound(value, error, float(divergence[i, j]), count, share, SCALES[i], SCALES[j]))
    return min(found, key=lambda bound: bound.value)


def _gibbs_table(margins: Tensor, spread: Tensor) -> Tensor:
    """The mean over samples of P(y f <= 0), for every s^2 (rows) and v (columns).

    For f normal with these margins and s times this spread; without spread, whether y f <= 0.
    """
    certain = (margins <= 0).double()[:, None]
    standard = -margins[:, None] / torch.where(spread > 0, spread, 1.0)
    roots = [math.sqrt(scale) for scale in SCALES]
    tables = []
    for some in row_chunks(len(roots), max(1, 2_000_000 // max(1, spread.numel()))):
        chosen = torch.tensor([roots[row] for row in some.tolist()], dtype=torch.float64)
        wrong = torch.special.ndtr(standard / chosen[:, None, None])
        tables.append(torch.where(spread > 0, wrong, certain).mean(1))
    return torch.cat(tables)


@lru_cache(maxsize=64)
def _maurer(count: int) -> float:
    """xi(n) = sum_k C(n, k) (k/n)^k (1 - k/n)^(n-k), summed (at most 2 sqrt n)."""
    k = torch.arange(count + 1, dtype=torch.float64)
    share = k / count
    choose = special.gammaln(count + 1.0) - torch.lgamma(k + 1) - torch.lgamma(count - k + 1)
    logs = choose + torch.special.xlogy(k, share) + torch.special.xlogy(count - k, 1 - share)
    return float(logs.exp().sum())


def kl_inverse(error: float, budget: float) -> float:
    """The largest p in [error, 1] with kl(error || p) <= budget, kl of two coins.

    >>> round(kl_inverse(0.0, 0.1), 4)
    0.0952
    """
    error = min(max(error, 0.0), 1.0)

    def excess(p: float) -> float:
        return float(special.rel_entr(error, p) + special.rel_entr(1 - error, 1 - p)) - budget

    high = 1 - 1e-12
    if error >= high or excess(high) <= 0:
        return 1.0
    return float(optimize.brentq(excess, error, high, xtol=1e-9)) + 1e-9
