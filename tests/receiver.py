"""A receiver of webhooks: a real server on 127.0.0.1 that keeps what it is sent and answers as it is told."""

from __future__ import annotations

import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from standardwebhooks.webhooks import Webhook

LOOPBACK = ("127.0.0.0/8",)


@dataclass(frozen=True)
class Received:
    """A request: its headers, by names in small letters, its body, and what was answered."""

    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def name(self) -> str:
        return self.headers["webhook-id"]

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found

    def verified(self, secret: str) -> dict[str, Any]:
        """Gives the body after the library for Standard Webhooks has verified it; raises where it is not signed so."""
        found: dict[str, Any] = Webhook(secret).verify(self.body, self.headers)
        return found


@dataclass
class Receiver:
    """What came, in order. `answer` gives the status, with headers, of the answer to a request."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answer: Callable[[Received], tuple[int, dict[str, str]]] = lambda _: (204, {})
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def names(self) -> list[str]:
        """Gives the ids of the messages that came."""
        return [one.name for one in self.received]

    def seqs(self) -> list[int]:
        """Gives the changes that came, taken or not."""
        return [one.said["data"]["seq"] for one in self.received]

    def taken(self) -> list[int]:
        """Gives the changes that were taken."""
        return [one.said["data"]["seq"] for one in self.received if one.status < 300]

    def await_taken(self, number: int, seconds: float = 60.0) -> None:
        """Waits until so many different changes were taken."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(set(self.taken())) >= number, seconds), (
                "it never came to that"
            )

    def await_number(self, number: int, seconds: float = 60.0) -> None:
        """Waits until so many requests came."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.received) >= number, seconds), (
                "it never came to that"
            )


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of who was killed, or went away without a certificate that it believes."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


@contextmanager
def receiver(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Receives in the block, at an address of its own; with `tls` over TLS, under the name localhost."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept open

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more = found.answer(Received(headers, body, 0))
            with found.arrived:
                found.received.append(Received(headers, body, status))
                found.arrived.notify_all()
            self.send_response(status)
            for name, value in {"content-length": "0", **more}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        place = "http://127.0.0.1" if tls is None else "https://localhost"
        found.url = f"{place}:{server.server_address[1]}/hook"
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        serving.start()
        try:
            yield found
        finally:
            server.shutdown()
            serving.join()
