"""A server for one reader on this machine: the report page, with news while runs go on. It can only be read.

It listens on the loopback address alone, and answers neither requests under another host's name (as a page of a
foreign site would send after rebinding its name to this address) nor requests that come from another origin.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock
from typing import Any

from orthocl.errors import OrthoclError, StoreError
from orthocl.lab.reporting.page_data import PageInput, page_data, to_script
from orthocl.lab.reporting.report import render_page

ADDRESS = "127.0.0.1"
NEWS = "/data.json"
POLICY = "frame-ancestors 'none'"
MOST_CONNECTIONS = 32
"""Answered at a time; further ones are closed at once."""
SECONDS = 10.0
"""How long one waits for a browser that says nothing."""


class ViewServer(ThreadingHTTPServer):
    """Serves what `look` finds, each time it is asked.

    Args:
        look: what the page shows now.
        port: 0 for any free one; `address` says which it became.
    """

    daemon_threads = True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, look: Callable[[], PageInput], port: int = 0):
        self.look = look
        self.free = BoundedSemaphore(MOST_CONNECTIONS)
        self.one_at_a_time = Lock()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"cannot listen on port {port} of {ADDRESS}: {reason}. Leave --port out."
            ) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or hang up where too many others are being answered."""
        if self.free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, then make room for others."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves before it has its answer is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names under which this server may be addressed."""
        return tuple(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    server_version = "orthocl"
    timeout = SECONDS
    sys_version = ""

    def do_GET(self) -> None:
        """The page or its data."""
        if self._refused():
            return
        path = self.path.partition("?")[0]
        if path not in ("/", NEWS):
            self._answer(404, b"not found\n", "text/plain")
            return
        try:
            with self.server.one_at_a_time:
                given = self.server.look()
                text = render_page(given, live=NEWS) if path == "/" else to_script(page_data(given).values)
        except (OrthoclError, OSError) as error:
            self._answer(500, f"{error}\n".encode(), "text/plain")
            return
        kind = "text/html" if path == "/" else "application/json"
        self._answer(200, text.encode(), kind)

    do_HEAD = do_GET

    def _refuse_method(self) -> None:
        self._answer(405, b"this page can only be read\n", "text/plain", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse_method

    def _refused(self) -> bool:
        """Whether a request comes by another name or from another site; it is answered then."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "none")
        foreign = origin is not None and origin not in [f"http://{name}" for name in self.server.hosts]
        asked_elsewhere = site in ("cross-site", "same-site") and self.path.startswith(NEWS)
        if host in self.server.hosts and not foreign and not asked_elsewhere:
            return False
        self._answer(403, b"only for pages of this address\n", "text/plain")
        return True

    def _answer(self, status: int, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        if status == 200 and self.headers.get("If-None-Match") == tag:
            status, body = 304, b""
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "ETag": tag,
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Content-Security-Policy": POLICY,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
        }
        for name, value in (headers | (more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Silence: the terminal belongs to the experiment."""
