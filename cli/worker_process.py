"""A worker beside the server: a child process, so that neither takes the other down.

It learns from the end of its standard input that the server is gone, however that went. If it ends by itself, it is
started again.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from types import TracebackType
from typing import Self

from kb import interpreter
from kb.settings import Settings

LONGEST_PAUSE = 60.0
STOP_SECONDS = 30.0  # more than a worker's grace

_log = logging.getLogger(__name__)


class WorkerProcess:
    """A worker on the knowledge base of these settings, while the block runs."""

    def __init__(self, settings: Settings) -> None:
        self.environment = {**os.environ, **_environment(settings)}
        self._stopping = threading.Event()
        self._process = self._start()
        self._watching = threading.Thread(target=self._watch, name="worker process", daemon=True)

    def __enter__(self) -> Self:
        self._watching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let it hand back what it does, and wait for its end."""
        self._stopping.set()
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # its jobs are taken up again by the next worker
        self._watching.join()

    def _start(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal is the server's to hear.
        return subprocess.Popen(
            interpreter.command("-m", "cli", "worker", "--until-eof"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=self.environment,
            start_new_session=True,
        )

    def _watch(self) -> None:
        failures = 0
        while True:
            code = self._process.wait()
            if self._stopping.is_set():
                return
            failures += 1
            pause = min(2.0**failures, LONGEST_PAUSE)
            _log.warning("the worker ended with code %d; it is started again in %g s", code, pause)
            if self._stopping.wait(pause):
                return
            self._process = self._start()


def _environment(settings: Settings) -> dict[str, str]:
    """What tells a child the settings that command-line options may have changed."""
    named = {
        "COLMLM_HOME": str(settings.home),
        "COLMLM_DATABASE_URL": settings.database_url,
        "COLMLM_CHECKPOINT": settings.checkpoint and str(settings.checkpoint.absolute()),
    }
    return {name: value for name, value in named.items() if value}
