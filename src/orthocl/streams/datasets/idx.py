"""The IDX format of MNIST and Fashion-MNIST."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from orthocl.errors import DataError


def parse_idx(content: bytes, where: str, dimensions: int) -> NDArray[np.uint8]:
    """The uint8 array of an IDX file.

    Args:
        content: the uncompressed file.
        where: what errors call it.
        dimensions: expected number of dimensions: 1 for labels, 3 for images.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels", 1)
    array([7, 9], dtype=uint8)
    """
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DataError(f"{where}: not an IDX file of bytes: it starts with {content[:4].hex() or 'nothing'}")
    if content[3] != dimensions:
        raise DataError(
            f"{where}: expected {dimensions} dimensions, it has {content[3]}: images and labels swapped?"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{where}: truncated in its header of {start} bytes")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", count=dimensions, offset=4))
    if len(content) - start != prod(shape):
        raise DataError(
            f"{where}: its header promises {shape}, {prod(shape)} bytes, but {len(content) - start} follow"
        )
    if 0 in shape:
        raise DataError(f"{where}: its header promises {shape}: nothing at all")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
