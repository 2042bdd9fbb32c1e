"""One ridge regression in kernel form, also without ridge and with a singular kernel.

Derivation. a = (K + lam I)^-1 r. Directions in which K vanishes never reach the function, kappa(x, X) u = 0,
but their share u u^T r / lam of a multiplies the rounding noise of kappa(x, X) by 1 / lam. So the function is
built from the part of `a` in the range of K, and the norm r^T a from all of it. The cutoff is absolute
(1e-12 times the largest k(x, x)): relative to K itself, the noise of a repeated task, whose effective kernel
is zero, would pass for a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from orthocl.checking import check_value
from orthocl.errors import DataError, SettingsError

LARGEST_RIDGE = 1e300
LARGEST_TOLERANCE = 1e-3
"""A share of the largest k(x, x) that is no rounding any more."""


@dataclass(frozen=True)
class RidgeSolution:
    """Coefficients of one ridge regression.

    Args:
        coefficients: a = (K + lam I)^-1 r, or K^+ r without ridge.
        in_range: what the function is built from: `a`, without its part outside the range of K where the ridge
            is so small that this part would drown the function in rounding noise.
        lost: directions cut off in which the residual is not zero: what no function of this kernel can fit.
        smallest: the smallest eigenvalue of K + lam among the directions that count; infinite if none does.
        largest_lost: the largest eigenvalue of K among the directions that are lost; zero if none is.
    """

    coefficients: Tensor
    in_range: Tensor
    lost: int = 0
    smallest: float = math.inf
    largest_lost: float = 0.0


def check_ridge(ridge: float) -> float:
    """The ridge; one that is negative, infinite or not a number is rejected."""
    known = isinstance(ridge, int | float) and not isinstance(ridge, bool)
    if not known or not 0 <= ridge <= LARGEST_RIDGE:
        raise SettingsError(f"expected a ridge of zero or more, and finite, got {ridge}")
    return float(ridge)


def check_tolerance(tolerance: float) -> None:
    """Reject a tolerance above rounding: a kernel whose values count as zero learns nothing."""
    check_value("tolerance", tolerance, float, minimum=0.0, maximum=LARGEST_TOLERANCE)


def solve_ridge(matrix: Tensor, residual: Tensor, ridge: float, cutoff: float) -> RidgeSolution:
    """Solve (K + lam I) a = r; `cutoff` is the absolute eigenvalue below which K counts as zero.

    >>> kernel, residual = 3 * torch.eye(2, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    >>> solve_ridge(kernel, residual, ridge=1.0, cutoff=1e-12).coefficients.T
    tensor([[0.2500, 0.2500]], dtype=torch.float64)
    """
    size = len(matrix)
    shifted = matrix.clone()
    shifted.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(shifted)
    # A pivot of the shifted matrix near `ridge` reveals a singular K. With a ridge of 1e-6 of the scale or
    # more, the noise is amplified by less than 1e-9 and need not be cut off.
    floor = 0.0 if ridge >= 1e6 * cutoff else (size + 1) * (ridge + cutoff)
    if int(info) == 0 and float(factor.diagonal().min()) ** 2 > floor:
        solved = torch.cholesky_solve(residual, factor)
        zero_rows = matrix.diagonal() == 0
        inside = solved.masked_fill(zero_rows[:, None], 0.0)
        return RidgeSolution(solved, inside, smallest=_smallest_eigenvalue(factor))
    values, vectors = torch.linalg.eigh(matrix)
    if size and float(values[0]) < -max(1e-6 * float(values.abs().max()), cutoff):
        raise DataError(
            f"a kernel matrix must be positive semi-definite, this one has the eigenvalue {float(values[0]):.3g} "
            f"next to {float(values[-1]):.3g}: check the kernel function"
        )
    kept = values > max(cutoff, size * torch.finfo(values.dtype).eps * float(values.abs().max()))
    rotated = vectors.T @ residual
    seen = rotated.abs().amax(1) > 1e-8 * max(float(residual.abs().max()), 1e-300)
    gone = seen & ~kept
    found = {
        "lost": int(gone.sum()),
        "smallest": float(values[kept].min()) + ridge if bool(kept.any()) else math.inf,
        "largest_lost": float(values[gone].max()) if bool(gone.any()) else 0.0,
    }
    inside = torch.where(kept, 1 / torch.where(kept, values + ridge, 1.0), 0.0)
    in_range = vectors @ (inside[:, None] * rotated)
    if ridge == 0:
        return RidgeSolution(in_range, in_range, **found)  # type: ignore[arg-type]
    outside = torch.where(kept, 0.0, 1 / ridge)
    return RidgeSolution(in_range + vectors @ (outside[:, None] * rotated), in_range, **found)  # type: ignore[arg-type]


def _smallest_eigenvalue(factor: Tensor, iterations: int = 10) -> float:
    """Of L L^T, by inverse iteration: one digit is enough to tell how many are lost."""
    vector = torch.ones(len(factor), 1, dtype=factor.dtype) / len(factor) ** 0.5
    length = 1.0
    for _ in range(iterations):
        vector = torch.cholesky_solve(vector, factor)
        length = float(vector.norm())
        vector = vector / length
    return 1 / length
