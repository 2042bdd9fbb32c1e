"""Signs that the samples of tasks are not independent of each other.

Independence cannot be proven from data. The checks look for the ways in which streams of one image set break it:
the same inputs again, the same inputs with their numbers in another order (permuted tasks), and the same targets in
the same order (any map of one set of images, such as rotations).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from orthocl.errors import DataError

FEWEST_TARGETS = 20
"""Fewer equal targets than this may be chance."""
FEWEST_NUMBERS = 16
"""Inputs of fewer numbers may have the same ones by chance."""


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


def check_independent(
    others: Mapping[int, tuple[Tensor, Tensor]], number: int, own: tuple[Tensor, Tensor], form: str
) -> None:
    """Refuse a form of bound that needs independent samples when they visibly are not.

    Raises:
        DataError: with what was found and what to do.
    """
    found = shared_sample(others, number, own)
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
