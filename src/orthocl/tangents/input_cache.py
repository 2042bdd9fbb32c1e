"""The first layer's kernel with all inputs of a task, computed once: in memory, or in a file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from orthocl.errors import StoreError
from orthocl.nets.modes import evaluating
from orthocl.streams.base import Split
from orthocl.tangents.adapter_layer import AdapterLayer

ROWS_AT_ONCE = 1024


@torch.no_grad()
def fill_caches(
    model: nn.Module,
    layers: Iterable[AdapterLayer],
    inputs: Split | Tensor,
    budget: int | None,
    scratch: Path | None,
) -> None:
    """Give each layer that takes the model's own input the kernel of all inputs, if it fits in the budget."""
    count = len(inputs)
    for layer in layers:
        like, shape = layer.module.weight, (count, len(layer.block.inputs))
        if budget is not None and prod(shape) * like.element_size() > budget:
            continue
        if not _sees(model, layer, _inputs(inputs, slice(0, min(2, count)), like)):
            continue
        on_disk = scratch is not None and like.device.type == "cpu"
        cache = file_tensor(shape, like.dtype, scratch) if scratch and on_disk else like.new_empty(shape)
        for start in range(0, count, ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, count))
            cache[rows] = layer.kernel(_inputs(inputs, rows, like).flatten(1))
        layer.cache, layer.cache_on_disk = cache, on_disk


def _sees(model: nn.Module, layer: AdapterLayer, sample: Tensor) -> bool:
    """Whether the layer's input is the flattened input of the model."""
    seen: list[Tensor] = []
    handle = layer.module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        with evaluating(model):
            model(sample)
    finally:
        handle.remove()
    return len(seen) == 1 and torch.equal(seen[0], sample.flatten(1))


def _inputs(inputs: Split | Tensor, rows: slice, like: Tensor) -> Tensor:
    found = inputs[rows] if isinstance(inputs, Tensor) else inputs.inputs(rows)
    return found.to(device=like.device, dtype=like.dtype)


def file_tensor(shape: tuple[int, ...], dtype: torch.dtype, folder: Path) -> Tensor:
    """A tensor whose numbers are in an unnamed file in this folder, which is deleted with the tensor.

    The system keeps in memory what is in use, and releases it when programs need the memory.

    >>> table = file_tensor((2, 3), torch.float32, Path(tempfile.gettempdir()))
    >>> table.fill_(1.0).sum()
    tensor(6.)
    """
    size = prod(shape) * dtype.itemsize
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="orthocl-") as file:
            if hasattr(os, "posix_fallocate") and size:  # notice a full disk now, not by a crash later
                os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_file(file.name, shared=True, size=prod(shape), dtype=dtype).view(shape)
    except (OSError, RuntimeError) as error:
        raise StoreError(
            f"cannot reserve {size:,} bytes in the scratch folder {folder}: {error}. Free some space, or choose "
            "another folder (ORTHOCL_SCRATCH; leave it unset to keep such tables in memory)"
        ) from error
