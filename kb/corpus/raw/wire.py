"""The messages between a reading process and its parent: JSON after its length."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, Annotated, Literal

import msgspec
from msgspec import Meta

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.corpus.raw.blocks import Fields
from colmlm.kb.corpus.raw.files import FolderOrigin

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


def send_message(stream: IO[bytes], message: bytes) -> None:
    stream.write(LENGTH.pack(len(message)))
    stream.write(message)
    stream.flush()


def receive_message(stream: IO[bytes]) -> bytes | None:
    """Give the next message; None where the other end has closed."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


# The limits for reading one document.

# A reader with less memory than that does not even start.
Memory = Annotated[int, Meta(ge=128, le=1_000_000, description="a number from 128 to 1000000")]
Time = Annotated[int, Meta(ge=1, le=86_400, description="a number from 1 to 86400")]
Characters = Annotated[int, Meta(ge=1000, le=100_000_000, description="a number from 1000 to 100000000")]

# Why reading a document ended: the limit that it exceeded, or "broken" where its reader failed.
Breach = Literal["memory", "time", "size", "broken"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for one document: megabytes of memory, seconds of processor time, and characters of its text."""

    memory_mb: Memory = 1024
    seconds: Time = 60
    characters: Characters = 20_000_000

    def sentence(self, breach: Breach, how: str = "") -> str:
        """Give the reason of a refusal; `how` says how the reader ended, as far as that is known."""
        match breach:
            case "memory":
                return f"reading it took more than {self.memory_mb} MB of memory (COLMLM_DOCUMENT_MEMORY_MB)"
            case "time":
                return f"reading it took more than {self.seconds} seconds (COLMLM_DOCUMENT_SECONDS)"
            case "size":
                return f"it gave more than {self.characters} characters (COLMLM_DOCUMENT_CHARACTERS)"
            case "broken":
                return f"its reader broke off ({how}): it is damaged, or takes more than {self.memory_mb} MB of memory"
