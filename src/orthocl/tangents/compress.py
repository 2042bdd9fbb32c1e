"""Compressing tangents: which directions of a layer's inputs and output derivatives to keep, and the cores.

The share `energy` of the tangents' squared norms is kept, on average over the tangents and, as a second bound, `worst`
for each of them. Each tangent counts relative to its norm over ALL layers, s_n = 1 / |G_n|, so a layer that matters
little to a tangent is allowed to lose more of its share. With the rows of s_n G_n stacked, the directions of the
inputs are the leading right singular vectors, those of the output derivatives the leading ones of the transposes;
one level for all layers and both sides cuts the pooled squared singular values, so that the sum of all that is cut
stays below 1 - energy per tangent (the bound of the higher-order singular value decomposition). The error that is
reported is measured: |G_n|^2 - |C_n|^2, summed over layers.

Existing bases are extended, never rotated: cores of earlier tangents stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from orthocl.errors import SettingsError, warn
from orthocl.tangents.blocks import Block, Compressed, Patches, accurate, extended, slices
from orthocl.tangents.costs import Core
from orthocl.tangents.layers import layer_shape, represented
from orthocl.tangents.range_finder import Spectrum, spectrum

# Cores are first computed with the bound made this many times tighter, then cut as far as the measured error allows.
TIGHTER = 4.0
LOOSEST = 4.0
TRIES = 8
# Beyond this many rows and columns the leading directions are found by random projection.
EXACT = 256
# Where at least this share may be left out, rounding of squared numbers does not matter.
COARSE = 1e-3


@dataclass(frozen=True)
class Compression:
    """How much of the tangents is kept.

    Args:
        energy: share of the tangents' squared norms kept on average; 1.0 keeps them exactly.
        worst: share kept of every single tangent.
        rows: tangents expected in total, for the choice of representations.
        batch_size: samples per step if factored layers can be adapted, None if not.
    """

    energy: float = 1.0
    worst: float = 0.0
    rows: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("energy", self.energy), ("the energy of the worst tangent", self.worst)):
            if not 0.0 <= value <= 1.0:
                raise SettingsError(f"{name} is a share between 0 and 1, got {value}")

    @property
    def exact(self) -> bool:
        """Whether nothing is left out."""
        return self.energy >= 1.0


@dataclass
class _Layer:
    """A sum of outer products that may be compressed, with its bases so far."""

    found: Patches
    squares: Tensor
    known: Compressed | None
    spectra: tuple[Spectrum, Spectrum] | None = None
    sizes: tuple[int, int] = (0, 0)
    bases: tuple[Tensor, Tensor] | None = None
    cores: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def dtype(self) -> torch.dtype:
        return accurate(self.found.deltas.dtype)

    def old(self) -> tuple[Tensor, Tensor]:
        """Bases so far: inputs and output derivatives."""
        if self.known is not None:
            return self.known.input_basis, self.known.output_basis
        inputs, outputs = self.found.width
        groups = self.found.groups
        like = self.found.deltas
        return (
            like.new_zeros(groups, inputs, 0, dtype=self.dtype),
            like.new_zeros(groups, outputs, 0, dtype=self.dtype),
        )

    def core(self) -> Core:
        """Sizes of the bases that the cut leaves."""
        inputs, outputs = self.old()
        return inputs.shape[2] + self.sizes[0], outputs.shape[2] + self.sizes[1]


def compress(
    found: Sequence[Block], rules: Compression, known: Mapping[tuple[str, ...], Block], logits: int = 1
) -> tuple[list[Block], Tensor]:
    """Blocks as they come from the layers -> blocks to keep, and the relative error of each tangent.

    Args:
        found: all blocks of the same tangents; sums of outer products as patches.
        rules: how much to keep.
        known: blocks of earlier tangents by their names, whose kinds are kept and whose bases are extended.
        logits: rows of one sample.
    """
    squares = {block.names: block.squares() for block in found}
    total = torch.stack(list(squares.values())).sum(0)
    scale = torch.where(total > 0, total.clamp(min=1e-300).reciprocal(), 0.0)
    layers = [
        _Layer(block, squares[block.names], _compressed(known.get(block.names)))
        for block in found
        if isinstance(block, Patches) and _may_compress(block.names, known)
    ]
    tight = rules.energy
    errors = torch.zeros_like(total)
    for _ in range(TRIES):
        _prepare(layers, scale, 1 - tight)
        if tight == rules.energy:
            layers = _worth_it(layers, rules, scale, known, logits)
        errors = _cut(layers, scale, rules, 1 - tight)
        if _kept_enough(errors, scale, rules):
            break
        tight = 1 - (1 - tight) / TIGHTER**2
    else:
        mean, worst = _left_out(errors, scale)
        warn(
            f"tangents keep {1 - mean:.4f} of their energy on average and {1 - worst:.4f} at worst, less than the "
            f"{rules.energy:g} and {rules.worst:g} asked for: raise `energy`, or keep all of it with energy=1.0",
        )
    kept = {layer.found.names: layer for layer in layers}
    blocks = [
        _block(kept[block.names]) if block.names in kept else represented(block, logits) for block in found
    ]
    return blocks, errors.clamp(min=0).sqrt() if layers else torch.zeros_like(total)


def _compressed(block: Block | None) -> Compressed | None:
    return block if isinstance(block, Compressed) else None


def _may_compress(names: tuple[str, ...], known: Mapping[tuple[str, ...], Block]) -> bool:
    """Layers keep the representation chosen for their first tangents."""
    return isinstance(known[names], Compressed) if names in known else True


def _prepare(layers: Sequence[_Layer], scale: Tensor, left_out: float) -> None:
    """Leading directions of both sides of every layer, beyond the known bases; half of the bound may stay out."""
    budget = left_out * max(1, int((scale > 0).sum())) / (2 * 2 * max(1, len(layers)))
    for layer in layers:
        pieces = list(_rows(layer.found, scale, layer.old(), coarse=left_out >= COARSE))
        inputs, outputs = (torch.cat([piece[side] for piece in pieces], 1) for side in (0, 1))
        layer.spectra = (spectrum(inputs, budget, EXACT), spectrum(outputs, budget, EXACT))


def _rows(
    found: Patches, scale: Tensor, bases: tuple[Tensor, Tensor], *, coarse: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (groups, n, width) with the Gram matrices of s_n G_n and of s_n G_n^T, outside the bases so far.

    The bias counts as an input of 1 in the latter; in the former it is left out, because it is always kept.
    """
    dtype = accurate(found.deltas.dtype)
    known = [basis.to(dtype) for basis in bases]
    for rows in slices(found.rows, 2 * sum(found.width) * found.positions * found.groups):
        inputs, outputs = found.sides(rows, dtype)
        weights = scale[rows].sqrt().to(inputs)[:, None, None, None]
        one = [torch.ones_like(inputs[..., :1])] if found.bias else []
        pairs = (inputs, outputs), (outputs, torch.cat([inputs, *one], 3))
        both = []
        for (this, that), basis in zip(pairs, known, strict=True):
            # Where positions are few, G = Q (R this) with the QR decomposition of that^T.
            few = found.positions <= that.shape[3]
            stacked = (_triangle(that, coarse=coarse) if few else that.mT) @ this
            flat = (stacked * weights).transpose(0, 1).flatten(1, 2)
            both.append(flat - (flat @ basis) @ basis.mT if basis.shape[2] else flat)
        yield both[0], both[1]


def _triangle(that: Tensor, *, coarse: bool) -> Tensor:
    """R of the QR decomposition of that^T: from its Gram matrix where directions of little energy do not count."""
    if coarse and that.shape[2] > 1:
        products = that @ that.mT
        diagonal = products.diagonal(dim1=2, dim2=3)
        diagonal += 10 * torch.finfo(that.dtype).eps * diagonal.sum(2, keepdim=True)
        lower: Tensor
        lower, failed = torch.linalg.cholesky_ex(products)
        if not bool(failed.any()):
            return lower.mT
    triangle: Tensor = torch.linalg.qr(that.mT, mode="r")[1]
    return triangle


def _worth_it(
    layers: list[_Layer],
    rules: Compression,
    scale: Tensor,
    known: Mapping[tuple[str, ...], Block],
    logits: int,
) -> list[_Layer]:
    """Those layers that the cost model keeps compressed, at the sizes that the bound alone would give them."""
    _level(layers, scale, 1 - rules.energy)
    return [
        layer
        for layer in layers
        if isinstance(known.get(layer.found.names), Compressed)
        or layer_shape(layer.found).choose(
            logits, max(rules.rows, layer.found.rows), layer.core(), rules.batch_size
        )
        == "compressed"
    ]


def _level(layers: Sequence[_Layer], scale: Tensor, left_out: float) -> None:
    """Sizes of all bases: directions above one level, which leaves out as much as is allowed."""
    spectra = [(layer, side) for layer in layers for side in (0, 1)]
    if not spectra:
        return
    pooled = torch.cat([_spectrum(layer, side).values.flatten().double() for layer, side in spectra])
    unresolved = sum(_spectrum(layer, side).unresolved for layer, side in spectra)
    allowed = left_out * float((scale > 0).sum()) - unresolved
    ordered = pooled.sort()[0]
    dropped = int((ordered.cumsum(0) <= allowed).sum())
    level = float(ordered[dropped - 1]) if dropped else 0.0
    for layer in layers:
        # Groups share one size: the largest that any of them needs.
        counts = [int((_spectrum(layer, side).values > level).sum(1).max()) for side in (0, 1)]
        layer.sizes = (counts[0], counts[1])


def _spectrum(layer: _Layer, side: int) -> Spectrum:
    if layer.spectra is None:
        raise SettingsError("the directions of a layer are needed before their number")
    return layer.spectra[side]


def _cut(layers: Sequence[_Layer], scale: Tensor, rules: Compression, left_out: float) -> Tensor:
    """Compute the cores, then shrink the bases as far as the measured errors allow; returns squared errors."""
    _level(layers, scale, left_out / TIGHTER)
    for layer in layers:
        layer.cores = _cores(layer)
    factor, best = LOOSEST, None
    while best is None or factor >= 1 / TIGHTER:
        _level(layers, scale, left_out * factor)
        errors = sum((_errors(layer) for layer in layers), torch.zeros_like(scale)) * scale
        best = errors
        if _kept_enough(errors, scale, rules):
            break
        factor /= 2
    return best


def _left_out(errors: Tensor, scale: Tensor) -> tuple[float, float]:
    """Squared errors on average over the tangents that are not zero, and the largest."""
    mean = float(errors.sum()) / max(1, int((scale > 0).sum()))
    return mean, float(errors.max()) if len(errors) else 0.0


def _kept_enough(errors: Tensor, scale: Tensor, rules: Compression) -> bool:
    mean, worst = _left_out(errors, scale)
    return mean <= 1 - rules.energy and worst <= 1 - rules.worst


def _cores(layer: _Layer) -> Tensor:
    """C_n = (D_n V)^T [A_n U, 1], a few tangents at a time."""
    found, old = layer.found, layer.old()
    layer.bases = (
        extended(old[0], _spectrum(layer, 0).vectors[..., : layer.sizes[0]]),
        extended(old[1], _spectrum(layer, 1).vectors[..., : layer.sizes[1]]),
    )
    inputs, outputs = (basis.to(layer.dtype) for basis in layer.bases)
    k, r = inputs.shape[2], outputs.shape[2]
    parts = []
    for rows in slices(found.rows, (sum(found.width) + k + r) * found.positions * found.groups):
        left, right = found.sides(rows, layer.dtype)
        seen = left @ inputs
        if found.bias:
            seen = torch.cat([seen, torch.ones_like(left[..., :1])], 3)
        parts.append((right @ outputs).mT @ seen)
    return torch.cat(parts)


def _trimmed(layer: _Layer) -> Tensor:
    """The cores of the directions that are kept: the leading ones, and the bias."""
    k, r = layer.core()
    if not layer.found.bias:
        return layer.cores[:, :, :r, :k]
    return torch.cat([layer.cores[:, :, :r, :k], layer.cores[:, :, :r, -1:]], 3)


def _errors(layer: _Layer) -> Tensor:
    kept = _trimmed(layer).double().flatten(1).square().sum(1)
    return (layer.squares - kept).clamp(min=0)


def _block(layer: _Layer) -> Compressed:
    k, r = layer.core()
    inputs, outputs = layer.bases or layer.old()
    # Unchanged bases are kept as they are, so that tangents that add nothing to them share them.
    inputs = inputs if inputs.shape[2] <= k else inputs[..., :k].contiguous()
    outputs = outputs if outputs.shape[2] <= r else outputs[..., :r].contiguous()
    cores = _trimmed(layer).contiguous()
    return Compressed(layer.found.names, layer.found.shapes, inputs, outputs, cores)
