"""Reads users' files as documents, in a process of their own, so that no file can bring down the process that asks.

The database stores exactly the text that this gives.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec.structs import replace

from colmlm.kb import interpreter
from colmlm.kb.corpus.format import Parsed, Refusal
from colmlm.kb.corpus.raw.blocks import FieldNames
from colmlm.kb.corpus.raw.files import (
    LENGTH,
    WIDEST,
    RawFile,
    ReaderReport,
    ReadRequest,
    path_fault,
    printable,
    send_message,
)
from colmlm.kb.corpus.raw.read import BY_LINE, BY_ROW, FORMATS
from colmlm.kb.errors import refusals
from colmlm.kb.texts.characters import Breach, DocumentLimits

MOST_BREACHES = 10  # breaches of one file; each costs the time that a document may take, and a new process

OnBytes = Callable[[int], None]
OnParsed = Callable[[str, Parsed], None]


def read_raw(
    files: Sequence[RawFile],
    *,
    encoding: str | None = None,
    fields: FieldNames | None = None,
    limits: DocumentLimits | None = None,
    on_bytes: OnBytes | None = None,
    taken: Iterable[str] = (),
    on_parsed: OnParsed | None = None,
) -> Iterator[Parsed]:
    """Read the documents of these files, in order; a file that is not a document gives one refusal.

    `encoding` applies to files that do not declare theirs, and is by default UTF-8; `fields` to files of records. A
    second document with the same id, or one of those `taken`, is refused. `on_bytes` is called with the number of bytes
    read of all files, also while it waits; `on_parsed` with the id of the file and what is yielded of it.
    """
    seen = set(taken)
    asks = ((_ask(file, file.encoding or encoding, fields or FieldNames()), file.size) for file in files)
    for ask, told in _read(asks, limits or DocumentLimits(), on_bytes):
        parsed = _refuse_repeated_id(told, seen)
        if on_parsed is not None:
            on_parsed(ask.external_id, parsed)
        yield parsed


def _refuse_repeated_id(parsed: Parsed, seen: set[str]) -> Parsed:
    """Give the parsed document, or its refusal if its id is in `seen`; a new id is added to `seen`."""
    document = parsed.document
    if document is None:
        return parsed
    if document.external_id in seen:
        reason = "a second document with this id; name a folder above both, or add them to two corpora"
        return Parsed(None, (Refusal(document.external_id, 0, reason),))
    seen.add(document.external_id)
    return parsed


def _ask(file: RawFile, encoding: str | None, fields: FieldNames) -> ReadRequest:
    path = str(file.path.absolute())
    return ReadRequest(file.kind, path, file.external_id, encoding, fields, file.uri, file.origin)


def read_corpus(
    path: Path, format_: str, *, limits: DocumentLimits | None = None, on_bytes: OnBytes | None = None
) -> Iterator[Parsed]:
    """Read the documents and refusals of an annotated file, of a format of `kb.corpus.raw.read.FORMATS`."""
    if (fault := path_fault(path)) is not None:
        return iter([Parsed(None, (Refusal(printable(path.name), 0, fault),))])
    size = path.stat().st_size
    asks = iter([(ReadRequest(format_, str(path.absolute())), size)])
    return (parsed for _, parsed in _read(asks, limits or DocumentLimits(), on_bytes))


def _read(
    asks: Iterator[tuple[ReadRequest, int]], limits: DocumentLimits, on_bytes: OnBytes | None
) -> Iterator[tuple[ReadRequest, Parsed]]:
    done = reached = 0

    def further() -> None:
        if on_bytes is not None:
            on_bytes(done + reached)

    with FileReader(limits, further) as reader:
        for ask, size in asks:
            for told in _file(reader, ask):
                reached = min(max(reached, told.reached), size)
                further()
                if told.parsed is not None:
                    yield ask, told.parsed
            done, reached = done + size, 0
            further()


def _file(reader: FileReader, ask: ReadRequest) -> Iterator[ReaderReport]:
    """Yield the reports of a file.

    A document beyond the limits is refused. The next documents follow if they are lines, or pages of a wiki.

    No lines follow a breach of time, since no single line takes that long, but very many blank ones do.
    """
    for _ in range(MOST_BREACHES):
        for told in reader.read(ask):
            if told.breach is None:
                yield told
        if told.end:
            return
        yield _refusal_after_breach(reader.limits, ask, told)
        if not _goes_on(ask, told):
            return
        ask = replace(ask, after=told.line + 1)
    reason = f"given up after {MOST_BREACHES} documents beyond the limits; what comes after {ask.after} was not read"
    yield ReaderReport(ask.after, told.reached, Parsed(None, (Refusal(_name(ask), 0, reason, "broken"),)))


def _refusal_after_breach(limits: DocumentLimits, ask: ReadRequest, told: ReaderReport) -> ReaderReport:
    """Give the refusal of the document that was being read when the process ended or had to be ended."""
    assert told.breach is not None
    where, reason = ask.external_id, limits.sentence(told.breach, told.how)
    if ask.kind in (*BY_LINE, *BY_ROW, *FORMATS):
        where = f"{_name(ask)}:{told.line + 1}"
        reason += "" if _goes_on(ask, told) else "; the rest of the file was not read"
    return ReaderReport(told.line + 1, told.reached, Parsed(None, (Refusal(where, 0, reason, told.breach),)))


def _goes_on(ask: ReadRequest, told: ReaderReport) -> bool:
    return ask.kind == "wiki" or (ask.kind in BY_LINE and told.breach != "time")


def _name(ask: ReadRequest) -> str:
    return Path(ask.path).name


# Controls a reading process: starts it when it is needed, sends it one file at a time, and kills it at a
# limit.

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

    def __init__(self, limits: DocumentLimits, on_wait: Callable[[], None]) -> None:
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

    def read(self, ask: ReadRequest) -> Iterator[ReaderReport]:
        """Yield the reports of the process on this file; the last one ends the file or names the limit exceeded."""
        last = ReaderReport(ask.after)
        try:
            process = self._running()
            assert process.stdin is not None
            send_message(process.stdin, msgspec.json.encode(ask))
            while not last.end and last.breach is None:
                last = self._next()
                yield last
        except _Breached as breached:
            yield ReaderReport(last.line, last.reached, breach=breached.breach, how=breached.how)
        except BrokenPipeError:
            yield ReaderReport(last.line, last.reached, breach="broken", how="it was gone")
        if not last.end:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        """Give the process, started if there is none, once it reports that it runs. Raises `ReaderUnavailable`."""
        if self._process is None:
            try:
                self._process = _start_process(self.limits)
                self._next()
            except (OSError, _Breached) as error:
                raise refusals.reader_unavailable(str(error)) from error
        return self._process

    def _next(self) -> ReaderReport:
        """Give the next report of the process. Raises `_Breached` if none comes in time, or the process ended."""
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
                raise self._breach_at_exit()
        return msgspec.json.decode(message, type=ReaderReport)

    def _whole(self) -> bytes | None:
        """Give the next message that has arrived completely; None if none has. Raises `_Breached` on a long one."""
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

    def _breach_at_exit(self) -> _Breached:
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


def _start_process(limits: DocumentLimits) -> subprocess.Popen[bytes]:
    """Start a process with its own environment, so without secrets, and in a session that Ctrl-C does not reach."""
    asked = (limits.memory_mb, limits.seconds, limits.characters)
    return subprocess.Popen(
        interpreter.command("-m", "colmlm.kb.corpus.raw.read", *asked),
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
