"""Controls a reading process: starts it when it is needed, sends it one file at a time, and kills it at a limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import msgspec

from colmlm.kb import interpreter
from colmlm.kb.corpus.raw.limits import Breach, Limits
from colmlm.kb.corpus.raw.wire import LENGTH, WIDEST, Ask, Told, send
from colmlm.kb.errors import ReaderUnavailable

TICK_SECONDS = 0.25
# How long to wait for a message, in multiples of a document's processor time, since a process may wait for the disk.
_PATIENCE = 3
_BLOCK = 1 << 20


class FileReader:
    """Reads files in a process of its own, within its `with` block.

    It calls `on_wait` a few times a second while it waits.

    An error that `on_wait` raises is passed on, and the process is killed at the end of the block, whatever it is
    doing.
    """

    def __init__(self, limits: Limits, on_wait: Callable[[], None]) -> None:
        self.limits = limits
        self.on_wait = on_wait
        self._process: subprocess.Popen[bytes] | None = None
        self._arrived = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def read(self, ask: Ask) -> Iterator[Told]:
        """Yields the reports of the process on this file; the last one ends the file or names the limit exceeded."""
        last = Told(ask.after)
        try:
            process = self._running()
            assert process.stdin is not None
            send(process.stdin, msgspec.json.encode(ask))
            while not last.end and last.breach is None:
                last = self._next()
                yield last
        except _Breached as breached:
            yield Told(last.line, last.reached, breach=breached.breach, how=breached.how)
        except BrokenPipeError:
            yield Told(last.line, last.reached, breach="broken", how="it was gone")
        if not last.end:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        """Gives the process, once it reports that it runs. Raises `ReaderUnavailable`."""
        if self._process is None:
            try:
                self._process = _started(self.limits)
                self._next()
            except (OSError, _Breached) as error:
                raise ReaderUnavailable(str(error)) from error
        return self._process

    def _next(self) -> Told:
        """Gives the next message. Raises `_Breached` where none comes."""
        assert self._process is not None and self._process.stdout is not None
        stream = self._process.stdout.fileno()
        ready = select.poll()
        ready.register(stream, select.POLLIN)
        until = time.monotonic() + _PATIENCE * self.limits.seconds
        while (message := self._whole()) is None:
            if not ready.poll(TICK_SECONDS * 1000):
                self.on_wait()
                if time.monotonic() > until:
                    raise _Breached("time")
            elif block := os.read(stream, _BLOCK):
                self._arrived += block
            else:
                raise self._ended()
        return msgspec.json.decode(message, type=Told)

    def _whole(self) -> bytes | None:
        """Gives the next message that has arrived completely; None where there is none."""
        if len(self._arrived) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._arrived)
        if length > WIDEST * self.limits.characters:
            raise _Breached("size")
        if len(self._arrived) < (end := LENGTH.size + length):
            return None
        message = bytes(self._arrived[LENGTH.size : end])
        del self._arrived[:end]
        return message

    def _ended(self) -> _Breached:
        assert self._process is not None
        code = self._process.wait()
        if code == -signal.SIGXCPU:
            return _Breached("time")
        return _Breached("broken", signal.Signals(-code).name if code < 0 else f"exit code {code}")

    def _end(self) -> None:
        if (process := self._process) is None:
            return
        self._process = None
        self._arrived.clear()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                continue  # the process was gone before it read the last request


class _Breached(Exception):
    def __init__(self, breach: Breach, how: str = "") -> None:
        self.breach, self.how = breach, how
        super().__init__(how or breach)


def _started(limits: Limits) -> subprocess.Popen[bytes]:
    """Starts a process with its own environment, so without secrets, and in a session that Ctrl-C does not reach."""
    asked = (limits.memory_mb, limits.seconds, limits.characters)
    return subprocess.Popen(
        interpreter.command("-m", "colmlm.kb.corpus.raw.child", *asked),
        env={
            "PYTHONPATH": str(interpreter.ROOT),
            "ARROW_DEFAULT_MEMORY_POOL": "system",
            "OMP_NUM_THREADS": "1",
        },
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
