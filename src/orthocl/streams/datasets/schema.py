"""What the data sets are: their files and checksums, where they may be, where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orthocl.errors import DataError
from orthocl.streams.images import ImageData

OnProgress = Callable[[str, int, int | None], None]
"""Called with what is being done, bytes (or items) done, and their total if known."""


EMBEDDED = "the embedded streams (permuted-mnist-mini, rotated-mnist-mini, split-mnist-mini) need no data"


def no_progress(what: str, done: int, total: int | None) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class DataFile:
    """A file of a data set.

    Args:
        name: its name, uncompressed.
        size: its size in bytes, uncompressed.
        checksum: "sha256:..." or "md5:..." of the uncompressed content; empty if none is published.
    """

    name: str
    size: int
    checksum: str

    def matches(self, content: bytes | memoryview) -> bool:
        """Whether this content is the file's. Without a published checksum, only the size is compared."""
        if not self.checksum:
            return len(content) == self.size
        algorithm, _, digest = self.checksum.partition(":")
        return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() == digest


@dataclass(frozen=True)
class Edition:
    """One form in which a data set is published.

    Args:
        folders: where it may be below a data root; the first is where a fetch puts it.
        files: the files it needs.
        read: makes the data set from the verified contents, by file name.
        gzipped: whether each file may also be there as .gz.
        archive: name, without .tar.gz, of the archive in which it is published, if any.
    """

    folders: tuple[str, ...]
    files: tuple[DataFile, ...]
    read: Callable[[Mapping[str, bytes]], ImageData] | None = None
    gzipped: bool = False
    archive: str = ""

    @property
    def verifiable(self) -> bool:
        """Whether all its files have a published checksum."""
        return all(file.checksum for file in self.files)


class Source(Protocol):
    """A place that delivers a data set."""

    @property
    def label(self) -> str:
        """What messages call it."""

    def deliver(self, edition: Edition, staging: Path, progress: OnProgress) -> None:
        """Put the files of `edition`, uncompressed, into the folder `staging`.

        Raises:
            SourceError: when this source cannot; the next one is tried.
        """


class SourceError(DataError):
    """A source that cannot deliver: not reachable, not installed, or with the wrong content."""


@dataclass(frozen=True)
class Entry:
    """A data set of the catalogue.

    Args:
        name: what commands call it.
        title: its full name.
        licence: its terms, as its authors state them.
        citation: whom to cite.
        homepage: where it is described.
        editions: its forms, best first; the data set is there if one is complete.
        sources: (edition number, source) in the order in which they are tried.
        instead: what to use when it is unavailable.
    """

    name: str
    title: str
    licence: str
    citation: str
    homepage: str
    editions: tuple[Edition, ...]
    sources: tuple[tuple[int, Source], ...] = ()
    instead: str = EMBEDDED
