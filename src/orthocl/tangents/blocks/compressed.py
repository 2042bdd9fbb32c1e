"""Compressed blocks: two small bases for a layer, and one small core for each tangent.

A layer's tangents G_n (o x i) are kept as V C_n [U, 1]^T with orthonormal bases V (o x r) of output derivatives and
U (i x k) of inputs. What is kept is treated exactly: inner products are those of the cores, a gradient's coefficients
are those of V^T g U. The constant 1 next to the input, for the bias, is a separate direction that is always kept.
A convolution with groups has separate bases and cores for each group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from orthocl.tangents.blocks.dense import Block, Shape, accurate, inner_products, slices

# A direction shorter than this, after its known part has been removed, is rounding, not a direction.
SMALLEST_DIRECTION = 1e-5


class Compressed(Block):
    """G_l[n] = V C_n [U, 1]^T.

    Args:
        names: the weight and, if it is protected too, the bias.
        shapes: their shapes; the weight's first axis is that of the outputs.
        input_basis: U, (groups, i, k), orthonormal columns.
        output_basis: V, (groups, o, r), orthonormal columns.
        cores: (m, groups, r, k), or (m, groups, r, k + 1) with a bias.

    >>> eye = torch.eye(3)[None, :, :2]
    >>> block = Compressed(("w",), ((3, 3),), eye, eye, torch.ones(4, 1, 2, 2))
    >>> block.dense()[0].view(3, 3)
    tensor([[1., 1., 0.],
            [1., 1., 0.],
            [0., 0., 0.]])
    """

    kind = "compressed"

    def __init__(
        self,
        names: tuple[str, ...],
        shapes: tuple[Shape, ...],
        input_basis: Tensor,
        output_basis: Tensor,
        cores: Tensor,
    ):
        self.names, self.shapes = names, shapes
        self.input_basis, self.output_basis, self.cores = input_basis, output_basis, cores

    @property
    def bias(self) -> bool:
        """Whether the layer's bias is protected too."""
        return len(self.names) == 2

    @property
    def ranks(self) -> tuple[int, int]:
        """Directions of inputs k and of output derivatives r (of each group)."""
        return self.input_basis.shape[2], self.output_basis.shape[2]

    @property
    def rows(self) -> int:
        """Number of tangents."""
        return len(self.cores)

    def tensors(self) -> dict[str, Tensor]:
        """Bases and cores."""
        return {"input_basis": self.input_basis, "output_basis": self.output_basis, "cores": self.cores}

    @property
    def shared_bytes(self) -> int:
        """Bytes of the bases."""
        return sum(b.numel() * b.element_size() for b in (self.input_basis, self.output_basis))

    def _bases(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.input_basis.to(dtype), self.output_basis.to(dtype)

    def _core_of(self, gradient: Sequence[Tensor]) -> list[Tensor]:
        """V^T g_W U and, with a bias, V^T g_b: a gradient in the two bases."""
        inputs, outputs = self._bases(gradient[0].dtype)
        weight = gradient[0].reshape(len(inputs), outputs.shape[1], inputs.shape[1])
        inputs_first = inputs.shape[2] <= outputs.shape[2]  # the smaller side first
        core = outputs.mT @ (weight @ inputs) if inputs_first else (outputs.mT @ weight) @ inputs
        return [core, outputs.mT @ gradient[1].reshape(len(inputs), -1, 1)] if self.bias else [core]

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G_l g."""
        core = torch.cat(self._core_of(gradient), 2)
        return self.cores.flatten(1).to(gradient[0].dtype) @ core.flatten()

    def coordinate_rows(self) -> Tensor:
        """The coordinates of each tangent: its core, the weight's part before the bias's."""
        k = self.input_basis.shape[2]
        return torch.cat([self.cores[..., :k].flatten(1), self.cores[..., k:].flatten(1)], 1)

    def coordinates(self, gradient: Sequence[Tensor]) -> list[Tensor]:
        """The coordinates of a gradient's part in the two bases, as flat pieces."""
        return [part.flatten() for part in self._core_of(gradient)]

    def from_coordinates(self, flat: Tensor) -> list[Tensor]:
        """The gradient with these coordinates."""
        (k, r), groups = self.ranks, len(self.input_basis)
        count = groups * r * k
        left, right, bias = self._outside(
            flat[:count].view(groups, r, k), flat[count:].view(groups, r, int(self.bias))
        )
        return [(left @ right).view(self.shapes[0]), *bias]

    def _outside(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Two matrices whose product is the weight's share of a core, and the bias's share."""
        inputs, outputs = self._bases(weight.dtype)
        biases = [(outputs @ bias).reshape(self.shapes[1])] if self.bias else []
        if inputs.shape[2] <= outputs.shape[2]:
            return outputs @ weight, inputs.mT, biases
        return outputs, weight @ inputs.mT, biases

    def _combined(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of the cores, the weight's part and the bias's."""
        core = (weights @ self.cores.flatten(1).to(weights.dtype)).view(self.cores.shape[1:])
        k = self.input_basis.shape[2]
        return core[..., :k], core[..., k:]

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G_l^T w."""
        left, right, bias = self._outside(*self._combined(weights))
        return [(left @ right).view(self.shapes[0]), *bias]

    def add_combination(self, weights: Tensor, targets: Sequence[Tensor], scale: float = 1.0) -> None:
        """Add scale x G_l^T w to the parameters in place, without a temporary of their size."""
        if not targets[0].is_contiguous():
            super().add_combination(weights, targets, scale)
            return
        left, right, bias = self._outside(*self._combined(weights.to(targets[0].dtype)))
        targets[0].view(len(left), left.shape[1], -1).baddbmm_(left, right, alpha=scale)
        for target, change in zip(targets[1:], bias, strict=True):
            target.add_(change, alpha=scale)

    def dense(self, rows: slice | Tensor = slice(None), dtype: torch.dtype | None = None) -> Tensor:
        """Rows of G_l."""
        dtype = dtype or accurate(self.cores.dtype)
        inputs, outputs = self._bases(dtype)
        cores = self.cores[rows].to(dtype)
        weight = (outputs @ cores[..., : inputs.shape[2]] @ inputs.mT).flatten(1)
        return torch.cat([weight, (outputs @ cores[..., -1:]).flatten(1)], 1) if self.bias else weight

    def squares(self) -> Tensor:
        """Squared norms of the rows: those of the cores."""
        return self.cores.double().flatten(1).square().sum(1)

    def gram(self, other: Block) -> Tensor:
        """Inner products of the cores, brought to the same bases."""
        if other is self:
            cores = self.cores.flatten(1)
            return inner_products(cores, cores)
        cores = other._in_bases_of(self) if isinstance(other, Compressed) else self._cores_of(other)
        return inner_products(self.cores.flatten(1), cores.flatten(1))

    def _cores_of(self, other: Block) -> Tensor:
        """The cores of other tangents' projection onto these bases, from a few explicit rows at a time."""
        inputs, outputs = self._bases(torch.float64)
        found = []
        for rows in slices(other.rows, self.parameters):
            dense = other.dense(rows, torch.float64)
            count = self.parameters - (self.shapes[1][0] if self.bias else 0)
            weight = dense[:, :count].reshape(len(dense), len(inputs), outputs.shape[1], inputs.shape[1])
            core = (outputs.mT @ weight) @ inputs
            if self.bias:
                bias = dense[:, count:].reshape(len(dense), len(inputs), -1, 1)
                core = torch.cat([core, outputs.mT @ bias], 3)
            found.append(core)
        return torch.cat(found)

    def _in_bases_of(self, other: Compressed) -> Tensor:
        """The cores of these tangents' projection onto another block's bases."""
        k, r = other.ranks
        if _starts_with(self, other):
            parts = self.cores[:, :, :r, :k], self.cores[:, :, :r, self.ranks[0] :]
        elif _starts_with(other, self):
            return _padded(self.cores, self.ranks, other.ranks)
        else:
            inputs = other.input_basis.double().mT @ self.input_basis.double()
            outputs = other.output_basis.double().mT @ self.output_basis.double()
            cores = outputs @ self.cores.double()
            parts = cores[..., : self.ranks[0]] @ inputs.mT, cores[..., self.ranks[0] :]
        return torch.cat(parts, 3)

    def select(self, rows: Tensor) -> Compressed:
        """Some of the rows."""
        return Compressed(self.names, self.shapes, self.input_basis, self.output_basis, self.cores[rows])

    def to(self, dtype: torch.dtype) -> Compressed:
        """Rounded cores; the bases, which all rows share, stay in at least float32."""
        inputs, outputs = self._bases(accurate(dtype))
        return Compressed(self.names, self.shapes, inputs, outputs, self.cores.to(dtype))


def _starts_with(large: Compressed, small: Compressed) -> bool:
    """Whether the bases of one block begin with those of another."""
    if any(a < b for a, b in zip(large.ranks, small.ranks, strict=True)):
        return False
    pairs = ((large.input_basis, small.input_basis), (large.output_basis, small.output_basis))
    return all(
        one is two or (one.dtype == two.dtype and torch.equal(one[..., : two.shape[2]], two))
        for one, two in pairs
    )


def _padded(cores: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Cores with zeros for the directions that came later; the bias's column stays last."""
    if old == new:
        return cores
    biases = cores.shape[3] - old[0]
    wider = cores.new_zeros(*cores.shape[:2], new[1], new[0] + biases)
    wider[:, :, : old[1], : old[0]] = cores[..., : old[0]]
    wider[:, :, : old[1], new[0] :] = cores[..., old[0] :]
    return wider


def extended(basis: Tensor, directions: Tensor) -> Tensor:
    """A basis (groups, n, k), followed by the part of some directions (groups, n, j) outside it, orthonormal.

    Computed in float64. Existing columns stay the same, to the bit.
    """
    room = basis.shape[1] - basis.shape[2]
    if not room or not directions.shape[2]:
        return basis
    found, known = directions.double(), basis.double()
    for _ in range(2):  # twice is enough
        found = found - known @ (known.mT @ found)
        lengths = torch.linalg.qr(found, mode="r")[1].diagonal(dim1=1, dim2=2).abs()
        # Groups grow together: a direction that one of them lacks is kept as long as another one needs it.
        new = (lengths > SMALLEST_DIRECTION).any(0).nonzero()[:room, 0]
        found = torch.linalg.qr(found[:, :, new])[0]
    return torch.cat([basis, found.to(basis.dtype)], 2)


def join_compressed(blocks: Sequence[Compressed]) -> Compressed:
    """One block with the rows of several: the bases of the largest, extended by what the others add."""
    largest = max(blocks, key=lambda block: sum(block.ranks))
    inputs, outputs = largest.input_basis, largest.output_basis
    for block in blocks:
        if not _starts_with(largest, block):
            inputs, outputs = extended(inputs, block.input_basis), extended(outputs, block.output_basis)
    whole = Compressed(largest.names, largest.shapes, inputs, outputs, largest.cores[:0])
    dtype = largest.cores.dtype
    cores = [block._in_bases_of(whole).to(dtype) for block in blocks]
    return Compressed(largest.names, largest.shapes, inputs, outputs, torch.cat(cores))
