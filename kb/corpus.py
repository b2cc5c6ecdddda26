"""The corpus format: documents, the fact spans in them, and the files that hold them.

Pure data: no SQL, no Faiss, no torch, so that every other part may import it.

A corpus file is JSON Lines, one document a line::

    {"id": "peru", "title": "Peru", "uri": "...", "licence": "...", "revision": "1",
     "text": "The capital of Peru is Lima.",
     "facts": [{"start": 23, "end": 27, "value": "Lima",
                "question": "What is the capital of Peru?", "answer": "Lima"}]}

Offsets are Unicode code points and ``text[start:end] == value``. A line without ``facts`` holds the
paper's inline form in ``text`` instead (section 3.3): ``<FACT q="..." a="...">Lima</FACT>``.

Nothing is repaired by guessing: a span that does not check out becomes a `Refusal` that names the
document, the offset and the reason, and the rest of the file goes on.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_OPEN = re.compile(r"<FACT((?:\s+[qa]=\"[^\"]*\")*)\s*>")
_ATTRIBUTE = re.compile(r"([qa])=\"([^\"]*)\"")
_ANY_TAG = re.compile(r"</?FACT\b")
CLOSE_TAG = "</FACT>"
_ABOUT = ("title", "uri", "licence", "revision")


@dataclass(frozen=True, slots=True)
class FactSpan:
    """One fact of a document: ``text[start:end]`` is its value, in Unicode code points."""

    start: int
    end: int
    value: str
    question: str | None = None
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class AnnotatedDocument:
    """A document and its fact spans, sorted by start and free of overlap."""

    external_id: str
    text: str
    facts: tuple[FactSpan, ...] = ()
    title: str | None = None
    uri: str | None = None
    licence: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A span, document or line that was not taken, and why.

    `offset` is a code point offset into the text (or the line, where the line itself is at fault).
    """

    document: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one line (or one paragraph) of a file gave: a document, or none, and its refusals."""

    document: AnnotatedDocument | None
    refusals: tuple[Refusal, ...] = ()
    overlaps_resolved: int = 0


@dataclass(slots=True)
class InlineError(ValueError):
    """Inline markup that cannot be read; `offset` points at the tag at fault."""

    offset: int
    reason: str
    args: tuple[Any, ...] = field(default=(), init=False)

    def __str__(self) -> str:
        return f"offset {self.offset}: {self.reason}"


def parse_inline(marked: str) -> tuple[str, tuple[FactSpan, ...]]:
    """The plain text and the fact spans of text in the paper's inline form.

    Attribute values are HTML-escaped (``&quot;``). Raises `InlineError` on an unclosed, nested,
    empty or stray tag, since the plain text would then be a guess.
    """
    pieces: list[str] = []
    spans: list[FactSpan] = []
    length = at = 0
    while (tag := _ANY_TAG.search(marked, at)) is not None:
        opening = _OPEN.match(marked, tag.start())
        if opening is None:
            raise InlineError(tag.start(), "stray or malformed tag")
        close = marked.find(CLOSE_TAG, opening.end())
        if close < 0:
            raise InlineError(tag.start(), "<FACT> is never closed")
        value = marked[opening.end() : close]
        if not value.strip():
            raise InlineError(tag.start(), "the span is empty")
        if _ANY_TAG.search(value):
            raise InlineError(tag.start(), "a <FACT> inside a <FACT>")
        before = marked[at : opening.start()]
        attributes = {name: html.unescape(text) for name, text in _ATTRIBUTE.findall(opening.group(1))}
        start = length + len(before)
        spans.append(
            FactSpan(
                start, start + len(value), value, attributes.get("q") or None, attributes.get("a") or None
            )
        )
        pieces += (before, value)
        length = start + len(value)
        at = close + len(CLOSE_TAG)
    pieces.append(marked[at:])
    return "".join(pieces), tuple(spans)


def format_inline(document: AnnotatedDocument) -> str:
    """The document's text in the paper's inline form; the inverse of `parse_inline`.

    Raises `InlineError` where the text itself holds such a tag: write that document as offsets.
    """
    pieces: list[str] = []
    at = 0
    for span in document.facts:
        q = f' q="{html.escape(span.question)}"' if span.question else ""
        a = f' a="{html.escape(span.answer)}"' if span.answer else ""
        before, value = (
            _untagged(document.text, at, span.start),
            _untagged(document.text, span.start, span.end),
        )
        pieces += (before, f"<FACT{q}{a}>{value}{CLOSE_TAG}")
        at = span.end
    pieces.append(_untagged(document.text, at, len(document.text)))
    return "".join(pieces)


def _untagged(text: str, start: int, end: int) -> str:
    """``text[start:end]``, searched by itself: "<FACTor" is a tag once a span begins before its "or"."""
    piece = text[start:end]
    if (tag := _ANY_TAG.search(piece)) is not None:
        raise InlineError(start + tag.start(), "the text itself contains a FACT tag")
    return piece


def check_spans(
    document: str, text: str, spans: Sequence[FactSpan]
) -> tuple[tuple[FactSpan, ...], tuple[Refusal, ...]]:
    """Split spans into those that hold (sorted, verbatim, apart) and refusals with their reasons."""
    kept: list[FactSpan] = []
    refusals: list[Refusal] = []
    reached = 0
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        reason = _fault(text, span)
        if reason is None and span.start < reached:
            reason = f"overlaps the span before it, which ends at {reached}"
        if reason is not None:
            refusals.append(Refusal(document, span.start, reason))
            continue
        kept.append(span)
        reached = span.end
    return tuple(kept), tuple(refusals)


def _fault(text: str, span: FactSpan) -> str | None:
    if not 0 <= span.start < span.end <= len(text):
        return f"span [{span.start}, {span.end}) is empty or outside the text of {len(text)} characters"
    found = text[span.start : span.end]
    if found != span.value:
        return f"not verbatim: the text has {found!r}, the span says {span.value!r}"
    if not found.strip():
        return "the span is blank"
    return None


def read_annotated(path: Path) -> Iterator[Parsed]:
    """Every line of an annotated JSONL file, in order; blank lines are passed over."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield parse_line(line, where=f"{path.name}:{number}")


def parse_line(line: bytes | str, where: str) -> Parsed:
    """One JSONL line as a document. `where` names the line in refusals that have no document id."""
    record = parse_json(line, where)
    if isinstance(record, Refusal):
        return Parsed(None, (record,))
    if not isinstance(record, dict):
        return _refused(where, 0, "not a JSON object")
    external_id, text = record.get("id"), record.get("text")
    if not isinstance(external_id, str) or not external_id.strip():
        return _refused(where, 0, "no document id ('id' must be a non-empty string)")
    if (fault := unstorable(external_id)) is not None:
        return _refused(where, 0, f"'id' has {fault[1]}")
    if not isinstance(text, str) or not text.strip():
        return _refused(external_id, 0, "no text ('text' must be a non-empty string)")
    if (fault := unstorable(text)) is not None:
        return _refused(external_id, *fault)
    for name in _ABOUT:
        if not isinstance(record.get(name), str | None):
            return _refused(external_id, 0, f"{name!r} must be a string")
        if (fault := unstorable(record.get(name) or "")) is not None:
            return _refused(external_id, 0, f"{name!r} has {fault[1]}")
    return _document(external_id, text, record)


def parse_json(text: bytes | str, where: str) -> Any:
    """What one JSON text says, or the `Refusal` of it. Bytes are UTF-8, with or without a byte order mark."""
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        return Refusal(where, error.start, "not UTF-8")
    except json.JSONDecodeError as error:
        return Refusal(where, error.pos, f"not JSON: {error.msg}")
    except RecursionError:
        return Refusal(where, 0, "not JSON that can be read: nested too deeply")
    except ValueError:
        return Refusal(where, 0, "not JSON that can be read: a number of thousands of digits")


def unstorable(text: str) -> tuple[int, str] | None:
    """Where `text` holds a character that no UTF-8 database can store, and which."""
    for offset, character in enumerate(text):
        if character == "\x00":
            return offset, "a NUL character, which PostgreSQL cannot store"
        if "\ud800" <= character <= "\udfff":
            return offset, "a lone surrogate, which is not a character"
    return None


def _document(external_id: str, text: str, record: Mapping[str, Any]) -> Parsed:
    malformed: list[Refusal] = []
    if "facts" in record:
        spans, malformed = _spans_of(external_id, record["facts"])
    else:
        try:
            text, inline = parse_inline(text)
        except InlineError as error:
            return _refused(external_id, error.offset, error.reason)
        spans = list(inline)
    kept, refused = check_spans(external_id, text, spans)
    document = AnnotatedDocument(external_id, text, kept, **{name: record.get(name) for name in _ABOUT})
    return Parsed(document, (*malformed, *refused))


def _spans_of(external_id: str, records: object) -> tuple[list[FactSpan], list[Refusal]]:
    spans: list[FactSpan] = []
    refusals: list[Refusal] = []
    if not isinstance(records, list):
        return [], [Refusal(external_id, 0, "'facts' must be a list")]
    for ordinal, record in enumerate(records):
        try:
            spans.append(_span_of(record))
        except (TypeError, KeyError) as error:
            offset = record.get("start") if isinstance(record, dict) else None
            offset = offset if isinstance(offset, int) and not isinstance(offset, bool) else 0
            refusals.append(Refusal(external_id, offset, f"malformed fact {ordinal}: {error}"))
    return spans, refusals


def _span_of(record: object) -> FactSpan:
    if not isinstance(record, dict):
        raise TypeError("not a JSON object")
    for name, kind in (("start", int), ("end", int), ("value", str)):
        if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
            raise TypeError(f"{name!r} must be {'an integer' if kind is int else 'a string'}")
    for name in ("question", "answer"):
        if not isinstance(record.get(name), str | None) or unstorable(record.get(name) or ""):
            raise TypeError(f"{name!r} must be a string that can be stored")
    return FactSpan(
        record["start"],
        record["end"],
        record["value"],
        record.get("question") or None,
        record.get("answer") or None,
    )


def _refused(document: str, offset: int, reason: str) -> Parsed:
    return Parsed(None, (Refusal(document, offset, reason),))


def to_record(document: AnnotatedDocument) -> dict[str, Any]:
    """The JSON object of a document in the offset form: `parse_line` gives the document back."""
    record: dict[str, Any] = {"id": document.external_id}
    for name in _ABOUT:
        if (value := getattr(document, name)) is not None:
            record[name] = value
    record["text"] = document.text
    record["facts"] = [
        {"start": s.start, "end": s.end, "value": s.value, "question": s.question, "answer": s.answer}
        for s in document.facts
    ]
    return record
