"""How many samples are differentiated together: as many as a number of bytes holds, whatever one of them weighs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil

import torch
from torch import Tensor, nn

# Samples, if each has one remembered output and is small.
MOST = 256
# Bytes of what a forward pass keeps for the backward pass, and of the derivatives by all recorded outputs.
BYTES = 2**28
# Whatever they weigh: their peak is below that of three training steps with a usual batch of 32. Of compressed tangents
# every batch adds directions of its own, so that fewer samples at a time would make larger memories.
LEAST = 50


@contextmanager
def weighing(model: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes that forward passes inside keep for the backward pass, besides the model's own, by their address."""
    own = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if (
            address not in own
        ):  # a batch may be a few rows of a large tensor, a large tensor one number repeated
            size = min(storage.nbytes(), tensor.numel() * tensor.element_size())
            found[address] = max(size, found.get(address, 0))
        return tensor.detach()  # an output that its own graph keeps would never be released

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield found


def chunk_size(kept: int, derivatives: int, outputs: int) -> int:
    """Samples that are differentiated together.

    Args:
        kept: bytes that the forward pass of one sample keeps.
        derivatives: bytes of one derivative by all of its recorded outputs.
        outputs: remembered outputs of a sample.

    >>> chunk_size(1000, 1000, 1), chunk_size(1000, 1000, 10), chunk_size(2**21, 2**21, 1), chunk_size(2**25, 2**25, 1)
    (256, 25, 64, 50)
    """
    fitting = BYTES // max(1, kept + outputs * derivatives)
    return max(1, LEAST // outputs, min(MOST // outputs, fitting))


def evenly(samples: int, size: int) -> int:
    """The size of batches that are no larger than `size`, as many as before and all as large.

    >>> evenly(100, 32), evenly(64, 32), evenly(3, 32)
    (25, 32, 3)
    """
    return ceil(samples / ceil(samples / size))
