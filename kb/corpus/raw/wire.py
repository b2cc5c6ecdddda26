"""The messages between a reading process and its parent: JSON after its length."""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.corpus.raw.fields import Fields
from colmlm.kb.corpus.raw.files import FolderOrigin
from colmlm.kb.corpus.raw.limits import Breach

LENGTH = struct.Struct(">Q")
WIDEST = 8  # bytes of a message for each character of a document: its escapes, and its facts


class Ask(msgspec.Struct):
    """A request to read a file past line `after`, of a kind of `KINDS` (`kb.corpus.raw.files`) or `read.FORMATS`."""

    kind: str
    path: str
    external_id: str = ""
    encoding: str | None = None
    fields: Fields = Fields()
    uri: str | None = None
    origin: FolderOrigin | None = None
    after: int = 0


class Told(msgspec.Struct, omit_defaults=True):
    """A report of a document, of its refusal, or of progress. `line` is the last line done, `reached` its end in bytes.

    `end` marks the end of the file. After a `breach` no report follows; `how` says how the process ended, if known.
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
    """Gives the next message; None where the other end has closed."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None
