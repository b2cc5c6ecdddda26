"""The corpus format: documents, the fact spans in them, and the files that hold them.

It is pure data, without SQL, Faiss or torch, so that every other part may import it.

A corpus file is JSON Lines, one document a line::

    {"id": "peru", "title": "Peru", "uri": "...", "licence": "...", "revision": "1",
     "text": "The capital of Peru is Lima.",
     "facts": [{"start": 23, "end": 27, "value": "Lima",
                "question": "What is the capital of Peru?", "answer": "Lima"}]}

Offsets are Unicode code points and ``text[start:end] == value``. A line without ``facts`` holds the
paper's inline form in ``text`` instead (section 3.3): ``<FACT q="..." a="...">Lima</FACT>``.

Nothing is repaired by guessing: a span that fails a check becomes a `Refusal` that names the
document, the offset and the reason, and the rest of the file is still read.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as _quoted
from pathlib import Path
from typing import Any, Literal, cast, get_args

from colmlm.kb.texts.characters import MOST_BYTES, read_lines

_OPEN = re.compile(r"<FACT((?:\s+[qa]=\"[^\"]*\")*)\s*>")
_ATTRIBUTE = re.compile(r"([qa])=\"([^\"]*)\"")
_ANY_TAG = re.compile(r"</?FACT\b")
CLOSE_TAG = "</FACT>"
_ABOUT = ("title", "uri", "licence", "revision")
_MOST_QUOTED = 100
_SEEN = re.compile("[^\\s\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

NO_TEXT = hashlib.sha256(b"").hexdigest()  # of a sample of a release, whose text is not known

Review = Literal["proposed", "accepted", "rejected"]
REVIEWS: tuple[Review, ...] = get_args(Review)


@dataclass(frozen=True, slots=True)
class FactSpan:
    """One fact of a document: ``text[start:end]`` is its value, in Unicode code points.

    `current` is its corrected value, where it was corrected since; `deleted` says that the fact was deleted. `doubt` is
    the code of the fault that a machine's own check found in it; no file has it. `review` is None if the fact needed no
    review, else "proposed", "accepted" by somebody, or "rejected", and then it is deleted.
    """

    start: int
    end: int
    value: str
    question: str | None = None
    answer: str | None = None
    current: str | None = None
    deleted: bool = False
    doubt: str | None = None
    review: Review | None = None


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
    """A span, document or line that was refused, and why.

    `offset` is a code point offset into the text (or the line, where the line itself is at fault). `code` is
    ``invalid``, or the limit that reading it exceeded: ``memory``, ``time``, ``size``; ``broken`` says that its reader
    failed.
    """

    document: str
    offset: int
    reason: str
    code: str = "invalid"


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of reading one line (or one paragraph) of a file: a document, or none, and its refusals."""

    document: AnnotatedDocument | None
    refusals: tuple[Refusal, ...] = ()
    overlaps_resolved: int = 0


@dataclass(slots=True)
class InlineError(ValueError):
    """Markup within a text cannot be read; `offset` points at the fault."""

    offset: int
    reason: str
    args: tuple[Any, ...] = field(default=(), init=False)

    def __str__(self) -> str:
        return f"offset {self.offset}: {self.reason}"


def parse_inline(marked: str) -> tuple[str, tuple[FactSpan, ...]]:
    """Give the plain text and the fact spans of a text with inline ``<FACT q="question" a="answer">value</FACT>``.

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


def check_spans(
    document: str, text: str, spans: Sequence[FactSpan]
) -> tuple[tuple[FactSpan, ...], tuple[Refusal, ...]]:
    """Split spans into those that are sound (sorted, verbatim, without overlap) and refusals of the others."""
    if _has_only_sound_spans(text, spans):
        return tuple(spans), ()
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


def _has_only_sound_spans(text: str, spans: Sequence[FactSpan]) -> bool:
    """Say whether no span has to be sorted or refused. This is nearly always true, so the check has to be fast."""
    reached, length = 0, len(text)
    for span in spans:
        start, end, value = span.start, span.end, span.value
        if not reached <= start < end <= length or not _says(text, start, end, value) or value.isspace():
            return False
        reached = end
    return True


def _says(text: str, start: int, end: int, value: str) -> bool:
    """Say whether ``text[start:end]`` is the value, without copying a span that is much longer."""
    return end - start == len(value) and text.startswith(value, start)


def _fault(text: str, span: FactSpan) -> str | None:
    if not 0 <= span.start < span.end <= len(text):
        return f"span [{span.start}, {span.end}) is empty or outside the text of {len(text)} characters"
    if not _says(text, span.start, span.end, span.value):
        found = text[span.start : min(span.end, span.start + _MOST_QUOTED + 1)]
        return f"not verbatim: the text has {_quote(found)}, the span says {_quote(span.value)}"
    if not span.value.strip():
        return "the span is blank"
    return None


def _quote(words: str) -> str:
    """Quote the start of a text, enough to recognise it: thousands of spans of a document may be refused."""
    return repr(words if len(words) <= _MOST_QUOTED else f"{words[:_MOST_QUOTED]}...")


def read_annotated(path: Path, on_bytes: Callable[[int], None] | None = None) -> Iterator[Parsed]:
    """Read every line of an annotated JSONL file, in order; skips blank lines.

    `on_bytes` is called with the number of bytes read so far.
    """
    for number, content, reached in read_lines(path):
        if on_bytes is not None:
            on_bytes(reached)
        where = f"{path.name}:{number}"
        yield too_long(where) if content is None else parse_line(content, where)


def too_long(where: str) -> Parsed:
    """Give the refusal of a line of more than `MOST_BYTES` bytes, which is not read, not even for its id."""
    return _refused_document(where, 0, f"a line of more than {MOST_BYTES} bytes")


def parse_line(line: bytes | str, where: str) -> Parsed:
    """Parse one JSONL line as a document. `where` names the line in refusals that have no document id."""
    record = parse_json(line, where)
    return Parsed(None, (record,)) if isinstance(record, Refusal) else parse_record(record, where)


def parse_record(record: object, where: str) -> Parsed:
    """Parse one record of an annotated file, of any format. `where` names it in refusals that have no document id."""
    if not isinstance(record, dict):
        return _refused_document(where, 0, "not a JSON object")
    named, text = record.get("id"), record.get("text")
    external_id = str(named) if type(named) is int else named
    if not isinstance(external_id, str) or not external_id.strip():
        return _refused_document(where, 0, "no document id ('id' must be a text or a whole number)")
    if (fault := unstorable_characters(external_id)) is not None:
        return _refused_document(where, 0, f"'id' has {fault[1]}")
    if not isinstance(text, str) or is_blank(text):
        return _refused_document(external_id, 0, "no text ('text' must be a non-empty string)")
    if (fault := unstorable_characters(text)) is not None:
        return _refused_document(external_id, *fault)
    for name in _ABOUT:
        if not isinstance(record.get(name), str | None):
            return _refused_document(external_id, 0, f"{name!r} must be a string")
        if (fault := unstorable_characters(record.get(name) or "")) is not None:
            return _refused_document(external_id, 0, f"{name!r} has {fault[1]}")
    return _document(external_id, text, record)


def parse_json(text: bytes | str, where: str) -> Any:
    """Parse one JSON text, or give its `Refusal`. Bytes are UTF-8, with or without a byte order mark."""
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


def is_blank(text: str) -> bool:
    """Say whether a text has no visible character, but only white space and characters without a width."""
    return _SEEN.search(text) is None


def unstorable_characters(text: str) -> tuple[int, str] | None:
    """Find the first character that no UTF-8 database can store; give its offset and a description, or None."""
    if (text.isascii() and "\x00" not in text) or (found := _UNSTORABLE.search(text)) is None:
        return None
    if found.group() == "\x00":
        return found.start(), "a NUL character, which PostgreSQL cannot store"
    return found.start(), "a lone surrogate, which is not a character"


def _document(external_id: str, text: str, record: Mapping[str, Any]) -> Parsed:
    malformed: list[Refusal] = []
    if "facts" in record:
        spans, malformed = _spans_of(external_id, record["facts"])
    else:
        try:
            text, inline = parse_inline(text)
        except InlineError as error:
            return _refused_document(external_id, error.offset, error.reason)
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
    start, end, value = record.get("start"), record.get("end"), record.get("value")
    # `type` and not `isinstance`, since True is no offset.
    if type(start) is not int:
        raise TypeError("'start' must be an integer")
    if type(end) is not int:
        raise TypeError("'end' must be an integer")
    if type(value) is not str:
        raise TypeError("'value' must be a string")
    question, answer = _words(record, "question"), _words(record, "answer")
    if "current" not in record and "deleted" not in record and "review" not in record:
        return FactSpan(start, end, value, question, answer)
    deleted = record.get("deleted")
    if not isinstance(deleted, bool | None):
        raise TypeError("'deleted' must be true or false")
    current = _words(record, "current")
    if current is not None and not current.strip():
        raise TypeError("'current' must not be blank")
    current = None if current == value else current
    review = _review_of(record, deleted)
    is_deleted = bool(deleted) or review == "rejected"
    return FactSpan(start, end, value, question, answer, current, is_deleted, review=review)


def _review_of(record: Mapping[str, Any], deleted: bool | None) -> Review | None:
    review = record.get("review")
    if review is not None and review not in REVIEWS:
        raise TypeError(f"'review' must be one of {', '.join(REVIEWS)}")
    if review == "rejected" and deleted is False:
        raise TypeError("what is rejected is deleted, and 'deleted' is false")
    return cast("Review | None", review)


def _words(record: Mapping[str, Any], name: str) -> str | None:
    words = record.get(name)
    if words is None:
        return None
    fault = unstorable_characters(words) if type(words) is str else (0, f"{words!r:.40}")
    if fault is not None:
        raise TypeError(f"{name!r} must be a string that can be stored, but has {fault[1]}")
    return words or None


def _refused_document(document: str, offset: int, reason: str) -> Parsed:
    return Parsed(None, (Refusal(document, offset, reason),))


def to_record(document: AnnotatedDocument) -> dict[str, Any]:
    """Give the JSON object of a document, with offsets for its spans; `parse_record` makes the document of it again."""
    record: dict[str, Any] = {"id": document.external_id}
    for name in _ABOUT:
        if (value := getattr(document, name)) is not None:
            record[name] = value
    record["text"] = document.text
    record["facts"] = [_fact_record(span) for span in document.facts]
    return record


def _fact_record(span: FactSpan) -> dict[str, Any]:
    record: dict[str, Any] = {
        "start": span.start,
        "end": span.end,
        "value": span.value,
        "question": span.question,
        "answer": span.answer,
    }
    if span.current is not None:
        record["current"] = span.current
    if span.deleted:
        record["deleted"] = True
    if span.review is not None:
        record["review"] = span.review
    return record


def document_digests(document: AnnotatedDocument) -> tuple[str, str]:
    """Give the SHA-256 of the document's text, and of its record, by which an ingest recognises an unchanged document.

    The record is ``json.dumps(to_record(document), sort_keys=True, separators=(",", ":"))`` without `current`,
    `deleted` and `review`: these say what happened to the facts and not what the document says, and an export is no new
    edition.
    """
    quote = _quoted  # built here, since json.dumps of a dictionary for each fact takes three times as long
    facts = ",".join(
        [
            f'{{"answer":{"null" if s.answer is None else quote(s.answer)},"end":{s.end},"question":'
            f'{"null" if s.question is None else quote(s.question)},"start":{s.start},"value":{quote(s.value)}}}'
            for s in document.facts
        ]
    )
    about = {"id": document.external_id, "text": document.text}
    about |= {name: words for name in _ABOUT if (words := getattr(document, name)) is not None}
    others = ",".join([f'"{name}":{quote(about[name])}' for name in sorted(about)])
    record = f'{{"facts":[{facts}],{others}}}'
    return hashlib.sha256(document.text.encode()).hexdigest(), hashlib.sha256(record.encode()).hexdigest()
