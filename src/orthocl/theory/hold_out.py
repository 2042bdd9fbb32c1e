"""The reference for all bounds: how often f errs on samples that nothing was trained on."""

from __future__ import annotations

import numpy as np
import torch
from scipy import special
from torch import Tensor

from orthocl.errors import DataError, SettingsError
from orthocl.theory.independence import check_independent, near_copies, shared_sample
from orthocl.theory.points import PointsLike, real_numbers
from orthocl.theory.solution import Solution

HeldOut = tuple[PointsLike, Tensor | np.ndarray]
"""Inputs and targets that no task was trained on."""


def clopper_pearson(errors: int, samples: int, delta: float) -> float:
    """The upper limit of a probability, given the number of errors among samples, exact at level 1 - delta.

    >>> round(clopper_pearson(0, 100, 0.05), 4)
    0.0295
    """
    if errors >= samples:
        return 1.0
    return float(special.betaincinv(errors + 1, samples - errors, 1 - delta))


def hold_out_bound(
    solution: Solution, task: int, after: int, delta: float, held_out: HeldOut | None, independent: bool
) -> dict[str, float]:
    """The 0-1 error on held-out samples, and what Clopper and Pearson add to it.

    Raises:
        SettingsError: nothing held out.
        DataError: held-out samples that some task was trained on.
    """
    if held_out is None:
        raise SettingsError(
            "form='hold-out' needs samples of the task that nothing was trained on: held_out=(inputs, targets)"
        )
    if not isinstance(held_out, tuple | list) or len(held_out) != 2:
        raise DataError(f"expected held_out=(inputs, targets), got {str(held_out)[:60]}")
    inputs, targets = held_out
    wanted = real_numbers(targets, "held-out targets")
    if wanted.ndim == 0 or not bool(wanted.isfinite().all()):
        raise DataError("held-out targets must be finite numbers, one per sample")
    points = solution.kernel.points(inputs)
    if len(wanted) == 0 or len(wanted) != points.samples():
        raise DataError(f"expected one target per held-out sample, got {len(wanted)} for {points.samples()}")
    if not independent:
        trained = {number: solution.task_points(number) for number in range(1, len(solution) + 1)}
        inputs_of = {number: (each.inputs, torch.zeros(0)) for number, each in trained.items()}
        found = shared_sample(inputs_of, task, (points.inputs, wanted)) or near_copies(
            solution.kernel, trained, task, points
        )
        check_independent(found, "hold-out")
    outputs = solution.predict(inputs, after=after)
    wrong = count_errors(outputs, wanted)
    share = wrong / len(wanted)
    return {"held-out error": share, "confidence": clopper_pearson(wrong, len(wanted), delta) - share}


def count_errors(outputs: Tensor, targets: Tensor) -> int:
    """Samples whose sign is wrong (zero is), or whose largest output is not the largest target."""
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        return int((outputs.flatten() * targets.flatten().sign() <= 0).sum())
    return int((outputs.argmax(1) != targets.reshape(outputs.shape).argmax(1)).sum())
