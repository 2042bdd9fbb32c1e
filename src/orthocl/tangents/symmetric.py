"""A symmetric matrix of which almost half is not stored."""

from __future__ import annotations

import torch
from torch import Tensor

# Rows below which a panel is not worth its two calls.
SMALLEST_PANEL = 128


class SymmetricMatrix:
    """A symmetric matrix for products with vectors, as lower panels: rows start..end up to column end.

    What is left of the diagonal blocks is used for both triangles. A product is limited by how fast the matrix can
    be read: a panel that stays in the processor's cache between its two uses is read from memory once. Six
    panels are the default (fewer for small matrices, where calls cost more than reading): 7/12 of the storage.

    >>> matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> SymmetricMatrix(matrix, panel=1) @ torch.tensor([1.0, 1.0])
    tensor([3., 4.])
    """

    def __init__(self, matrix: Tensor, panel: int | None = None):
        self.size, self.dtype = len(matrix), matrix.dtype
        step = panel or max(1, min(-(-self.size // 2), max(SMALLEST_PANEL, -(-self.size // 6))))
        self.vector, self._result = matrix.new_zeros(self.size), matrix.new_zeros(self.size)
        self._panels: list[tuple[Tensor, ...]] = []
        # The views are made once: making them costs as much as the product with a small panel.
        for start in range(0, self.size, step):
            end = min(start + step, self.size)
            # By rows, whatever the layout of the matrix: panels by columns are read more slowly.
            rows = matrix[start:end, :end].clone(memory_format=torch.contiguous_format)
            views = self.vector[:end], self.vector[start:end], self._result[start:end], self._result[:start]
            self._panels.append((rows, rows[:, :start].t(), *views))

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        kept = [rows for rows, *_ in self._panels] + [self.vector, self._result]
        return sum(part.numel() * part.element_size() for part in kept)

    def product(self) -> Tensor:
        """The product with `vector`, in a buffer that the next product overwrites."""
        for start, (rows, above, left, own, result, earlier) in enumerate(self._panels):
            torch.mv(rows, left, out=result)
            if start:
                earlier.addmv_(above, own)
        return self._result

    def __matmul__(self, vector: Tensor) -> Tensor:
        """The product with a vector, in a buffer that the next product overwrites."""
        self.vector.copy_(vector)
        return self.product()
