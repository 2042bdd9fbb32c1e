"""Signs that the samples of tasks are not independent of each other.

Independence cannot be proven from data. The checks look for the ways in which streams of one image set break it:
the same inputs again, the same inputs with their numbers in another order (permuted tasks), the same targets in the
same order (any map of one set of images, such as rotations), and inputs that are nearly the same (with noise, or
turned by a few degrees). They cannot find every map of one set of images, such as a rotation by 20 degrees of shuffled
rows, so that bounds which need independence say so in their sentence.

Near copies. Call samples x of one task and z of another mutual neighbors if each is the nearest of the other among all
samples of both tasks. Of n + m independent draws from one distribution at most 2/3 have a mutual neighbor (on a line;
fewer in more dimensions), and the task of it is as good as drawn: an expected share of at most 2/3 m / (n + m - 1) of
the first task's n samples has it in the second. Tasks of different distributions have fewer such pairs; copies have
them all. Counted as independent trials, the number found must have a probability above one in a million. (That the
nearest neighbor is in the other task says less: clean images are nearer to noisy ones than those to each other.)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from scipy import special
from torch import Tensor

from orthocl.errors import DataError
from orthocl.theory.kernels import Kernel
from orthocl.theory.points import Points

FEWEST_TARGETS = 20
"""Fewer equal targets than this may be chance."""
FEWEST_NUMBERS = 16
"""Inputs of fewer numbers may have the same ones by chance."""
LOOKED_AT = 500
"""Samples of a task whose neighbors are looked for, drawn with a fixed seed."""
MUTUAL = 2 / 3
"""The largest share of independent samples that have a mutual neighbor."""
CHANCE = 1e-6
"""A number of near copies that is less probable than this among independent samples is none of chance."""


def shared_sample(
    others: Mapping[int, tuple[Tensor, Tensor]], number: int, own: tuple[Tensor, Tensor]
) -> str | None:
    """What the inputs and targets of a task have in common with those of other tasks, in words, or None.

    Checked, in this order: an input that is equal to the bit; an input of at least 16 numbers, not all in
    {0, 1}, with the same numbers in another order; targets that are equal entry by entry, of at least 20 samples
    and not all the same.

    Args:
        others: inputs and targets of other tasks, by number.
        number: of the task.
        own: its inputs and targets.

    >>> x = torch.arange(4.0)[:, None]
    >>> shared_sample({1: (x, torch.ones(4))}, 2, (x[2:] + 0, torch.ones(2)))
    'task 2 has 2 inputs that task 1 has too'
    """
    inputs, targets = own
    rows, ordered = _keys(inputs), _ordered_keys(inputs)
    for task, (theirs, their_targets) in others.items():
        if theirs.shape[1:] == inputs.shape[1:]:
            common = len(rows & _keys(theirs))
            if common:
                return f"task {number} has {common} inputs that task {task} has too"
            common = len(ordered & _ordered_keys(theirs))
            if common:
                return f"task {number} has {common} inputs with the numbers of inputs of task {task} in another order"
        same = targets.shape == their_targets.shape and bool((targets == their_targets).all())
        if same and len(targets) >= FEWEST_TARGETS and len(torch.unique(targets, dim=0)) > 1:
            return f"task {number} has the targets of task {task}, in the same order: is it the same set of samples?"
    return None


def near_copies(kernel: Kernel, others: Mapping[int, Points], number: int, own: Points) -> str | None:
    """Which other task holds near copies of the samples of a task, in words, or None.

    Args:
        kernel: in which samples are near, normalised to k(x, x) = 1.
        others: points of other tasks, by number; of several rows of one input the first is taken.
        number: of the task.
        own: its points.

    >>> from orthocl.theory import InfiniteWidthNTK
    >>> x = torch.randn(50, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> near_copies(InfiniteWidthNTK(), {1: Points(x)}, 2, Points(x.flip(0) + 1e-3))
    'for 50 of 50 samples of task 2 the nearest neighbor is in task 1, and mutual (of independent ones 34 %)'
    """
    mine = _first_rows(own)
    asked = torch.randperm(len(mine), generator=torch.Generator().manual_seed(0))[:LOOKED_AT]
    near = _similarity(kernel, mine.select(asked), mine)
    near[torch.arange(len(asked)), asked] = -torch.inf
    for task, points in others.items():
        theirs = _first_rows(points)
        across = _similarity(kernel, mine.select(asked), theirs)
        best, partner = across.max(1)
        candidates = torch.nonzero(best > near.amax(1) + 1e-9).flatten()
        if not len(candidates):
            continue
        back = partner[candidates]
        home = _similarity(kernel, theirs.select(back), theirs)
        home[torch.arange(len(back)), back] = -torch.inf
        away, closest = _similarity(kernel, theirs.select(back), mine).max(1)
        mutual = int(((closest == asked[candidates]) & (away > home.amax(1) + 1e-9)).sum())
        share = MUTUAL * len(theirs) / (len(mine) + len(theirs) - 1)
        if special.bdtrc(mutual - 1, len(asked), share) < CHANCE:
            return (
                f"for {mutual} of {len(asked)} samples of task {number} the nearest neighbor is in task {task}, and "
                f"mutual (of independent ones {share:.0%})".replace("%)", " %)")
            )
    return None


def _first_rows(points: Points) -> Points:
    """One row for each input."""
    if points.sample is None:
        return points
    each = len(points) // len(points.inputs)
    return points.select(torch.arange(0, len(points), max(1, each)))


def _similarity(kernel: Kernel, x: Points, z: Points) -> Tensor:
    """k(x, z) / sqrt(k(x, x) k(z, z)); zero where one of them is."""
    lengths = kernel.diagonal(x).clamp_min(0).sqrt()[:, None] * kernel.diagonal(z).clamp_min(0).sqrt()
    return torch.where(lengths > 0, kernel.gram(x, z) / lengths.clamp_min(1e-300), 0.0)


def check_independent(found: str | None, form: str) -> None:
    """Refuse a form of bound that needs independent samples when they visibly are not.

    Raises:
        DataError: with what was found and what to do.
    """
    if found is not None:
        raise DataError(
            f"form={form!r} needs samples that are independent of those of other tasks, but {found}. Draw different "
            "samples for each task (regression_tasks does), use form='sound', which needs no such thing, or pass "
            "BoundSettings(independent=True) if you know that they were drawn independently"
        )


def _keys(inputs: Tensor) -> set[bytes]:
    return {row.tobytes() for row in inputs.reshape(len(inputs), -1).contiguous().numpy()}


def _ordered_keys(inputs: Tensor) -> set[bytes]:
    flat = inputs.reshape(len(inputs), -1)
    if flat.shape[1] < FEWEST_NUMBERS or not flat.is_floating_point():
        return set()
    if bool(((flat == 0) | (flat == 1)).all()):
        return set()
    return _keys(flat.sort(dim=1).values)
