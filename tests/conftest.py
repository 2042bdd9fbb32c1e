"""What tests of several folders share: complete data, a web server with every bad habit, a user's own parts."""

from __future__ import annotations

import http.server
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
import torch

from orthocl.errors import DataError
from orthocl.lab.executors import BACKENDS
from orthocl.lab.reporting.trackers import TRACKERS
from orthocl.methods import METHODS
from orthocl.metrics.named import METRICS
from orthocl.nets.registry import NETS
from orthocl.sources import load_file
from orthocl.streams import datasets
from orthocl.streams.datasets.catalogue import ENTRIES
from orthocl.streams.datasets.locate import find
from orthocl.streams.registry import STREAMS
from orthocl.training.losses import LOSSES

REPOSITORY = Path(__file__).parents[1]
# Data that tests share between runs; every user has a folder, because another user's cannot be written.
CACHE = Path(tempfile.gettempdir()) / f"orthocl-test-{os.getuid() if hasattr(os, 'getuid') else 0}"


def pytest_configure(config: pytest.Config) -> None:
    """The same surroundings everywhere: under nohup, from cron, without a home or a terminal."""
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # as in the background of a script; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:  # closed: a file or a pipe would get its number
            os.open(os.devnull, mode)
    home = os.environ.get("HOME", "")
    if not (os.path.isdir(home) and os.access(home, os.W_OK)):
        os.environ["HOME"] = tempfile.mkdtemp(prefix="orthocl-test-home-")
    os.environ.setdefault("MPLCONFIGDIR", str(CACHE / "matplotlib"))
    for name in ("ORTHOCL_STORE", "ORTHOCL_SCRATCH", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """The same weights and samples in every order of the tests, and in any part of them."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _forget_added_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test adds by name (a page of the documentation, say) is not there for the next."""
    for parts in (BACKENDS, datasets.DATASETS, LOSSES, METHODS, METRICS, NETS, STREAMS, TRACKERS):
        monkeypatch.setattr(parts, "_added", {})


def _given_roots() -> list[Path]:
    given = os.environ.get("ORTHOCL_DATA")
    roots = [Path(given)] if given else []
    return [root for root in [*roots, REPOSITORY.parent / "shared" / "data"] if root.is_dir()]


def _cached(name: str, fill: Callable[[Path], object]) -> Path:
    """A folder in the system's temporary folder, filled once and put into place at once (workers may race)."""
    target = CACHE / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            fill(work)
            os.rename(work, target)
        except OSError:
            if not target.exists():
                raise
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _complete(name: str) -> Path:
    """A data root that holds this data set; small ones are fetched if a source can be reached; skips otherwise."""
    for root in [*_given_roots(), *datasets.data_roots()]:
        try:
            find(ENTRIES[name], root)
            return root
        except DataError:
            continue
    archives = [
        file
        for root in _given_roots()
        for file in root.glob(f"{ENTRIES[name].editions[0].archive or name}.t*")
    ]

    cached = CACHE / name
    size = sum(file.size for file in ENTRIES[name].editions[0].files)
    if not archives and not cached.exists() and size > 100_000_000:
        pytest.skip(f"complete {name} is not here: set ORTHOCL_DATA or run `orthocl data fetch {name}` first")

    def fill(work: Path) -> None:
        for archive in archives:
            (work / archive.name).symlink_to(archive)
        datasets.fetch(name, work)

    try:
        return _cached(name, fill)
    except DataError as error:
        pytest.skip(f"complete {name} is not here (set ORTHOCL_DATA): {str(error).splitlines()[0]}")


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    return _complete("mnist")


@pytest.fixture(scope="session")
def fashion_root() -> Path:
    return _complete("fashion-mnist")


@pytest.fixture(scope="session")
def cifar10_root() -> Path:
    return _complete("cifar10")


@pytest.fixture(scope="session")
def cifar100_root() -> Path:
    return _complete("cifar100")


@pytest.fixture(scope="session")
def birds_root() -> Path:
    """A folder with pool5 features of CUB-200, the convolutions of AlexNet and a sample of the images."""
    for root in _given_roots():
        if (root / "cub200-alexnet-pool5.npz").is_file() and (root / "cub-sample").is_dir():
            return root
    pytest.skip("no CUB-200 features and sample images here (set ORTHOCL_DATA)")


@dataclass
class Web:
    """A server on 127.0.0.1. Paths are /habit/name; the content of a name is `content[name]`."""

    url: str
    content: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    truncated: int = 0


class _Handler(http.server.BaseHTTPRequestHandler):
    web: Web

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        _, habit, name = self.path.split("/", 2)
        asked = self.headers.get("Range")
        self.web.requests.append((self.path, asked))
        body = self.web.content.get(name, b"")
        first = int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
        if habit == "missing":
            return self.send_error(404)
        if habit == "redirect":
            self.send_response(302)
            self.send_header("Location", f"{self.web.url}/ok/{name}")
            return self.end_headers()
        if habit == "silent":
            threading.Event().wait(1.5)
            return None
        if habit == "endless":
            return self._endless()
        if habit == "wrong":
            body = bytes(len(body))
        if habit in ("no-range",):
            first = 0
        if first and first >= len(body):
            return self.send_error(416)
        self._send(habit, body, first, ranged=bool(first))
        return None

    def _send(self, habit: str, body: bytes, first: int, ranged: bool) -> None:
        piece = body[first:]
        self.send_response(206 if ranged else 200)
        if habit != "no-length":
            self.send_header("Content-Length", str(len(piece)))
        if ranged:
            start = first + 1 if habit == "other-range" else first
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        if habit in ("truncate", "other-range") and self.web.truncated < 1:
            self.web.truncated += 1
            piece = piece[: len(piece) // 2]
        if habit == "stuck":
            piece = b"" if first else piece[:100_000]
        self.wfile.write(piece)

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(10_000):
                self.wfile.write(bytes(1 << 16))
        except OSError:
            pass


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = type("Handler", (_Handler,), {})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.web = web = Web(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield web
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="session")
def gallery() -> ModuleType:
    """The parts that a user brings along: `write_parts`, `remove_parts`, `EXPERIMENT`."""
    return load_file(Path(__file__).parent / "gallery" / "parts.py")
