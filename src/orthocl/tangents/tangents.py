"""Tangents: m gradients of remembered outputs, as one block per layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from orthocl.errors import DataError
from orthocl.tangents.blocks import Block, Dense, Shape, from_state, join


class Tangents:
    """m gradients of remembered outputs with respect to the protected parameters, as per-layer blocks.

    Written G, the m x p matrix that is never formed: `gram` is G H^T, `coefficients` is G g and
    `combine` is G^T w.

    Args:
        names: names of the protected parameters, in order.
        shapes: their shapes.
        blocks: the layers' shares; together they cover every name once.
        errors: for each row how far it is from the true gradient, relative to its norm; None if all are exact.

    >>> from orthocl.nets import MLP
    >>> from orthocl.tangents import collect
    >>> model = MLP((4,), hidden=(8,), outputs=3)
    >>> x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> tangents = collect(model, x, y, parameters=dict(model.named_parameters()))
    >>> tangents.rows, tangents.gram().shape, tangents.dense().shape
    (5, torch.Size([5, 5]), torch.Size([5, 67]))
    """

    def __init__(
        self,
        names: Sequence[str],
        shapes: Sequence[Shape],
        blocks: Sequence[Block],
        errors: Tensor | None = None,
    ):
        self.names, self.shapes, self.blocks = tuple(names), tuple(shapes), list(blocks)
        self.errors = errors
        self._place = {name: place for place, name in enumerate(self.names)}
        if sorted(name for block in self.blocks for name in block.names) != sorted(self.names):
            raise DataError("the blocks of these tangents do not cover each protected parameter exactly once")

    @property
    def rows(self) -> int:
        """Number of tangents m."""
        return self.blocks[0].rows if self.blocks else 0

    @property
    def nbytes(self) -> int:
        """Bytes stored."""
        return sum(block.nbytes for block in self.blocks)

    def share(self, gradient: Sequence[Tensor], block: Block) -> list[Tensor]:
        """The tensors of a gradient that belong to one block."""
        return [gradient[self._place[name]] for name in block.names]

    def _paired(self, other: Tangents) -> Iterator[tuple[Block, Block]]:
        if self.names != other.names or self.shapes != other.shapes:
            raise DataError(
                f"tangents of different parameters: {list(self.names)[:3]}... against "
                f"{list(other.names)[:3]}..."
            )
        mine = {block.names: block for block in self.blocks}
        theirs = {block.names: block for block in other.blocks}
        for names in [
            names for names in mine if names in theirs
        ]:  # in this order: sums round differently in others
            yield mine.pop(names), theirs.pop(names)
        # Layers that were read off in one collection and differentiated sample by sample in the other.
        left = {part.names: part for block in mine.values() for part in block.split()}
        right = {part.names: part for block in theirs.values() for part in block.split()}
        yield from ((left[names], right[names]) for names in left)

    def gram(self, other: Tangents | None = None) -> Tensor:
        """Inner products of these tangents with others (by default with themselves), float64."""
        if other is None or other is self:
            pairs: Sequence[tuple[Block, Block]] = [(block, block) for block in self.blocks]
        else:
            pairs = list(self._paired(other))
        if not pairs:
            return torch.zeros(self.rows, 0 if other is None else other.rows, dtype=torch.float64)
        total = pairs[0][0].gram(pairs[0][1])
        for mine, theirs in pairs[1:]:
            total += mine.gram(theirs)
        return total

    def coefficients(self, gradient: Sequence[Tensor]) -> Tensor:
        """G g: the inner product of each tangent with a gradient, in the gradient's type."""
        if len(gradient) != len(self.names):
            raise DataError(f"expected a gradient of {len(self.names)} tensors, got {len(gradient)}")
        total = self.blocks[0].coefficients(self.share(gradient, self.blocks[0]))
        for block in self.blocks[1:]:
            total += block.coefficients(self.share(gradient, block))
        return total

    def combine(self, weights: Tensor) -> list[Tensor]:
        """G^T w: the weighted sum of the tangents, shaped like the parameters."""
        if weights.shape != (self.rows,):
            raise DataError(
                f"expected one weight for each of {self.rows} tangents, got shape {tuple(weights.shape)}"
            )
        parts = {
            name: part
            for block in self.blocks
            for name, part in zip(block.names, block.combine(weights), strict=True)
        }
        return [parts[name] for name in self.names]

    def select(self, rows: Tensor) -> Tangents:
        """Some of the rows, by index."""
        errors = None if self.errors is None else self.errors[rows]
        return Tangents(self.names, self.shapes, [block.select(rows) for block in self.blocks], errors)

    def to(self, dtype: torch.dtype) -> Tangents:
        """The tangents whose factors are these ones rounded to another type."""
        return Tangents(self.names, self.shapes, [block.to(dtype) for block in self.blocks], self.errors)

    def dense(self) -> Tensor:
        """G itself, m x p. For tests and small networks: this is the matrix the factors avoid."""
        parts: dict[str, Tensor] = {}
        for block in self.blocks:
            sizes = [prod(shape) for shape in block.shapes]
            parts.update(zip(block.names, torch.split(block.dense(), sizes, dim=1), strict=True))
        return torch.cat([parts[name] for name in self.names], 1)

    @staticmethod
    def concatenate(pieces: Sequence[Tangents]) -> Tangents:
        """All rows of several collections of tangents of the same parameters."""
        if not pieces:
            raise DataError("nothing to concatenate: expected at least one collection of tangents")
        first = pieces[0]
        if any(piece.names != first.names or piece.shapes != first.shapes for piece in pieces):
            raise DataError("tangents of different parameters cannot be concatenated")
        partitions = [{block.names: block for block in piece.blocks} for piece in pieces]
        if any(partition.keys() != partitions[0].keys() for partition in partitions):
            partitions = [
                {part.names: part for block in piece.blocks for part in block.split()} for piece in pieces
            ]
        joined = [join([partition[names] for partition in partitions]) for names in partitions[0]]
        errors = None
        known = [piece.errors for piece in pieces if piece.errors is not None]
        if known:
            exact = [known[0].new_zeros(p.rows) if p.errors is None else p.errors for p in pieces]
            errors = torch.cat(exact)
        return Tangents(first.names, first.shapes, joined, errors)

    @staticmethod
    def explicit(parameters: Mapping[str, Tensor], rows: Sequence[Tensor]) -> Tangents:
        """Tangents given as explicit rows, (m, *shape) for each parameter."""
        shapes = [tuple(parameter.shape) for parameter in parameters.values()]
        blocks = [
            Dense((name,), (shape,), part.flatten(1))
            for name, shape, part in zip(parameters, shapes, rows, strict=True)
        ]
        return Tangents(list(parameters), shapes, blocks)

    def state_dict(self) -> dict[str, object]:
        """Tensors and JSON values, nested; `from_state_dict` reads it back."""
        return {
            "names": list(self.names),
            "shapes": [list(shape) for shape in self.shapes],
            "blocks": [{"meta": block.meta(), "tensors": block.tensors()} for block in self.blocks],
            "errors": self.errors,
        }

    @staticmethod
    def from_state_dict(state: Mapping[str, object]) -> Tangents:
        """The tangents of a state dict."""
        shapes = [tuple(int(n) for n in shape) for shape in state["shapes"]]  # type: ignore[attr-defined]
        found = [
            from_state(part["meta"], part["tensors"])
            for part in state["blocks"]  # type: ignore[attr-defined]
        ]
        names, errors = [str(name) for name in state["names"]], state.get("errors")  # type: ignore[attr-defined]
        return Tangents(names, shapes, found, errors if isinstance(errors, Tensor) else None)


def norm(gradient: Sequence[Tensor]) -> Tensor:
    """Euclidean norm of a gradient, in float64."""
    squares = [part.detach().double().square().sum() for part in gradient]
    return torch.sqrt(torch.stack(squares).sum())
