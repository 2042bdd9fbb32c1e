"""Safe extraction of tar archives: no path leaves the target, no links, no more bytes than expected."""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from orthocl.streams.datasets.schema import DataFile, OnProgress, SourceError

CHUNK = 1 << 20


def extract_files(
    archive: Path | IO[bytes], folder: str, files: Iterable[DataFile], target: Path, progress: OnProgress
) -> None:
    """Write the wanted files of `folder` in a tar archive into `target`; nothing else is written.

    Raises:
        SourceError: when one is missing, is not a plain file, has the wrong size, or the archive is damaged.
    """
    wanted = {str(PurePosixPath(folder) / file.name): file for file in files}
    # Scanning an archive costs its uncompressed size: limit it, so that an archive bomb does not run for ever.
    allowance = 4 * sum(file.size for file in wanted.values()) + (1 << 28)
    with _opened(archive) as tar:
        for member in tar:
            allowance -= max(member.size, 0)
            if allowance < 0:
                raise SourceError("the archive is far larger than expected")
            file = wanted.get(str(PurePosixPath(member.name)))
            if file is None:
                continue
            if member.size != file.size:
                raise SourceError(f"{member.name}: {member.size} bytes in the archive, expected {file.size}")
            _write(tar, member, target / file.name, progress)
            del wanted[str(PurePosixPath(member.name))]
            if not wanted:
                return
    raise SourceError(f"the archive does not hold {', '.join(wanted)}")


def extract_tree(
    archive: Path, folder: str, target: Path, *, most_bytes: int, most_files: int, progress: OnProgress
) -> None:
    """Write everything below `folder` in a tar archive into `target`.

    Raises:
        SourceError: on a path that leaves the folder, a link or device, or more bytes or files than allowed.
    """
    with _opened(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts or "\\" in member.name or ":" in member.name:
                raise SourceError(f"the archive holds the unsafe path {member.name!r}")
            if member.isdir():
                continue
            most_bytes, most_files = most_bytes - member.size, most_files - 1
            if most_bytes < 0 or most_files < 0:
                raise SourceError("the archive holds more than expected")
            if path.parts[:1] == (folder,) and len(path.parts) > 1:
                _write(tar, member, target.joinpath(*path.parts[1:]), progress)


@contextmanager
def _opened(archive: Path | IO[bytes]) -> Iterator[tarfile.TarFile]:
    try:
        if isinstance(archive, Path):
            with tarfile.open(archive, "r:*") as tar:
                yield tar
        else:
            with tarfile.open(fileobj=archive, mode="r|*") as tar:
                yield tar
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError, ValueError) as error:
        raise SourceError(f"the archive is damaged or cannot be unpacked: {error}") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path, progress: OnProgress) -> None:
    if not member.isreg():
        raise SourceError(f"{member.name}: a link or device in the archive, expected a plain file")
    source = tar.extractfile(member)
    if source is None:
        raise SourceError(f"{member.name}: cannot be read from the archive")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    done = 0
    with source, partial.open("wb") as stream:
        while chunk := source.read(CHUNK):
            stream.write(chunk)
            done += len(chunk)
            progress(f"unpacking {path.name}", done, member.size)
    if done != member.size:
        raise SourceError(f"{member.name}: ends after {done} of {member.size} bytes")
    os.replace(partial, path)
