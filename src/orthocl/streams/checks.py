"""Checks of a user's arrays at construction: each error names the task, what is wrong and what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from orthocl.errors import DataError
from orthocl.nets.inputs import Inputs, tensors
from orthocl.streams.base import TaskKind

Array = Tensor | np.ndarray[Any, Any]
MOST_CLASSES = 10_000_000


def checked_samples(
    where: str, x: Array, y: Array, kind: TaskKind | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Inputs and targets as tensors ready for training.

    Args:
        where: the task and part, for the errors.
        x: inputs, (samples, ...).
        y: class labels (samples,) or regression targets (samples,) or (samples, outputs).
        kind: what the targets are; None lets their dtype decide.
        dtype: of the inputs and of regression targets.

    Raises:
        DataError: for anything that cannot be trained on.
    """
    inputs, targets = _tensor(where, "inputs", x), _tensor(where, "targets", y)
    if inputs.ndim < 2:
        raise DataError(
            f"{where}: inputs must be (samples, ...), got shape {tuple(inputs.shape)}: "
            "reshape one number per sample to (samples, 1)"
        )
    if inputs.numel() == 0:
        raise DataError(f"{where}: no values in inputs of shape {tuple(inputs.shape)}: leave the task out")
    if targets.ndim == 0 or len(targets) != len(inputs):
        raise DataError(
            f"{where}: {len(inputs)} inputs but targets of shape {tuple(targets.shape)}: one target per input"
        )
    return _finite(where, "inputs", _to(where, inputs, dtype)), _checked_targets(where, targets, kind, dtype)


def target_kind(targets: Tensor) -> TaskKind:
    """What checked targets are for: floats are regression, integers class labels."""
    return "regression" if targets.is_floating_point() else "classification"


def needed_outputs(targets: Tensor) -> int:
    """Outputs that checked targets need."""
    return targets.shape[1] if targets.is_floating_point() else int(targets.max()) + 1


def check_outputs(where: str, targets: Tensor, outputs: int) -> None:
    """Reject targets that a head of this size cannot be trained on."""
    need = needed_outputs(targets)
    if target_kind(targets) == "regression":
        if need != outputs:
            raise DataError(f"{where}: targets have {need} columns, the head has outputs={outputs}")
    elif need > outputs:
        raise DataError(
            f"{where}: class labels must be below outputs={outputs}, got {need - 1}: set outputs, or relabel"
        )


def _checked_targets(where: str, targets: Tensor, kind: TaskKind | None, dtype: torch.dtype) -> Tensor:
    floating = targets.is_floating_point()
    if kind == "regression" or (kind is None and floating):
        if targets.ndim > 2 or targets.numel() == 0:
            raise DataError(
                f"{where}: regression targets must be (samples,) or (samples, outputs), "
                f"got shape {tuple(targets.shape)}"
            )
        targets = _finite(where, "targets", targets.to(dtype))
        return targets.unsqueeze(1) if targets.ndim == 1 else targets
    if floating:
        raise DataError(
            f"{where}: class labels must be integers, got {targets.dtype}: convert them, "
            "or set kind='regression'"
        )
    if targets.ndim != 1:
        raise DataError(
            f"{where}: class labels must be one integer per sample, got shape {tuple(targets.shape)}: "
            "take argmax(1) of one-hot labels"
        )
    if int(targets.min()) < 0:
        raise DataError(f"{where}: class labels must count from 0, got {int(targets.min())}")
    if int(targets.max()) >= MOST_CLASSES:
        raise DataError(
            f"{where}: class labels must be below {MOST_CLASSES:,}, got {int(targets.max())}: number the classes from "
            "0 without gaps, because a head has an output for each number"
        )
    return targets.to(torch.int64)


def _to(where: str, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """The inputs in another type; fractions are not cut off in silence."""
    if inputs.is_floating_point() and not dtype.is_floating_point and bool((inputs != inputs.trunc()).any()):
        raise DataError(
            f"{where}: inputs have fractions, which {dtype} cannot hold: use a floating-point dtype"
        )
    return inputs.to(dtype)


def _finite(where: str, what: str, tensor: Tensor) -> Tensor:
    if not bool(tensor.isfinite().all()):
        bad = int(
            (~tensor.flatten(1).isfinite().all(1) if tensor.ndim > 1 else ~tensor.isfinite()).nonzero()[0]
        )
        raise DataError(
            f"{where}: {what} hold NaN or infinite values (as {tensor.dtype}), first in sample {bad}: "
            "clean or rescale them"
        )
    return tensor


def _tensor(where: str, what: str, array: Array) -> Tensor:
    if isinstance(array, Tensor):
        if array.is_complex() or array.is_quantized or array.is_sparse:
            raise DataError(f"{where}: {what} must be dense real numbers, got {array.dtype}, {array.layout}")
        return array.detach().cpu()
    if isinstance(array, np.ma.MaskedArray) and bool(np.ma.getmaskarray(array).any()):
        raise DataError(f"{where}: {what} have masked values: fill them in, or leave these samples out")
    try:
        array = np.asarray(array)
    except ValueError as error:
        raise DataError(f"{where}: {what} are not an array: {error}") from None
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where}: {what} must be numbers, got an array of {array.dtype}")
    # torch cannot share foreign byte orders, negative strides, read-only memory, or types it lacks.
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"{where}: {what} hold {array.max()}, which is too large: divide them first")
        array = array.astype(np.int64)
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def check_finite(batch: Inputs, index: Tensor, what: str, task: int) -> None:
    """Reject samples with values that are not finite.

    Args:
        batch: samples of a data set.
        index: their positions in it.
        what: "inputs" or "targets".
        task: number of the task.
    """
    for part in tensors(batch):
        if not bool(part.isfinite().all()):
            bad = (~part.isfinite()).flatten(1).any(1) if part.dim() > 1 else ~part.isfinite()
            raise DataError(
                f"sample {int(index[bad.nonzero()[0, 0]])} of task {task} has NaN or infinite values in its {what}: "
                "remembered, it would spoil all later tasks. Leave it out of the data that you give to `learning`, "
                "or repair it there (attach(..., batch=...) can do so batch by batch)"
            )
