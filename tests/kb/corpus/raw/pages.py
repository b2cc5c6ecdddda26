"""A small web server on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Page:
    """What is answered under a path."""

    content: bytes = b""
    type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Site:
    """An address, and the requests that arrived there, each with its Host."""

    address: str
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def site(pages: Mapping[str, Page]) -> Iterator[Site]:
    """Serves these pages by their paths while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            here.asked.append((self.path, self.headers["host"]))
            page = pages.get(self.path, Page(status=404))
            self.send_response(page.status)
            for name, value in page.headers.items():
                self.send_header(name, value)
            self.send_header("content-type", page.type)
            self.end_headers()
            self.wfile.write(page.content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        here = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield here
        finally:
            server.shutdown()
            thread.join()
