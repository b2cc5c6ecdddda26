"""Runs a worker as a child process of the server, so that a crash of one does not end the other.

The worker's standard input ends when the server does, even by a crash, and then it stops. If it ends by itself, it is
started again, after pauses that grow until it has run for a minute. What it writes to stderr is passed on,
and its last lines are kept, so that the server can say why its worker ended.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from colmlm.api.watch.logs import blot_secret
from colmlm.kb import interpreter
from colmlm.kb.jobs import tickets
from colmlm.kb.jobs.tickets import STEADY_SECONDS, WorkerState
from colmlm.kb.store import waits

if TYPE_CHECKING:
    from colmlm.kb.store.settings import Settings

LONGEST_PAUSE = 60.0
STOP_SECONDS = 30.0  # longer than a worker lets running jobs finish
READ_SECONDS = 2.0  # how long to wait for the worker's last lines on stderr once it has ended
KEPT_LINES, KEPT_CHARACTERS = 10, 500  # limits of the worker's last lines that are kept

_log = logging.getLogger(__name__)


class WorkerProcess:
    """A worker process on the knowledge base of these settings, which ends with the `with` block."""

    def __init__(
        self,
        settings: Settings,
        checkpoint: Path | None = None,
        log_format: str = "auto",
        steady_seconds: float = STEADY_SECONDS,
    ) -> None:
        self.home, self.steady_seconds = settings.home, steady_seconds
        self.environment = {**os.environ, **_environment(settings, checkpoint, log_format)}
        self._stopping = threading.Event()
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self._watching = threading.Thread(target=self._watch, name="worker process", daemon=True)
        self._process = self._start()
        self._state = WorkerState(running=True, since=datetime.now(UTC))

    def state(self) -> WorkerState:
        """Give the worker's state now."""
        return self._state

    def __enter__(self) -> Self:
        tickets.clear_attendance(self.home)
        self._watching.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tell the worker to hand its jobs back, and wait until it has ended."""
        self._stopping.set()
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # its jobs are taken up again by the next worker
        self._watching.join()
        tickets.clear_attendance(self.home)

    def _start(self) -> subprocess.Popen[bytes]:
        # In a session of its own, so that Ctrl-C reaches only the server, which then stops the worker.
        process = subprocess.Popen(
            interpreter.command("-m", "colmlm.cli", "worker", "--until-eof"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.environment,
            start_new_session=True,
        )
        self._said.clear()
        self._reading = threading.Thread(
            target=self._pass_on, args=(process,), name="worker's log", daemon=True
        )
        self._reading.start()
        return process

    def _pass_on(self, process: subprocess.Popen[bytes]) -> None:
        """Write the worker's stderr to that of the server, and keep its last lines."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace")
                sys.stderr.write(text)
                sys.stderr.flush()
                if text.strip():
                    self._said.append(blot_secret(text.strip())[:KEPT_CHARACTERS])

    def _watch(self) -> None:
        while not self._await_end():
            _log.warning(
                "the worker ended with code %d; it is started again in %g s",
                self._state.exit_code,
                self._pause(),
            )
            while not self._restart():
                if self._stopping.is_set():
                    return

    def _pause(self) -> float:
        return min(2.0 ** min(self._state.failures, 6), LONGEST_PAUSE)

    def _restart(self) -> bool:
        """Start the worker after a pause and give True; give False if it is to stop or could not be started."""
        if self._stopping.wait(self._pause()):
            return False
        try:
            self._process = self._start()
        except Exception as error:  # noqa: BLE001 - else there would be no worker for as long as the server runs
            waits.log_outage(_log, "the worker cannot be started, will try again", error)
            failures = self._state.failures + 1
            self._state = replace(self._state, failures=failures, last_error=(waits.cause_of(error),))
            return False
        self._state = replace(self._state, running=True, since=datetime.now(UTC))
        return True

    def _await_end(self) -> bool:
        """Wait until the worker has ended, and store its state. Give True if it was told to end."""
        try:
            code = self._process.wait(self.steady_seconds)
        except subprocess.TimeoutExpired:
            self._state = replace(self._state, failures=0)
            tickets.clear_attendance(self.home)
            code = self._process.wait()
        if self._stopping.is_set():
            return True
        self._reading.join(READ_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._state = replace(
            self._state,
            running=False,
            since=datetime.now(UTC),
            failures=self._state.failures + 1,
            restarts=self._state.restarts + 1,
            exit_code=code,
            last_error=tuple(self._said),
        )
        with suppress(OSError):  # for example a full disk; the server itself still reports the state
            tickets.note_attendance(self.home, self._state)
        return False


def _environment(settings: Settings, checkpoint: Path | None, log_format: str) -> dict[str, str]:
    """Give a worker's variables: settings that options may override, and `COLMLM_LOG_FORMAT` for a terminal."""
    named = {
        "COLMLM_HOME": str(settings.home),
        "COLMLM_DATABASE_URL": settings.database_url,
        "COLMLM_CHECKPOINT": checkpoint and str(checkpoint.absolute()),
        "COLMLM_LOG_FORMAT": "text" if log_format == "auto" and sys.stderr.isatty() else None,
    }
    return {name: value for name, value in named.items() if value}
