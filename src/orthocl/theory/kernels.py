"""Kernels: `gram(x, z)` in float64. Your own function, a matrix you have, or a network's (see siblings).

Paper: section 3.3, k(x, x') = grad f_0(x) . grad f_0(x').
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from orthocl.errors import DataError, SettingsError
from orthocl.tangents.memory_plan import available_bytes
from orthocl.theory.points import Points, PointsLike, as_points, as_tensor, row_chunks

KernelFunction = Callable[[Tensor, Tensor], Tensor | np.ndarray]


class Kernel(ABC):
    """A positive semi-definite function of two points, and the function f_0 that training starts from."""

    outputs: int = 1
    """How many rows each input has: 1, or the number of logits when all of them are rows."""

    def gram(self, x: PointsLike, z: PointsLike | None = None) -> Tensor:
        """The float64 matrix k(x_i, z_j); symmetric to the last bit when z is left out."""
        left, right = self.points(x), None if z is None else self.points(z)
        if right is not None and left.inputs.shape[1:] != right.inputs.shape[1:]:
            raise DataError(
                f"inputs of one stream have one shape: got {tuple(left.inputs.shape[1:])} beside "
                f"{tuple(right.inputs.shape[1:])}"
            )
        return check_finite(self._gram(left, right))

    @abstractmethod
    def _gram(self, x: Points, z: Points | None) -> Tensor:
        """The matrix itself; z is None for the square matrix of x, which must then be symmetric to the bit."""

    def diagonal(self, x: PointsLike) -> Tensor:
        """k(x_i, x_i), in pieces so that the square matrix is never formed."""
        points = self.points(x)
        pieces = [self.gram(points.select(rows)).diagonal() for rows in row_chunks(len(points), 64)]
        return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)

    def points(self, x: PointsLike) -> Points:
        """The rows that these inputs stand for."""
        return as_points(x)

    def initial(self, x: Points) -> Tensor:
        """The function before the first task on these rows: zero unless the kernel comes from a network."""
        return torch.zeros(len(x), dtype=torch.float64)


class FunctionKernel(Kernel):
    """A kernel from your function (x, z) -> matrix of (len(x), len(z)).

    >>> FunctionKernel(lambda x, z: x @ z.T).gram(torch.tensor([[1.0, 2.0]]))
    tensor([[5.]], dtype=torch.float64)
    """

    def __init__(self, function: KernelFunction):
        if not callable(function):
            raise SettingsError(f"expected a function (x, z) -> matrix, got {type(function).__name__}")
        self.function = function

    def _gram(self, x: Points, z: Points | None) -> Tensor:
        left = x.row_inputs()
        right = left if z is None else z.row_inputs()
        if left.is_floating_point():
            left, right = left.double(), right.double()
        value = self.function(left, right)
        try:
            matrix = torch.as_tensor(value).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"the kernel function must return a matrix of numbers, got a {type(value).__name__}"
            ) from error
        if matrix.is_complex():
            raise DataError(f"a kernel is a matrix of real numbers, this function returns {matrix.dtype}")
        matrix = matrix.double()
        if matrix.shape != (len(left), len(right)):
            raise DataError(
                f"the kernel function must return a matrix of {(len(left), len(right))} numbers "
                f"for {len(left)} and {len(right)} inputs, got {tuple(matrix.shape)}"
            )
        if z is not None:
            return matrix
        check_symmetric(check_finite(matrix))
        return (matrix + matrix.T) / 2


class GramKernel(Kernel):
    """A kernel matrix computed beforehand; its points are row numbers. The full matrix is returned without a copy.

    The matrix belongs to the samples of all tasks together, and a task says which rows are its own:
    `solve_stream(GramKernel(matrix), [(torch.arange(0, 10), first_targets), (torch.arange(10, 20), second_targets)])`.

    >>> GramKernel(torch.eye(3)).gram(torch.tensor([0, 2]))
    tensor([[1., 0.],
            [0., 1.]], dtype=torch.float64)
    """

    def __init__(self, matrix: Tensor | np.ndarray):
        self.matrix = as_tensor(matrix, "a kernel matrix").double()
        if self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1]:
            raise DataError(f"expected a square kernel matrix, got shape {tuple(self.matrix.shape)}")
        check_symmetric(check_finite(self.matrix))

    def _rows(self, points: Points) -> Tensor:
        rows = points.row_inputs()
        if rows.is_floating_point() or rows.ndim != 1:
            raise DataError(
                "the points of a GramKernel are row numbers: expected a vector of integers, such as torch.arange(10) "
                "for a task whose samples are the first ten rows of the matrix"
            )
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self.matrix):
            raise DataError(
                f"row numbers must lie in 0 .. {len(self.matrix) - 1}, "
                f"got {int(rows.min())} .. {int(rows.max())}"
            )
        return rows

    def _gram(self, x: Points, z: Points | None) -> Tensor:
        rows = self._rows(x)
        columns = rows if z is None else self._rows(z)
        if _is_range(rows, len(self.matrix)) and _is_range(columns, len(self.matrix)):
            return self.matrix
        return self.matrix[rows][:, columns]

    def diagonal(self, x: PointsLike) -> Tensor:
        """Entries of the diagonal."""
        return self.matrix.diagonal()[self._rows(self.points(x))]


def check_finite(matrix: Tensor) -> Tensor:
    """The matrix itself, if all its entries are finite numbers.

    Raises:
        DataError: for infinite entries and for entries that are not numbers.
    """
    # The sum is finite unless an entry is not (or entries near the largest float add up to more).
    if not bool(matrix.sum().isfinite()) and not bool(matrix.isfinite().all()):
        raise DataError(
            "the kernel has entries that are infinite or not numbers: check the inputs (are they finite, and small "
            "enough to be squared?) and the kernel's settings"
        )
    return matrix


def check_symmetric(matrix: Tensor, block: int = 1024) -> None:
    """Reject a kernel matrix that is not symmetric up to rounding (1e-5 of its largest entry).

    Raises:
        DataError: with the two entries that differ.
    """
    largest = float(matrix.abs().max()) if len(matrix) else 0.0
    for start in range(0, len(matrix), block):
        rows = slice(start, start + block)
        apart = (matrix[rows] - matrix[:, rows].T).abs()
        if float(apart.max()) > 1e-5 * largest:
            row, column = divmod(int(apart.argmax()), len(matrix))
            row += start
            raise DataError(
                f"a kernel is symmetric, but k(x_{row}, x_{column}) = {float(matrix[row, column]):.6g} and "
                f"k(x_{column}, x_{row}) = {float(matrix[column, row]):.6g}: check the kernel function"
            )


def check_positive(matrix: Tensor, most: int = 512) -> None:
    """Reject a kernel matrix that is not positive semi-definite, judged on a limited number of its rows.

    Raises:
        DataError: for a negative k(x, x), and for a negative eigenvalue on these rows.
    """
    if not len(matrix):
        return
    scale = float(matrix.diagonal().abs().max())
    lowest = float(matrix.diagonal().min())
    if lowest >= -1e-9 * scale:
        step = -(-len(matrix) // most)
        part = matrix[::step, ::step].clone()
        part.diagonal().add_(1e-6 * scale * len(part) ** 0.5 + 1e-300)
        if int(torch.linalg.cholesky_ex(part)[1]) == 0:
            return
        lowest = float(torch.linalg.eigvalsh(part)[0])
        if lowest >= 0:
            return
    raise DataError(
        f"a kernel must be positive semi-definite, but this one gives {lowest:.3g} (its largest k(x, x) is "
        f"{scale:.3g}): check the kernel function"
    )


def symmetrise(matrix: Tensor, block: int = 512) -> Tensor:
    """Make a nearly symmetric matrix symmetric to the bit, in place and in blocks."""
    for start in range(0, len(matrix), block):
        rows = slice(start, start + block)
        for across in range(start, len(matrix), block):
            columns = slice(across, across + block)
            mean = (matrix[rows, columns] + matrix[columns, rows].T) / 2
            matrix[rows, columns] = mean
            matrix[columns, rows] = mean.T
    return matrix


def _is_range(rows: Tensor, size: int) -> bool:
    return len(rows) == size and bool((rows == torch.arange(size)).all())


KernelLike = Kernel | KernelFunction
"""A kernel, or any function (x, z) -> matrix."""


def as_kernel(kernel: KernelLike) -> Kernel:
    """The kernel itself, or a kernel around a function."""
    if isinstance(kernel, Kernel):
        return kernel
    if callable(kernel):
        return FunctionKernel(kernel)
    raise SettingsError(f"expected a kernel or a function (x, z) -> matrix, got {type(kernel).__name__}")


def check_memory(needed: int, limit: int | None, what: str, advice: str) -> None:
    """Raise before computing when `what` needs more bytes than are available.

    Raises:
        SettingsError: with the price, the limit and the advice.
    """
    allowed = limit if limit is not None else available_bytes()
    if allowed is not None and needed > allowed:
        raise SettingsError(
            f"{what} needs {needed / 1e9:.2f} GB and {allowed / 1e9:.2f} GB are allowed: {advice}, "
            "or pass memory_limit= (bytes) if you know better"
        )
