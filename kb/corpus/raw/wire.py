"""What passes between a process that wants files read and the one that reads them: JSON after its length."""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.corpus.raw.limits import Breach

LENGTH = struct.Struct(">Q")
WIDEST = 8  # bytes of a message for each character that a document may have: escapes, and what is said of its facts


class Ask(msgspec.Struct):
    """Read this file, of a kind of `KINDS` (`kb.corpus.raw.files`) or `FORMATS` (`read`), its lines after `after`."""

    kind: str
    path: str
    external_id: str = ""
    encoding: str | None = None
    after: int = 0


class Told(msgspec.Struct, omit_defaults=True):
    """A document or its refusal, or neither; `line` is the last that is done with, `reached` how far that is in bytes.

    `end` is the file's. After a `breach` nothing more comes; `how` says what is known of it.
    """

    line: int = 0
    reached: int = 0
    parsed: Parsed | None = None
    breach: Breach | None = None
    how: str = ""
    end: bool = False


def send(stream: IO[bytes], message: bytes) -> None:
    stream.write(LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """The next message; None where the other end has closed."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None
