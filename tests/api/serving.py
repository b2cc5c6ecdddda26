"""The API behind a real server, for tests that need a real connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from colmlm.api.middleware.connections import ArrivalLimits, Report, limited_protocol


@contextmanager
def served(
    app: ASGIApp,
    listener: socket.socket | None = None,
    limits: ArrivalLimits | None = None,
    report: Report = lambda *_: None,
) -> Iterator[str]:
    """Serve the app on a real port, or on `listener`, with the program's own protocol, and give its address."""
    # It listens: requests sent before the server has started wait, instead of being refused.
    with listener or socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app,
            log_level="error",
            lifespan="off",
            ws="none",
            http=limited_protocol(limits, report),
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:  # a thread that runs on would keep a failed run from ending
            server.should_exit = True
            thread.join()
