"""Per-sample gradients of the common layers, from their inputs and output derivatives alone.

Every function here takes what hooks recorded for one call of a module, its input x (n samples) and the
derivatives d of the remembered outputs with respect to its output, (n, k, ...) for k remembered outputs per
sample, and returns the layer's blocks of n k rows, sample-major. None is returned where they do not determine the
gradient: those parameters then get explicit per-sample gradients.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from orthocl.tangents.blocks import Block, Dense, Factored, Outer, Patches, Rows, Shape, Summed
from orthocl.tangents.convolutions import PLAIN, TRANSPOSED, convolution, patches_of, shared_inputs
from orthocl.tangents.costs import LayerShape, sparse_rows_are_smaller

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)
__all__ = ["layer_shape", "linear", "patches_of", "read", "represented", "silent", "supported"]
# Exact types: a subclass may compute something else.
SUPPORTED = (*LINEAR, *PLAIN, *TRANSPOSED, *BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.Embedding)


def supported(module: nn.Module) -> bool:
    """Whether `read` supports the layer; a linear layer with a tangent adapter counts while that is paused."""
    return type(module) in SUPPORTED or _adapted(module) or _multiplies_from_the_right(module)


def is_linear(module: nn.Module) -> bool:
    """Whether a layer is a linear one, whichever way round it keeps its weight."""
    return type(module) in LINEAR or _adapted(module) or _multiplies_from_the_right(module)


def _adapted(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and "tangent_adapter" in vars(module)


def _multiplies_from_the_right(module: nn.Module) -> bool:
    """Hugging Face's Conv1D: a linear layer that keeps its weight transposed."""
    weight = getattr(module, "weight", None)
    return (
        type(module).__name__ == "Conv1D"
        and isinstance(weight, Tensor)
        and weight.dim() == 2
        and getattr(module, "nf", None) == weight.shape[1]
    )


def read(module: nn.Module, names: dict[str, str], x: Tensor, d: Tensor) -> list[Block] | None:
    """The blocks of a layer before a representation is chosen: sums of outer products are patches.

    Args:
        module: the layer.
        names: the protected ones of its parameters: "weight" and "bias" -> full name.
        x: the layer's input, (n, ...).
        d: derivatives with respect to the layer's output, (n, k, ...).
    """
    if x.dim() == 0 or x.shape[0] != d.shape[0]:
        return None
    full = tuple(names[part] for part in ("weight", "bias") if part in names)
    shapes = tuple(tuple(getattr(module, part).shape) for part in ("weight", "bias") if part in names)
    if type(module) in LINEAR or _adapted(module):
        return linear(full, shapes, "weight" in names, x, d)
    if _multiplies_from_the_right(module):
        return _from_the_right(full, shapes, "weight" in names, x, d)
    if isinstance(module, (*PLAIN, *TRANSPOSED)):
        if "weight" not in names:
            return [Dense(full, shapes, _rows(d).flatten(2).sum(2))]
        return convolution(module, full, shapes, x, d)
    found = (
        _embedding(module, full, shapes, x, d)
        if isinstance(module, nn.Embedding)
        else _scale_and_shift(module, full, shapes, names, x, d)
    )
    return None if found is None else [found]


def represented(found: Block, logits: int) -> Block:
    """A block of `read`, in the exact representation that the cost model chooses.

    Args:
        found: one of `read`'s blocks.
        logits: rows per sample, which share the sample's input.
    """
    if isinstance(found, Rows):
        return found if sparse_rows_are_smaller(found.numbers, found.parameters) else found.densified()
    if isinstance(found, Summed):
        return _represented_sum(found, logits)
    if not isinstance(found, Patches):
        return found
    kind = layer_shape(found).choose(logits)
    if kind == "factored":
        inputs = found.inputs if found.unfold is None else found.unfold(found.inputs)
        return Factored(found.names, found.shapes, inputs.flatten(1), found.deltas[:, 0], found.source)
    return found if kind == "patches" else found.densified()


def _represented_sum(found: Summed, logits: int) -> Block:
    """Both parts as they are, or dense rows where those are not much larger."""
    touched, outer = found.parts
    product = represented(outer, logits)
    stored = sum(part.numel() for part in product.tensors().values()) / max(1, product.rows)
    numbers = touched.numbers + stored
    if not isinstance(product, Outer) or not sparse_rows_are_smaller(numbers, found.parameters):
        return found.densified()
    return Summed(touched, product)


def layer_shape(found: Patches) -> LayerShape:
    """The sizes that the costs of a sum of outer products depend on."""
    inputs, outputs = found.width
    stored = found.inputs[0].numel() if len(found.inputs) else 0
    return LayerShape(inputs, outputs, found.positions, stored, found.parameters, found.groups)


def silent(module: nn.Module, names: dict[str, str], remembered: Tensor) -> Block | None:
    """The zero rows of a linear layer that was not used in the forward pass, in almost no memory."""
    if not isinstance(module, nn.Linear) or "weight" not in names:
        return None
    full = tuple(names[part] for part in ("weight", "bias") if part in names)
    shapes = tuple(tuple(getattr(module, part).shape) for part in ("weight", "bias") if part in names)
    rows = remembered.numel()
    source = torch.zeros(rows, dtype=torch.long, device=remembered.device)
    inputs, deltas = (
        remembered.new_zeros(1, module.in_features),
        remembered.new_zeros(rows, module.out_features),
    )
    return Factored(full, shapes, inputs.detach(), deltas.detach(), source)


def _rows(d: Tensor) -> Tensor:
    return d.flatten(0, 1)


def linear(
    full: tuple[str, ...], shapes: tuple[Shape, ...], weight: bool, x: Tensor, d: Tensor
) -> list[Block] | None:
    """Each position's derivative times its input.

    Args:
        full: names of the protected ones of weight and bias.
        shapes: their shapes.
        weight: whether the weight is among them.
        x: inputs, (n, ..., i).
        d: derivatives of the outputs, (n, k, ..., o).
    """
    if x.dim() < 2:
        return None
    inputs, deltas = x.reshape(len(x), -1, x.shape[-1]), _rows(d.flatten(2, -2) if d.dim() > 3 else d)
    if deltas.dim() == 2:
        deltas = deltas[:, None]
    if not weight:
        return [Dense(full, shapes, deltas.sum(1))]
    return [Patches(full, shapes, inputs, deltas, shared_inputs(d))]


def _from_the_right(
    full: tuple[str, ...], shapes: tuple[Shape, ...], weight: bool, x: Tensor, d: Tensor
) -> list[Block] | None:
    """As `linear` with the roles of input and derivative exchanged, so that the bias stands alone."""
    found = linear(full[:1], shapes[:1], weight, x, d)
    if found is None or not isinstance(found[0], Patches):
        return found
    straight = found[0]
    inputs = straight.rows_of_inputs(slice(None))
    blocks: list[Block] = [Patches(full[:1], shapes[:1], straight.deltas, inputs)]
    if len(full) == 2:
        blocks.append(Dense(full[1:], shapes[1:], straight.deltas.sum(1)))
    return blocks


def _scale_and_shift(
    module: nn.Module,
    full: tuple[str, ...],
    shapes: tuple[Shape, ...],
    names: dict[str, str],
    x: Tensor,
    d: Tensor,
) -> Block | None:
    """Norm layers: normalised input times weight plus bias."""
    if isinstance(module, nn.LayerNorm):
        normalised = functional.layer_norm(x, module.normalized_shape, None, None, module.eps)
        kept = tuple(range(x.dim() - len(module.normalized_shape), x.dim()))
    else:
        kept = (1,)
        if isinstance(module, nn.GroupNorm):
            normalised = functional.group_norm(x, module.num_groups, None, None, module.eps)
        elif (
            isinstance(module, BATCH_NORMS)
            and module.running_mean is not None
            and module.running_var is not None
        ):
            normalised = functional.batch_norm(x, module.running_mean, module.running_var, eps=module.eps)
        else:
            return None
    if 0 in kept:
        return None
    summed = [axis + 1 for axis in range(1, x.dim()) if axis not in kept]

    def reduced(values: Tensor) -> Tensor:
        return _rows(values.sum(summed) if summed else values).flatten(1)

    parts = [reduced(d * normalised[:, None])] if "weight" in names else []
    return Dense(full, shapes, torch.cat([*parts, reduced(d)] if "bias" in names else parts, 1))


def _embedding(
    module: nn.Embedding, full: tuple[str, ...], shapes: tuple[Shape, ...], x: Tensor, d: Tensor
) -> Block | None:
    if module.max_norm is not None:  # renormalises its own weights while it runs
        return None
    samples, outputs = d.shape[:2]
    words = x.reshape(samples, 1, -1).expand(-1, outputs, -1).reshape(samples * outputs, -1)
    values = _rows(d).reshape(samples * outputs, -1, prod(shapes[0][1:]))
    if module.padding_idx is not None:
        values = values * (words != module.padding_idx)[..., None]
    return Rows(full, shapes, words, values)
