"""Projector: the projection onto a subspace, prepared once for the steps of a task.

With G the tangents (directions as rows) and R from `Subspace.whitening`, the rows of R G are orthonormal. So the part
of a displacement d inside the span is

    (R G)^T (R G) d

without a solve, exact to rounding however ill-conditioned G G^T is. Two ways of computing it share one sum c = R G d:

    folded     dense and compressed layers have coordinates z of d (d itself, or V^T d U); with C the coordinates of the
               tangents, Q = R C is computed once: c = Q z, and back with Q^T c
    unfolded   other layers keep their factors: c = R (G d), and back with G^T (R^T c); among near copies R has large
               entries of both signs, whose sums cancel: then these products are computed in float64

Shapes do not depend on values, nothing waits for a device, and nothing but the products is computed in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.tangents.blocks import Block, Compressed, Dense, Factored, accurate
from orthocl.tangents.subspace import Subspace

ILL_CONDITIONED = 1e8
"""Condition number of G G^T from which products with factors in float32 leave more than rounding (eps^2 times it)."""


class Projector:
    """The part of displacements inside a subspace, which must not change while this is in use.

    Args:
        subspace: what is protected.
        dtype: type of the displacements; by default that of the tangents.

    >>> from orthocl.tangents import Tangents
    >>> weight = torch.nn.Parameter(torch.zeros(3))
    >>> subspace = Subspace({"w": weight})
    >>> subspace.append(Tangents.explicit({"w": weight}, [torch.tensor([[1.0, 1.0, 0.0]])]), owner=1)
    1
    >>> Projector(subspace).inside([torch.tensor([2.0, 0.0, 5.0])])[0].round()
    tensor([1., 1., 0.])
    """

    def __init__(self, subspace: Subspace, dtype: torch.dtype | None = None):
        tangents = subspace.tangents
        blocks = [] if tangents is None else tangents.blocks
        self._places = {name: place for place, name in enumerate(subspace.names)}
        whitening = subspace.whitening()
        self._folded = [block for block in blocks if isinstance(block, Dense | Compressed)]
        others = [block for block in blocks if not isinstance(block, Dense | Compressed)]
        self._double = bool(others) and float(whitening.square().sum()) * subspace.largest > ILL_CONDITIONED
        others = [block.to(torch.float64) for block in others] if self._double else others
        self._unfolded = [block.by_columns() if isinstance(block, Factored) else block for block in others]
        self._basis: Tensor | None = None
        if self._folded:
            parts = [whitening @ block.coordinate_rows().double() for block in self._folded]
            first = next(iter(self._folded[0].tensors().values()))
            self._basis = torch.cat(parts, 1).to(dtype or accurate(first.dtype))
            self._sizes = [part.shape[1] for part in parts]
        self._whitening = whitening if self._unfolded else None

    def inside(self, vectors: Sequence[Tensor]) -> list[Tensor]:
        """The part of a displacement inside the subspace, one tensor per protected parameter."""
        total: Tensor | None = None
        if self._basis is not None:
            pieces = [
                part for block in self._folded for part in block.coordinates(self._share(vectors, block))
            ]
            total = self._basis @ torch.cat([piece.to(self._basis.device) for piece in pieces])
        if self._whitening is not None:
            wide = [vector.double() for vector in vectors] if self._double else vectors
            found = [block.coefficients(self._share(wide, block)) for block in self._unfolded]
            inner = sum((part.to(found[0].device) for part in found[1:]), found[0])
            part = self._whitening @ inner.to(self._whitening)
            total = part if total is None else part + total
        parts: dict[int, Tensor] = {}
        if total is not None and self._basis is not None:
            back = torch.split(self._basis.t() @ total.to(self._basis.dtype), self._sizes)
            for folded, core in zip(self._folded, back, strict=True):
                self._put(parts, folded, folded.from_coordinates(core))
        if total is not None and self._whitening is not None:
            weights = (self._whitening.t() @ total).to(wide[0])
            for block in self._unfolded:
                self._put(parts, block, [part.to(vectors[0].dtype) for part in block.combine(weights)])
        return [parts[place] if place in parts else torch.zeros_like(v) for place, v in enumerate(vectors)]

    def _share(self, vectors: Sequence[Tensor], block: Block) -> list[Tensor]:
        return [vectors[self._places[name]] for name in block.names]

    def _put(self, parts: dict[int, Tensor], block: Block, found: Sequence[Tensor]) -> None:
        parts.update((self._places[name], part) for name, part in zip(block.names, found, strict=True))
