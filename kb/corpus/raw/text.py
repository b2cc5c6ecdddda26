"""Decodes bytes to text without guessing: by a byte order mark, a declared encoding, or UTF-8."""

from __future__ import annotations

import codecs
import re

from colmlm.kb.corpus.format import is_blank, unstorable_characters

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
        raise Unreadable("the file is empty")
    if (marked := marked_encoding(data)) is not None:
        encoding = marked
    elif b"\0" in data:
        raise Unreadable("binary data, not text: it has NUL bytes")
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
        raise Unreadable(f"it says that it is in {encoding!r}, which cannot be read: {error}") from error
    return normalise_text((text.removeprefix("\ufeff") if marked else text).replace("\f", "\n"))


def marked_encoding(data: bytes) -> str | None:
    """Give the encoding that a byte order mark at the beginning says; None without one."""
    return next((name for mark, name in _MARKS if data.startswith(mark)), None)


def normalise_text(text: str) -> str:
    """Give the text with its line ends as ``\\n``. Raises `Unreadable` on binary data, or where nothing shows."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if is_blank(text):
        raise Unreadable("no text in it")
    if (fault := unstorable_characters(text)) is not None:
        raise Unreadable(f"binary data, not text: it has {fault[1]}")
    if len(_CONTROL.findall(text)) > _MOST_CONTROL * len(text):
        raise Unreadable("binary data, not text: it has control characters")
    return text


def declared_encoding(data: bytes) -> str | None:
    """Give the encoding that an HTML file declares in its head. Raises `Unreadable` on an unknown one."""
    found = _DECLARED.search(data[:2048])
    if found is None:
        return None
    name = found.group(1).decode("ascii")
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise Unreadable(f"it says that it is in {name!r}, an encoding that is not known") from None
