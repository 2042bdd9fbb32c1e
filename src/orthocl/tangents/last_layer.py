"""Tangents of the last layer, whose remembered outputs are its own: each row has one output.

With one remembered logit per sample, D of the last layer is one-hot, and row n of G_l is a multiple of the input, in
row y(n) of the weight only. Sorted by output, G_l g and G_l^T w then take m i multiply-adds instead of m i o.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.tangents.blocks import Factored

# Rows are padded to the same number per output: not worth it if that multiplies their number by more than this.
LARGEST_PADDING = 2.0


class OneOutputRows:
    """The products of a factored block with one output per row, for a step's direct move of a small layer.

    Args:
        block: factors, of which a sorted copy is made.
        rows: rows that are not zero.
        outputs: the output of each of those.
        dtype: type of the parameters.

    >>> block = Factored(("w", "b"), ((2, 1), (2,)), torch.tensor([[1.0], [2.0], [3.0]]), torch.eye(2)[[0, 1, 0]])
    >>> found = by_output(block, torch.float32)
    >>> found.coefficients([torch.tensor([[1.0], [10.0]]), torch.tensor([0.0, 100.0])])
    tensor([  1., 120.,   3.])
    """

    def __init__(self, block: Factored, rows: Tensor, outputs: Tensor, dtype: torch.dtype):
        self.rows, self._kept = block.rows, None if len(rows) == block.rows else rows
        used, group, counts = torch.unique(outputs, return_inverse=True, return_counts=True)
        self._used = None if len(used) == block.shapes[0][0] else used
        width = int(counts.max())
        order = torch.argsort(group, stable=True)
        position = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[group[order]]
        self._place = torch.empty_like(order).index_copy_(0, order, group[order] * width + position)
        values = block.deltas[rows, outputs].to(dtype)
        padded = block.inputs.new_zeros(len(used) * width, block.inputs.shape[1], dtype=dtype)
        padded[self._place] = block.rows_of_inputs(rows).to(dtype) * values[:, None]
        self._inputs = padded.view(len(used), width, -1)
        self._inputs_t = self._inputs.transpose(1, 2)
        self._weights, self._values = padded.new_zeros(2, len(used), 1, width).unbind()
        self._values.view(-1)[self._place] = values
        self._bias = block.bias

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        kept = (self._inputs, self._weights, self._values, self._place)
        return sum(part.numel() * part.element_size() for part in kept)

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g."""
        weight, *bias = gradient if self._used is None else [part[self._used] for part in gradient]
        products = torch.bmm(weight.flatten(1)[:, None], self._inputs_t)
        if self._bias:
            products.addcmul_(self._values, bias[0][:, None, None])
        found = products.view(-1).index_select(0, self._place)
        return found if self._kept is None else found.new_zeros(self.rows).index_copy_(0, self._kept, found)

    def add_combination(self, weights: Tensor, targets: Sequence[Tensor], scale: float = 1.0) -> None:
        """Add scale x G_l^T w to the parameters in place."""
        kept = weights if self._kept is None else weights[self._kept]
        self._weights.view(-1).index_copy_(0, self._place, kept)
        changes = [torch.bmm(self._weights, self._inputs)[:, 0]]
        if self._bias:
            changes.append((self._weights * self._values).sum((1, 2)))
        for target, part in zip(targets, changes, strict=True):
            change = part.view(len(part), *target.shape[1:])
            if self._used is None:
                target.add_(change, alpha=scale)
            else:
                target.index_add_(0, self._used, change, alpha=scale)


def by_output(block: Factored, dtype: torch.dtype) -> OneOutputRows | None:
    """The block sorted by output, or None if its rows have several outputs, share inputs or are badly balanced."""
    touched = block.deltas != 0
    rows = touched.any(1).nonzero()[:, 0]
    if not len(rows) or len(rows) > len(block.inputs) or bool((touched.sum(1) > 1).any()):
        return None
    outputs = touched[rows].int().argmax(1)
    counts = outputs.bincount()
    padded = int(counts.max()) * int((counts > 0).sum())
    return OneOutputRows(block, rows, outputs, dtype) if padded <= LARGEST_PADDING * len(rows) else None
