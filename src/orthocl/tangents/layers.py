"""Per-sample gradients of the common layers, from their inputs and output derivatives alone.

Every function here takes what hooks recorded for one call of a module, its input x (n samples) and the
derivatives d of the remembered outputs with respect to its output, (n, k, ...) for k remembered outputs per
sample, and returns the layer's block of n k rows, sample-major. None is returned where the gradient cannot be
read off: those parameters then get explicit per-sample gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.tangents.blocks import Block, Dense, Factored, Patches, Shape, Unfold
from orthocl.tangents.costs import LayerShape

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Exact types: a subclass may compute something else.
SUPPORTED = (nn.Linear, nn.Conv2d, *BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.Embedding)


def supported(module: nn.Module) -> bool:
    """Whether `block` knows the layer; a linear one that carries a tangent adapter is one when that is paused."""
    return type(module) in SUPPORTED or "tangent_adapter" in vars(module)


def block(module: nn.Module, names: dict[str, str], x: Tensor, d: Tensor) -> Block | None:
    """The block of a layer, or None if its gradient cannot be read off x and d.

    Args:
        module: the layer.
        names: the protected ones of its parameters: "weight" and "bias" -> full name.
        x: the layer's input, (n, ...).
        d: derivatives with respect to the layer's output, (n, k, ...).
    """
    if x.shape[0] != d.shape[0]:
        return None
    full = tuple(names[part] for part in ("weight", "bias") if part in names)
    shapes = tuple(tuple(getattr(module, part).shape) for part in ("weight", "bias") if part in names)
    if isinstance(module, nn.Linear):
        return _linear(full, shapes, names, x, d)
    if isinstance(module, nn.Conv2d):
        return _convolution(module, full, shapes, names, x, d)
    if isinstance(module, nn.Embedding):
        return _embedding(module, full, shapes, x, d)
    return _scale_and_shift(module, full, shapes, names, x, d)


def silent(module: nn.Module, names: dict[str, str], remembered: Tensor) -> Block | None:
    """The zero rows of a linear layer that took no part in the forward pass, in next to no memory."""
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


def _source(d: Tensor) -> Tensor | None:
    """Which input each row uses: None where every row has its own."""
    samples, outputs = d.shape[:2]
    return None if outputs == 1 else torch.arange(samples, device=d.device).repeat_interleave(outputs)


def _linear(
    full: tuple[str, ...], shapes: tuple[Shape, ...], names: dict[str, str], x: Tensor, d: Tensor
) -> Block | None:
    if x.dim() < 2:
        return None
    inputs, deltas = x.reshape(len(x), -1, x.shape[-1]), _rows(d.flatten(2, -2) if d.dim() > 3 else d)
    if deltas.dim() == 2:
        deltas = deltas[:, None]
    if "weight" not in names:
        return Dense(full, shapes, deltas.sum(1))
    return _outer(full, shapes, inputs, deltas, d, None, 1)


def _outer(
    full: tuple[str, ...],
    shapes: tuple[Shape, ...],
    inputs: Tensor,
    deltas: Tensor,
    d: Tensor,
    unfold: Unfold | None,
    groups: int,
) -> Block:
    """The representation of a sum of outer products that the cost model chooses."""
    positions, outputs = deltas.shape[1:]
    parameters = sum(prod(shape) for shape in shapes)
    size = LayerShape(prod(shapes[0][1:]), outputs, positions, inputs[0].numel(), parameters, groups)
    kind = size.choose(logits=d.shape[1])
    if kind == "factored":
        flat = inputs.flatten(1) if unfold is None else unfold(inputs).flatten(1)
        return Factored(full, shapes, flat, deltas[:, 0], _source(d))
    stored = Patches(full, shapes, inputs, deltas, _source(d), unfold)
    return stored if kind == "patches" else stored.densified()


def patches_of(module: nn.Conv2d, x: Tensor) -> tuple[Tensor, Unfold]:
    """The padded input of a convolution, and what cuts it into patches, one for each position of the output."""
    maps, padding = x, module.padding
    if module.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        maps, padding = functional.pad(x, module._reversed_padding_repeated_twice, mode=mode), (0, 0)
    return maps, Unfold(
        _pair(module.kernel_size), _pair(module.stride), _pair(padding), _pair(module.dilation)
    )


def _convolution(
    module: nn.Conv2d,
    full: tuple[str, ...],
    shapes: tuple[Shape, ...],
    names: dict[str, str],
    x: Tensor,
    d: Tensor,
) -> Block | None:
    if x.dim() != 4:
        return None
    deltas = _rows(d).flatten(2).transpose(1, 2).contiguous()
    if "weight" not in names:
        return Dense(full, shapes, deltas.sum(1))
    maps, unfold = patches_of(module, x)
    if module.groups == 1:
        return _outer(full, shapes, maps, deltas, d, unfold, 1)
    # One group after another is an ordinary convolution with its share of the channels.
    patches = torch.unflatten(unfold(maps), 2, (module.groups, -1))
    split = torch.unflatten(torch.unflatten(deltas, 0, d.shape[:2]), 3, (module.groups, -1))
    weight = torch.einsum("nklgo,nlgi->nkgoi", split, patches).flatten(0, 1).flatten(1)
    return Dense(full, shapes, torch.cat([weight, deltas.sum(1)], 1) if len(full) == 2 else weight)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


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
    vocabulary, width = shapes[0]
    words = x.reshape(samples, 1, -1).expand(-1, outputs, -1).reshape(samples * outputs, -1)
    deltas = _rows(d).reshape(samples * outputs, -1, width)
    if module.padding_idx is not None:
        deltas = deltas * (words != module.padding_idx)[..., None]
    rows = deltas.new_zeros(samples * outputs, vocabulary, width)
    rows.scatter_add_(1, words[..., None].expand_as(deltas), deltas)
    return Dense(full, shapes, rows.flatten(1))
