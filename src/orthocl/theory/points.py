"""Points: the rows of a kernel matrix. A point is an input, or an (input, logit) pair.

A network with c outputs has c tangents per input, one per logit. Theorem 1 holds for any set of such pairs
(theory of several outputs), so every kernel here speaks of points and not of inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from orthocl.checking import check_value
from orthocl.errors import DataError


@dataclass(frozen=True)
class Points:
    """Rows of a kernel matrix.

    Args:
        inputs: the inputs, (n, ...).
        sample: for each row the input it belongs to; None when row i is input i.
        logit: for each row the output it refers to; None when the kernel has one output.

    >>> len(Points.every_logit(torch.zeros(3, 5), outputs=4))
    12
    """

    inputs: Tensor
    sample: Tensor | None = None
    logit: Tensor | None = None

    @classmethod
    def labelled(cls, inputs: Tensor, logits: Tensor) -> Points:
        """One row per input, each looking at its own logit (OGD-GTL: the ground-truth one)."""
        inputs, logits = as_points(inputs).inputs, whole_numbers(logits, "logits")
        if logits.ndim != 1 or len(logits) != len(inputs):
            raise DataError(
                f"expected one logit index per input, got {len(inputs)} inputs "
                f"and logits of shape {tuple(logits.shape)}"
            )
        return cls(inputs, None, logits)

    @classmethod
    def every_logit(cls, inputs: Tensor, outputs: int) -> Points:
        """One row per (input, logit), the logits of one input next to each other."""
        inputs = as_points(inputs).inputs
        count = len(inputs)
        check_value("outputs", outputs, int, minimum=1, maximum=1e6)
        return cls(
            inputs, torch.arange(count).repeat_interleave(outputs), torch.arange(outputs).repeat(count)
        )

    def __len__(self) -> int:
        return len(self.inputs) if self.sample is None else len(self.sample)

    def select(self, rows: Tensor) -> Points:
        """These rows, with only the inputs they need."""
        rows = rows.long()
        logit = None if self.logit is None else self.logit[rows]
        if self.sample is None:
            return Points(self.inputs[rows], None, logit)
        used, sample = torch.unique(self.sample[rows], return_inverse=True)
        return Points(self.inputs[used], sample, logit)

    def samples(self) -> int:
        """How many inputs these rows refer to: several rows (logits) of one input are one sample."""
        return len(self.inputs) if self.sample is None else len(torch.unique(self.sample))

    def row_inputs(self) -> Tensor:
        """The input of every row."""
        return self.inputs if self.sample is None else self.inputs[self.sample]

    @staticmethod
    def concatenate(parts: Sequence[Points]) -> Points:
        """All rows of all parts, in order."""
        shapes = {tuple(part.inputs.shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise DataError(f"inputs of one stream have one shape, got {', '.join(map(str, sorted(shapes)))}")
        inputs = torch.cat([part.inputs for part in parts])
        logits = [part.logit for part in parts if part.logit is not None]
        if logits and len(logits) != len(parts):
            raise DataError("expected logits for all points or for none, got some of each")
        logit = torch.cat(logits) if logits else None
        if all(part.sample is None for part in parts):
            return Points(inputs, None, logit)
        samples, offset = [], 0
        for part in parts:
            own = torch.arange(len(part.inputs)) if part.sample is None else part.sample
            samples.append(own + offset)
            offset += len(part.inputs)
        return Points(inputs, torch.cat(samples), logit)


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor of real numbers, of the type given; complex numbers, text and objects are refused."""
    try:
        found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"expected {what} as an array of numbers, got {str(values)[:60]}") from error
    if found.is_complex():
        raise DataError(f"{what} must be real numbers, got {found.dtype}")
    return found


def real_numbers(values: Any, what: str) -> Tensor:
    """The same as a float64 tensor without gradient."""
    return as_tensor(values, what).detach().double()


def whole_numbers(values: Any, what: str) -> Tensor:
    """A tensor of integers; fractions are refused, not cut off.

    >>> whole_numbers([0, 2], "rows").tolist()
    [0, 2]
    """
    found = real_numbers(values, what)
    if not bool((found == found.round()).all()):
        raise DataError(f"{what} must be whole numbers, got {found[found != found.round()][0]:g}")
    return found.long()


PointsLike = Points | Tensor | np.ndarray
"""What a user may pass as points: plain inputs, or `Points`."""


def row_chunks(count: int, size: int) -> Iterator[Tensor]:
    """Row numbers 0 .. count - 1 in pieces of `size`.

    >>> [rows.tolist() for rows in row_chunks(5, 2)]
    [[0, 1], [2, 3], [4]]
    """
    size = max(1, size)
    return (torch.arange(start, min(start + size, count)) for start in range(0, count, size))


def as_points(value: PointsLike) -> Points:
    """Points from inputs; vectors become columns so that (n,) means n inputs of one number."""
    if isinstance(value, Points):
        return value
    inputs = as_tensor(value, "inputs")
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        raise DataError("inputs must be finite numbers: some are infinite or not numbers")
    if inputs.ndim == 0:
        raise DataError("expected a batch of inputs (n, ...), got a single number")
    if inputs.ndim == 1 and inputs.is_floating_point():
        inputs = inputs[:, None]
    return Points(inputs)
