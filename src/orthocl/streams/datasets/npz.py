"""Arrays from .npz files: no pickles, no more bytes than allowed."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orthocl.errors import DataError


def read_npz(path: Path, names: Iterable[str] | None = None, *, most_bytes: int) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz file, or all of them.

    Args:
        path: the file.
        names: the arrays to read.
        most_bytes: the most that one array may take.

    Raises:
        DataError: when the file is damaged, an array is missing, holds objects, or is larger than allowed.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            present = [name.removesuffix(".npy") for name in archive.namelist()]
            wanted = present if names is None else list(names)
            missing = [name for name in wanted if name not in present]
            if missing:
                raise DataError(f"{path} holds {', '.join(present[:20])} but not {', '.join(missing)}")
            return {name: _read(archive, f"{name}.npy", most_bytes) for name in wanted}
    except DataError:
        raise
    except Exception as error:  # a damaged archive may raise anything
        raise DataError(f"{path} is damaged or not an .npz file ({type(error).__name__}: {error})") from error


def _read(archive: zipfile.ZipFile, name: str, most_bytes: int) -> NDArray[Any]:
    info = archive.getinfo(name)
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise DataError(f"{archive.filename}: {name} has the unknown format version {version}")
        read_header = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read_header(stream)
        size = prod(shape) * dtype.itemsize
        if dtype.hasobject or dtype.fields is not None:
            raise DataError(f"{archive.filename}: {name} holds {dtype}, expected plain numbers or text")
        # Checked before anything of that size is allocated: the header must agree with what the archive holds.
        if size > most_bytes or size > info.file_size or min(shape, default=1) < 0:
            raise DataError(f"{archive.filename}: {name} of shape {shape} is larger than it can be")
        content = bytearray(size)
        done = 0
        while done <= size and (piece := stream.read(1 << 20)):
            content[done : done + len(piece)] = piece
            done += len(piece)
        if done != size:
            raise DataError(
                f"{archive.filename}: {name} does not hold the {size} bytes that its header announces"
            )
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
