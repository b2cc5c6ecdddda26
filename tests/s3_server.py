"""A stand-in for S3 in a process of its own, on loopback, with one bucket: moto's server."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from colmlm.kb import interpreter

BUCKET = "shared"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "hunter2",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Runs the server, and gives the environment by which the libraries of object storage find it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = interpreter.command("-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        address = f"http://127.0.0.1:{port}"
        try:
            _make_bucket(address, process)
            yield {**CREDENTIALS, "AWS_ENDPOINT_URL": address}
        finally:
            process.kill()


def _make_bucket(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None and time.monotonic() < until, "no moto server"
        with suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(urllib.request.Request(f"{address}/{BUCKET}", method="PUT")).close()
            return
        time.sleep(0.1)
