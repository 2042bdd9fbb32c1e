"""Convolutions as sums of outer products: which patch of the input meets which derivative of the output."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from orthocl.tangents.blocks import Block, Dense, Patches, Shape, Unfold

PLAIN = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def cut(
    maps: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Patches of maps with any number of axes: (n, channels, ...) -> (n, positions, channels x kernel)."""
    axes = len(kernel)
    maps = functional.pad(maps, [p for amount in reversed(padding) for p in (amount, amount)])
    for axis in range(axes):
        window = (kernel[axis] - 1) * dilation[axis] + 1
        maps = maps.unfold(2 + axis, window, stride[axis])[..., :: dilation[axis]]
    positions, inside = range(2, 2 + axes), range(2 + axes, 2 + 2 * axes)
    return maps.permute(0, *positions, 1, *inside).flatten(1 + axes).flatten(1, axes)


def convolution(
    module: nn.Module, full: tuple[str, ...], shapes: tuple[Shape, ...], x: Tensor, d: Tensor
) -> list[Block] | None:
    """The blocks of a convolution whose weight is protected, or None where a sample has no axis of its own.

    Args:
        module: the layer.
        full: names of the weight and, if it is protected too, of the bias.
        shapes: their shapes.
        x: its input maps, (n, channels, ...).
        d: derivatives with respect to its output maps, (n, k, channels, ...).
    """
    if isinstance(module, TRANSPOSED):
        return _transposed(module, full, shapes, x, d)
    if not isinstance(module, PLAIN) or x.dim() != 2 + len(module.kernel_size):
        return None
    deltas = d.flatten(0, 1).flatten(2).transpose(1, 2).contiguous()
    maps, padding = _padded(module, x)
    sizes = (module.kernel_size, module.stride, padding, module.dilation)
    source = shared_inputs(d)
    if isinstance(module, nn.Conv3d):
        kernel, stride, amount, dilation = (tuple(int(n) for n in part) for part in sizes)
        inputs = cut(maps, kernel, stride, amount, dilation)
        return [Patches(full, shapes, inputs, deltas, source, None, module.groups)]
    if isinstance(module, nn.Conv1d):  # a map of height one
        maps, (k, s, p, d1) = maps[:, :, None], (int(part[0]) for part in sizes)
        unfold = Unfold((1, k), (1, s), (0, p), (1, d1))
    else:
        unfold = Unfold(*(_pair(part) for part in sizes))
    return [Patches(full, shapes, maps, deltas, source, unfold, module.groups)]


def patches_of(module: nn.Conv2d, x: Tensor) -> tuple[Tensor, Unfold]:
    """The padded input of a convolution, and what cuts it into patches, one for each position of the output."""
    maps, padding = _padded(module, x)
    return maps, Unfold(
        _pair(module.kernel_size), _pair(module.stride), _pair(padding), _pair(module.dilation)
    )


def _padded(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The input, padded where `unfold` cannot do it, and the padding that remains to be done."""
    padding = module.padding
    if module.padding_mode == "zeros" and not isinstance(padding, str):
        return x, tuple(padding)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    padded = functional.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    return padded, (0,) * len(module.kernel_size)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _transposed(
    module: nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d,
    full: tuple[str, ...],
    shapes: tuple[Shape, ...],
    x: Tensor,
    d: Tensor,
) -> list[Block] | None:
    """Each input position meets the patch of output derivatives that it was spread over: roles are exchanged."""
    axes = len(module.kernel_size)
    if module.groups != 1 or x.dim() != 2 + axes:
        return None
    rows = d.flatten(0, 1)
    kernel, stride, padding, dilation = (
        tuple(int(n) for n in part)
        for part in (module.kernel_size, module.stride, module.padding, module.dilation)
    )
    patches = cut(rows, kernel, stride, padding, dilation)
    inputs = x.flatten(2).transpose(1, 2).repeat_interleave(d.shape[1], 0).contiguous()
    found: list[Block] = [Patches(full[:1], shapes[:1], patches, inputs)]
    if len(full) == 2:
        found.append(Dense(full[1:], shapes[1:], rows.flatten(2).sum(2)))
    return found


def shared_inputs(d: Tensor) -> Tensor | None:
    """Which input each row uses: None where every row has its own."""
    samples, outputs = d.shape[:2]
    return None if outputs == 1 else torch.arange(samples, device=d.device).repeat_interleave(outputs)
