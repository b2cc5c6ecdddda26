"""Makes plain text of bytes, without guessing their encoding, and of blocks, as Markdown and HTML have them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from colmlm.kb.corpus.format import Parsed, Refusal, is_blank, unstorable_characters

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, since this mark begins with that one
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0e-\x1f\x7f]")
_MOST_CONTROL = 0.01  # share of the characters; a few are no reason to refuse a file
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([A-Za-z0-9_.:-]+)", re.I
)


class Unreadable(ValueError):
    """A file is not a document: says why and, where that helps, what to do."""


def decode_text(data: bytes, encoding: str | None = None) -> str:
    """Decode the text of a file, with its line ends as ``\\n``. Raises `Unreadable`.

    A byte order mark decides the encoding; without one `encoding` does, by default UTF-8.
    """
    if not data:
        raise Unreadable("the file is empty; leave it out")
    if (marked := marked_encoding(data)) is not None:
        encoding = marked
    elif b"\0" in data:
        raise Unreadable("binary data, not text: it has NUL bytes; save it as a text")
    try:
        text = data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"not {error.encoding}: byte {data[error.start]:#04x} at {error.start}; "
            "convert it to UTF-8, or name its encoding with --encoding"
        ) from error
    except (
        LookupError,
        ValueError,
    ) as error:  # some codecs are not for text, and some raise errors of their own
        raise Unreadable(f"its encoding is called {encoding!r}; name another with --encoding") from error
    return normalise_text((text.removeprefix("\ufeff") if marked else text).replace("\f", "\n"))


def marked_encoding(data: bytes) -> str | None:
    """Give the encoding that a byte order mark at the beginning names; None without such a mark."""
    return next((name for mark, name in _MARKS if data.startswith(mark)), None)


def normalise_text(text: str) -> str:
    """Give the text with line ends as ``\\n``. Raises `Unreadable` on binary data, or if no character is visible."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if is_blank(text):
        raise Unreadable("no text in it; leave it out")
    if (fault := unstorable_characters(text)) is not None:
        raise Unreadable(f"binary data, not text: it has {fault[1]}; save it as a text")
    if len(_CONTROL.findall(text)) > _MOST_CONTROL * len(text):
        raise Unreadable("binary data, not text: it has control characters; save it as a text")
    return text


def declared_encoding(data: bytes) -> str | None:
    """Give the encoding that an HTML file declares in its head, or None. Raises `Unreadable` on an unknown one."""
    found = _DECLARED.search(data[:2048])
    if found is None:
        return None
    name = found.group(1).decode("ascii")
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise Unreadable(f"its encoding is called {name!r}; name it with --encoding") from None


HARD_BREAK = "\v"  # a line end that is kept
CELL_END = " | "
_BLANKS = re.compile(r"[ \t\n]+")


@dataclass(slots=True)
class Blocks:
    """Collects pieces of text into paragraphs, rows and items."""

    _blocks: list[tuple[str, str]] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)

    def add(self, piece: str) -> None:
        """Add text to the open block."""
        self._pieces.append(piece)

    def strip_end(self, piece: str) -> None:
        """Remove this piece again if it is the last of the open block."""
        if self._pieces and self._pieces[-1] == piece:
            self._pieces.pop()

    def close(self, *, after: str = "\n\n", verbatim: bool = False) -> str:
        """End the open block and give its text, with single blanks unless `verbatim`; `after` goes before the next."""
        text = "".join(self._pieces)
        self._pieces.clear()
        if verbatim:
            text = text.strip("\n")
        else:
            lines = (_BLANKS.sub(" ", line).strip() for line in text.split("\v"))
            text = "\n".join(line for line in lines if line)
        if text.strip():
            self._blocks.append((text, after))
        elif self._blocks and len(after) > len(self._blocks[-1][1]):
            self._blocks[-1] = (self._blocks[-1][0], after)
        return text

    def drop_first(self, text: str) -> None:
        """Drop the first block where it equals this text, a heading that became the title."""
        if self._blocks and self._blocks[0][0] == text:
            del self._blocks[0]

    def text(self) -> str:
        self.close()
        whole = "".join(text + after for text, after in self._blocks)
        return whole.rstrip("\n")


# Pieces of a file: its documents and refusals one by one, as the readers of files yield them.


class ReadPiece(NamedTuple):
    """A piece read from one line, row or file; `parsed` is None if it only reports progress.

    `reached` is its end as an offset in the file, in bytes.
    """

    parsed: Parsed | None
    line: int
    reached: int


def refuse_document(document: str, reason: str, line: int = 0, reached: int = 0) -> ReadPiece:
    """Give the piece that refuses a document, a line or a file."""
    return ReadPiece(Parsed(None, (Refusal(document, 0, reason),)), line, reached)


# Fields: which columns of a table, or fields of a record, are a document's id, title and text.

# What is taken where nobody says which field it is, whatever its case.
_USUAL: Mapping[str, tuple[str, ...]] = {
    "id": ("id",),
    "title": ("title",),
    "text": ("text", "content", "body"),
    "uri": ("uri", "url"),
    "licence": ("licence", "license"),
    "revision": ("revision", "revid"),
}
_MOST_LISTED = 30


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of the fields of a record that hold id, title and text; None stands for the usual name."""

    id: str | None = None
    title: str | None = None
    text: str | None = None

    def choose_fields(self, names: Iterable[str]) -> dict[str, str]:
        """Give, for each part of a document such as "text", the one of these field names that holds it.

        Raises `Unreadable` if a field that the caller named, or any field for the text, is missing.
        """
        there = list(names)
        usual = {name.strip().casefold(): name for name in reversed(there)}
        chosen: dict[str, str] = {}
        for part, known in _USUAL.items():
            if (named := getattr(self, part, None)) is not None:
                chosen[part] = named
            elif (found := next((usual[name] for name in known if name in usual), None)) is not None:
                chosen[part] = found
        if missing := [name for name in chosen.values() if name not in there]:
            raise Unreadable(f"no field {missing[0]!r}; {_list_names(there)}; name one of these instead")
        if "text" not in chosen:
            raise Unreadable(f"no field 'text'; {_list_names(there)}; name the one to read with --text-field")
        return chosen


USUAL = FieldNames()


def _list_names(names: list[str]) -> str:
    shown = ", ".join(repr(name[:_MOST_LISTED]) for name in names[:_MOST_LISTED])
    return f"there are {shown or 'none'}{' ...' if len(names) > _MOST_LISTED else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawAddition:
    """Options of adding raw documents: how they are read, annotated and taken into a corpus.

    With `again` unchanged documents are annotated once more. `span_annotator` and `question_generator` are directories
    (None: the released ones). With `questions` every fact gets a question; with `verify` the reader must find the fact
    by it, or it is dropped. `fields` has the names of the fields of records.
    """

    encoding: str | None = None
    fields: FieldNames = USUAL
    questions: bool = False
    verify: bool = True
    span_threshold: float | None = None
    span_annotator: Path | None = None
    question_generator: Path | None = None
    again: bool = False
    allow_erased: bool = False
    dry_run: bool = False
