"""The API behind a real server, for tests that need a real connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from litestar import Litestar


@contextmanager
def served(app: Litestar, listener: socket.socket | None = None) -> Iterator[str]:
    """Serves the app on a real port, or on `listener`, and gives its address."""
    # It listens: requests sent before the server has started wait, instead of being refused.
    with listener or socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:  # a thread that runs on would keep a failed run from ending
            server.should_exit = True
            thread.join()
