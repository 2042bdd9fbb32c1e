"""Downloads that resume, verify their checksum, and never exceed their expected size."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pooch

from orthocl.streams.datasets.schema import OnProgress, SourceError

if TYPE_CHECKING:
    import requests  # imported here: it takes a tenth of a second, and most runs download nothing

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
ATTEMPTS = 3
CHUNK = 1 << 14  # a cut connection loses up to this much


@dataclass
class Resuming:
    """A downloader for pooch that keeps what it received in `partial` and resumes from there the next time."""

    partial: Path
    limit: int
    progress: OnProgress
    connect_seconds: float = CONNECT_SECONDS
    read_seconds: float = READ_SECONDS

    def __call__(self, url: str, output_file: str, pooch_instance: object) -> None:
        """Download `url` to `output_file`."""
        self._receive(url)
        os.replace(self.partial, output_file)

    def _receive(self, url: str) -> None:
        import requests

        have = self.partial.stat().st_size if self.partial.exists() else 0
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        timeout = (self.connect_seconds, self.read_seconds)
        with requests.get(url, headers=headers, stream=True, timeout=timeout) as response:
            if have and response.status_code == requests.codes.requested_range_not_satisfiable:
                self.partial.unlink()
                raise SourceError(f"{url}: cannot resume from byte {have}; starting over")
            response.raise_for_status()
            # A server that ignores Range, or answers with another one, sends the wrong bytes: start over.
            resumed = response.status_code == requests.codes.partial_content
            if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                self.partial.unlink(missing_ok=True)
                raise SourceError(f"{url}: the server sent a different range than requested; starting over")
            self._store(response, have if resumed else 0)

    def _store(self, response: requests.Response, have: int) -> None:
        announced = response.headers.get("Content-Length", "")
        total = have + int(announced) if announced.isascii() and announced.isdigit() else None
        if total is not None and total > self.limit:
            raise SourceError(f"{response.url}: {total} bytes, more than the expected {self.limit}")
        what = self.partial.name.removesuffix(".partial")
        with self.partial.open("ab" if have else "wb") as stream:
            for chunk in response.iter_content(CHUNK):
                have += len(chunk)
                if have > self.limit:
                    break
                stream.write(chunk)
                self.progress(what, have, total)
        if have > self.limit:
            self.partial.unlink()
            raise SourceError(f"{response.url}: more than the expected {self.limit} bytes")
        if total is not None and have < total:
            raise SourceError(f"{response.url}: the connection ended after {have} of {total} bytes")


def download(
    url: str,
    target: Path,
    *,
    checksum: str,
    limit: int,
    progress: OnProgress,
    connect_seconds: float = CONNECT_SECONDS,
    read_seconds: float = READ_SECONDS,
) -> None:
    """Download a file with a known checksum, atomically; what arrived before a failure is kept and continued.

    Args:
        url: the source.
        target: the destination; nothing appears there until it is complete and verified.
        checksum: "sha256:..." or "md5:...".
        limit: the most bytes it may have.
        progress: called as it proceeds.
        connect_seconds: longest wait for a connection.
        read_seconds: longest silence of the server.

    Raises:
        SourceError: when the source cannot be reached, or sends the wrong content.
    """
    import requests

    partial = target.with_name(f"{target.name}.partial")
    downloader = Resuming(partial, limit, progress, connect_seconds, read_seconds)
    pooch.get_logger().setLevel("WARNING")  # the caller shows progress in its own way
    for attempt in range(1, ATTEMPTS + 1):
        before = partial.stat().st_size if partial.exists() else 0
        try:
            pooch.retrieve(
                url, known_hash=checksum, fname=target.name, path=target.parent, downloader=downloader
            )
            return
        except (SourceError, requests.RequestException, OSError, ValueError) as error:
            after = partial.stat().st_size if partial.exists() else 0
            # Retrying only helps if the connection was cut, or the download made progress or starts over.
            cut = isinstance(error, requests.exceptions.ChunkedEncodingError)
            if attempt == ATTEMPTS or (after == before and not cut):
                raise SourceError(_reason(url, checksum, error)) from error


def _reason(url: str, checksum: str, error: Exception) -> str:
    import requests

    if isinstance(error, SourceError):
        return str(error)
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{url}: the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"{url}: the connection was cut, {ATTEMPTS} times; what arrived is kept for the next try"
    if isinstance(error, requests.Timeout):
        return f"{url}: no answer in time"
    if isinstance(error, requests.ConnectionError):
        return f"{url}: cannot be reached"
    if isinstance(error, ValueError) and not isinstance(error, requests.RequestException):
        return f"{url}: the content does not have the checksum {checksum}"
    return f"{url}: {type(error).__name__}: {error}"
