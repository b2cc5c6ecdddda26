r"""Characters that do not show: finds them, and writes them out by number where a text has them.

Control characters steer a terminal, bidirectional ones change the order in which a text is read, and invisible ones
make two names look alike. The log accepts none; texts of corpora keep theirs, and whatever displays them writes them
out. It also opens files that hold texts, and knows the limits for reading one document.
"""

from __future__ import annotations

import bz2
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

JOINERS = "\u200c\u200d"  # Persian, Hindi and many emoji need these
LINES = "\t\n"

# Controls, the soft hyphen, bidirectional marks, line separators, zero widths, lone surrogates and tags: the characters
# that Unicode classes as control, format, surrogate or line separator, without the number signs, which do show.
_UNSEEN = (
    r"\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
# Letters and marks that do not show: fillers, the blank of Braille, variation selectors.
_EMPTY = r"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef"

_UNSEEN_ONE = re.compile(f"[{_UNSEEN}]")
_BLANKS = re.compile(rf"[\s{_UNSEEN}{_EMPTY}]*")


def find_invisible(text: str, allowed: str = "") -> str | None:
    """Find the first invisible character that is not `allowed`; None where there is none."""
    return next((found[0] for found in _UNSEEN_ONE.finditer(text) if found[0] not in allowed), None)


def is_blank(text: str) -> bool:
    """Say whether a text has no visible character."""
    return _BLANKS.fullmatch(text) is not None


def visible_text(text: str, kept: str = LINES + JOINERS) -> str:
    r"""Write out the characters of a text that do not show, as in \x1b or \u202e, except those `kept`."""
    return _UNSEEN_ONE.sub(lambda found: found[0] if found[0] in kept else escape_character(found[0]), text)


def escape_character(character: str) -> str:
    """Write a character as a Python escape such as \\u202e."""
    number = ord(character)
    return (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )


def json_visible(text: str) -> str:
    """Escape the invisible characters in the strings of a JSON text, which keeps its meaning."""
    return _UNSEEN_ONE.sub(lambda found: found[0] if found[0] == "\n" else _escape_in_json(found[0]), text)


def _escape_in_json(character: str) -> str:
    """Write a character as JSON does, in units of UTF-16."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# Reads lines of a file, plain or compressed, and holds no more of a line than a document may have.

MOST_BYTES = 100_000_000  # the most that one document may have

_PACKED: dict[str, tuple[str, Any]] = {".gz": ("gzip", gzip.open), ".bz2": ("bzip2", bz2.open)}


class DamagedFile(ValueError):
    """Compressed data cannot be unpacked any further."""


class Line(NamedTuple):
    """A line: its number from 1, its bytes (None where they are too many), and where it ends in the file on disk."""

    number: int
    content: bytes | None
    reached: int


def read_lines(path: Path, path_to_open: Path | None = None) -> Iterator[Line]:
    """Yield a file's lines that are not blank; `path_to_open` opens it, if not `path`. Raises `DamagedFile`."""
    with (path_to_open or path).open("rb") as file, unpack_file(file, path) as lines:
        number = 0
        while line := lines.readline(MOST_BYTES + 1):
            number += 1
            if len(line) > MOST_BYTES:
                _skip_line(lines, line)
                yield Line(number, None, file.tell())
            elif not line.isspace():
                yield Line(number, line, file.tell())


@contextmanager
def unpack_file(file: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Give an open file, unpacked where its name ends in .gz or .bz2. Raises `DamagedFile` in the block."""
    kind, opened = _PACKED.get(path.suffix.lower(), ("", nullcontext))
    try:
        with opened(file) as stream:
            yield stream
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # what the system says of the file
            raise
        raise DamagedFile(f"damaged {kind} data ({error})") from error


def _skip_line(lines: IO[bytes], line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = lines.readline(MOST_BYTES)


# Pages of a text that was printed: a form feed ends each but the last.

PAGE_END = "\f"


def page_of(text: str, offset: int) -> int | None:
    """Give the number of the page, from 1, that the character at `offset` is on; None where a text has no pages."""
    return text.count(PAGE_END, 0, offset) + 1 if PAGE_END in text else None


def number_pages(text: str) -> str:
    """Give a text with a line before each page that says its number."""
    if PAGE_END not in text:
        return text
    return "\n\n".join(f"[page {n}]\n{page.strip()}" for n, page in enumerate(text.split(PAGE_END), start=1))


# Times as people write them.


def parse_moment(said: str) -> datetime:
    """Parse a date, or an ISO 8601 time; one without a zone is UTC. Raises `ValueError`."""
    at = datetime.fromisoformat(said)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


# The limits for reading one document.

# A reader with less memory than that does not even start.
Memory = Annotated[int, Meta(ge=128, le=1_000_000, description="a number from 128 to 1000000")]
Time = Annotated[int, Meta(ge=1, le=86_400, description="a number from 1 to 86400")]
Characters = Annotated[int, Meta(ge=1000, le=100_000_000, description="a number from 1000 to 100000000")]

# Why reading a document ended: the limit that it exceeded, or "broken" where its reader failed.
Breach = Literal["memory", "time", "size", "broken"]


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """The limits for one document: megabytes of memory, seconds of processor time, and characters of its text."""

    memory_mb: Memory = 1024
    """Megabytes of memory that reading one document may take."""
    seconds: Time = 60
    """Seconds of processor time that reading one document may take."""
    characters: Characters = 20_000_000
    """The longest text of a document, in characters."""

    def sentence(self, breach: Breach, how: str = "") -> str:
        """Say which limit was exceeded; `how` says how the reading process ended."""
        match breach:
            case "memory":
                return f"reading it took more than {self.memory_mb} MB of memory (COLMLM_DOCUMENT_MEMORY_MB)"
            case "time":
                return f"reading it took more than {self.seconds} seconds (COLMLM_DOCUMENT_SECONDS)"
            case "size":
                return f"it gave more than {self.characters} characters (COLMLM_DOCUMENT_CHARACTERS)"
            case "broken":
                return f"its reader broke off ({how}): it is damaged, or takes more than {self.memory_mb} MB of memory"
