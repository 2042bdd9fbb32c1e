"""A symmetric matrix stored as one triangle."""

from __future__ import annotations

import torch
from torch import Tensor


class SymmetricMatrix:
    """A symmetric matrix for products with vectors.

    A product is limited by how fast the matrix can be read. So on the CPU only its lower triangle is kept, row
    after row, and read once (BLAS `spmv` of SciPy); on other devices, and in other types than float32 and float64, it
    is kept whole.

    >>> matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    >>> SymmetricMatrix(matrix) @ torch.tensor([1.0, 1.0])
    tensor([3., 4.])
    """

    def __init__(self, matrix: Tensor):
        self.size, self.dtype = len(matrix), matrix.dtype
        self.vector, self._result = matrix.new_zeros(self.size), matrix.new_zeros(self.size)
        self._packed = matrix.device.type == "cpu" and self.dtype in (torch.float32, torch.float64)
        if not self._packed:
            self._stored = matrix.clone()
            return
        # Imported here, because it takes as long as a hundred products and most commands compute none.
        from scipy.linalg.blas import dspmv, sspmv

        self._stored = torch.cat([self.vector[:0], *(row[: end + 1] for end, row in enumerate(matrix))])
        self._multiply = sspmv if self.dtype == torch.float32 else dspmv
        # BLAS sees the same memory; views are made once, because creating them is not cheap.
        self._arrays = self._stored.numpy(), self.vector.numpy(), self._result.numpy()

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        kept = (self._stored, self.vector, self._result)
        return sum(part.numel() * part.element_size() for part in kept)

    def product(self) -> Tensor:
        """The product with `vector`, in a buffer that the next product overwrites."""
        if not self._packed:
            return torch.mv(self._stored, self.vector, out=self._result)
        if self.size:
            stored, vector, result = self._arrays
            self._multiply(self.size, 1.0, stored, vector, beta=0.0, y=result, overwrite_y=True)
        return self._result

    def __matmul__(self, vector: Tensor) -> Tensor:
        """The product with a vector, in a buffer that the next product overwrites."""
        self.vector.copy_(vector)
        return self.product()
