"""How many samples are differentiated together: as many as a number of bytes holds, whatever one of them weighs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

# Samples, if each has one remembered output and is small.
MOST = 256
# Bytes of what a forward pass keeps for the backward pass, and of the derivatives by all recorded outputs.
BYTES = 2**28


@contextmanager
def weighing(model: nn.Module) -> Iterator[dict[int, int]]:
    """Bytes that forward passes inside keep for the backward pass, besides the model's own, by their address."""
    own = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in own:  # a batch may be a few rows of a large tensor, a large tensor one number repeated
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

    >>> chunk_size(1000, 1000, 1), chunk_size(1000, 1000, 10), chunk_size(2**25, 2**25, 1)
    (256, 25, 4)
    """
    return max(1, min(MOST // outputs, BYTES // max(1, kept + outputs * derivatives)))
