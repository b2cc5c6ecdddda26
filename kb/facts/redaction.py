"""Redaction: puts one U+2588 in place of each character that was erased, so that every other offset stays right.

The functions take the session first and never commit. They redact documents, which hold the texts of facts;
`kb.removal.quotations` redacts what quotes them. Held texts are not redacted: a caller checks for holds under the lock
of the change log, so that no hold comes between check and redaction (`require_unheld`, `held_documents`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol, Self

from sqlalchemy import ColumnElement, func, or_, select, text, tuple_
from sqlalchemy.orm import Session, aliased

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, document_digests
from colmlm.kb.corpus.training_record import text_digest
from colmlm.kb.errors import InvalidValue, hold_stands
from colmlm.kb.facts import sentences
from colmlm.kb.facts.records import MENTIONED, Mentioned
from colmlm.kb.tables import (
    ERASED_BY_REDACTION,
    IS_SAID,
    DocumentRow,
    FactRow,
    FactVersionRow,
    GenerationRow,
    columns_of,
    content_of,
)
from colmlm.kb.texts.wording import Finder, Phrases, Span, may_say

MARK = "\u2588"
FACT = "fact"  # the table of a place that is a whole fact
ABOUT = tuple(
    name for name in content_of(DocumentRow) if name != "text"
)  # what is redacted beside a document's text
_RECORDED = ("title", "uri", "licence", "revision")
CONTEXT = 20  # characters on either side of a span that must match to find it in another edition of the text


def as_mentioned(kept: object) -> Mentioned | None:
    """Read a stored choice of where mentions are redacted, one of `MENTIONED`; None if it is missing or unknown."""
    return next((known for known in MENTIONED if known == kept), None)


def check_mentioned(asked: str) -> None:
    """Raise `InvalidValue` unless `asked` is one of `MENTIONED`."""
    if as_mentioned(asked) is None:
        raise InvalidValue("choice of mentions", f"it is not one of {', '.join(MENTIONED)}")


@dataclass(frozen=True, slots=True)
class ErasureTarget:
    """A fact to erase, with every text it has. `text` and `spans` are its document's: the text and all fact spans.

    `former` are its earlier states, with another question or place and the same values. A fact of a release has no
    `document_id`; its `external_id` is that of its sample, and `start` its number there.
    """

    fact_id: int
    question: str | None
    answer: str | None
    values: tuple[str, ...]  # by version; the document says the first
    document_id: int | None = None
    corpus: str = ""
    external_id: str = ""
    start: int = 0
    end: int = 0
    text: str = ""
    spans: tuple[Span, ...] = ()
    former: tuple[ErasureTarget, ...] = ()

    @property
    def states(self) -> tuple[ErasureTarget, ...]:
        """The present state of the fact, then its former ones."""
        return self, *self.former

    @property
    def marker(self) -> str:
        """The marks that replace the value of an erased fact, as many as its span has characters."""
        return MARK * max(1, self.end - self.start)

    @property
    def markers(self) -> tuple[str, ...]:
        """The marks that replace the value of each version: one for each character, if a document has the value.

        A value that somebody entered gets more marks than its span has, and another number than the value before it. So
        a trace still shows which change gave a value and that the document had another, and nobody learns its length.
        """
        quoted = {
            state.text[state.start : state.end] for state in self.states if state.document_id is not None
        }
        made: list[str] = []
        for number, value in enumerate(self.values):
            if number and value == self.values[number - 1]:
                made.append(made[-1])
                continue
            marks = MARK * len(value) if value in quoted else self.marker
            taken = {*(MARK * len(said) for said in quoted), *made[-1:]} if value not in quoted else set()
            while marks in taken:
                marks += MARK
            made.append(marks)
        return tuple(made)

    @property
    def strings(self) -> tuple[str, ...]:
        """The values, questions and answers of all states of this fact, each once."""
        asked = (said for state in self.states for said in (state.question, state.answer))
        return tuple(dict.fromkeys(filter(None, (*self.values, *asked))))


def strings_of(targets: Iterable[ErasureTarget]) -> set[str]:
    """Give the values, questions and answers of these facts."""
    return {string for target in targets for string in target.strings}


def blank_out(text: str, spans: Iterable[Span]) -> str:
    """Give the text with these spans redacted."""
    for start, end in spans:
        text = text[:start] + MARK * (end - start) + text[end:]
    return text


def spans_apart(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Give the spans that overlap none of the others."""
    return [span for span in spans if not spans_touch(span, others)]


def spans_touch(span: Span, others: Iterable[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def redact_json(value: Any, finder: Finder) -> Any:
    """Give the JSON value with every span that the finder finds in its strings redacted; names and numbers stay."""
    if isinstance(value, str):
        return blank_out(value, finder.spans(value))
    if isinstance(value, dict):
        return {name: redact_json(item, finder) for name, item in value.items()}
    if isinstance(value, list):
        return [redact_json(item, finder) for item in value]
    return value


class BlankedStretch(NamedTuple):
    """A stretch of a JSON value to redact: the number of the string in the value, and the offsets in that string."""

    part: int
    start: int
    end: int


def blank_value(value: Any, stretches: Collection[BlankedStretch], *, keep_blanks: bool = False) -> Any:
    """Give the JSON value with these stretches redacted; with `keep_blanks` their white space stays."""
    by_part, number = defaultdict[int, list[BlankedStretch]](list), count()
    for one in stretches:
        by_part[one.part].append(one)

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: blank(item) for name, item in value.items()}
        if isinstance(value, list):
            return [blank(item) for item in value]
        if isinstance(value, str):
            for _, start, end in by_part[next(number)]:
                marks = "".join(c if keep_blanks and c.isspace() else MARK for c in value[start:end])
                value = value[:start] + marks + value[end:]
        return value

    return blank(value)


@dataclass(frozen=True, slots=True)
class NamePlace:
    """A stored value that names a person: table, column, row and stretches to redact. Table "fact" means a whole fact.

    `digest` is the keyed digest of the value as it was found.
    """

    table: str
    column: str
    row_id: int
    digest: str
    stretches: tuple[BlankedStretch, ...] = ()

    @property
    def name(self) -> str:
        return place_name(self.table, self.column, self.row_id)

    def to_json(self) -> list[Any]:
        return [self.table, self.column, self.row_id, self.digest, [list(one) for one in self.stretches]]

    @classmethod
    def from_json(cls, stored: Sequence[Any]) -> Self:
        table, column, row_id, digest, stretches = stored
        return cls(
            str(table),
            str(column),
            int(row_id),
            str(digest),
            tuple(BlankedStretch(*map(int, s)) for s in stretches),
        )


def place_name(table: str, column: str, row_id: object) -> str:
    """Give the name of a place as people read it: "document.text/12", or "fact/7" for a whole fact."""
    return f"{table}/{row_id}" if table == FACT else f"{table}.{column}/{row_id}"


# The database says what is held, in two functions that the triggers of the tables ask, too.
_HELD = {
    "document": text(
        "SELECT n AS id, h AS hold FROM unnest(CAST(:ids AS bigint[])) n, holds_on_document(n) h ORDER BY 1, 2"
    ),
    "fact": text(
        "SELECT n AS id, h AS hold FROM unnest(CAST(:ids AS bigint[])) n, holds_on_fact(n) h ORDER BY 1, 2"
    ),
}


def held_documents(session: Session, document_ids: Collection[int]) -> dict[int, list[int]]:
    """Give the ids of these documents that are held, each with its holds; valid while the log's lock is held."""
    return _holds(session, "document", document_ids)


def held_facts(session: Session, fact_ids: Collection[int]) -> dict[int, list[int]]:
    """Give the ids of these facts that are held, each with its holds; valid while the log's lock is held."""
    return _holds(session, "fact", fact_ids)


def _holds(session: Session, what: str, ids: Collection[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in session.execute(_HELD[what], {"ids": sorted(ids)}) if ids else ():
        found.setdefault(row.id, []).append(row.hold)
    return found


def require_unheld(session: Session, fact_ids: Collection[int], document_ids: Collection[int] = ()) -> None:
    """Raise `HoldStands` if one of these facts or documents is held; valid while the log's lock is held."""
    for what, found in (
        ("fact", held_facts(session, fact_ids)),
        ("document", held_documents(session, document_ids)),
    ):
        if found:
            raise hold_stands(what, list(found), sorted({hold for holds in found.values() for hold in holds}))


class FormerText(NamedTuple):
    """A document's text before a redaction: its `text_digest`, and whether it had redaction marks already."""

    digest: bytes
    is_marked: bool

    @classmethod
    def of_text(cls, text: str) -> FormerText:
        return cls(text_digest(text), MARK in text)


def redact_documents(
    session: Session,
    targets: Sequence[ErasureTarget],
    mentions: Mentioned = "same-document",
    former: dict[int, FormerText] | None = None,
) -> tuple[list[int], dict[int, list[int]]]:
    """Redact facts in all editions of their documents; give the ids of the changed rows, and the held documents.

    It also redacts mentions: the facts' values elsewhere in these texts, in the licence and the revision of these
    documents, or with "all" in those of every document. The spans of other facts stay. Held documents of others stay
    whole; they are given by id with their holds. `former` gets the `FormerText` of each text that changes, by document.
    """
    by_source: dict[tuple[str, str], list[ErasureTarget]] = {}
    for target in targets:
        if target.document_id is not None:
            by_source.setdefault((target.corpus, target.external_id), []).append(target)
    erased = [target.fact_id for target in targets]
    changed: dict[int, bool] = {}
    former = {} if former is None else former
    for source, of_source in by_source.items():
        rows = session.scalars(
            select(DocumentRow)
            .where(tuple_(DocumentRow.corpus, DocumentRow.external_id).in_([source]))
            .order_by(DocumentRow.id)
            .execution_options(populate_existing=True)
        )
        for row in rows:
            reaches = mentions != "none" or row.replaced_seq is not None
            said = Phrases(value for target in of_source if reaches for value in target.values)
            own = partial(_spans_in, row, of_source, said)
            changed |= _redact_document(session, row, own, said, erased, former)
    held: dict[int, list[int]] = {}
    if mentions == "all":
        elsewhere, held = _redact_mentions(session, targets, erased, former)
        for document_id, in_text in elsewhere.items():
            changed[document_id] = in_text or changed.get(document_id, False)
    session.flush()
    sentences.write_document_sentences(
        session, {document_id for document_id, in_text in changed.items() if in_text}
    )
    return sorted(changed), held


def erase_documents(
    session: Session, document_ids: Sequence[int], seq: int, former: dict[int, FormerText] | None = None
) -> None:
    """Redact all of the text of these documents, and what is stored about them, as part of change `seq`.

    They are taken out of use. Their facts must be erased in the same change. `former` gets their texts, by document.
    """
    former = {} if former is None else former
    rows = select(DocumentRow).where(DocumentRow.id == func.any(list(document_ids)))
    for row in session.scalars(rows.order_by(DocumentRow.id).execution_options(populate_existing=True)):
        about = {name: MARK * len(getattr(row, name) or "") or None for name in _RECORDED}
        former.setdefault(row.id, FormerText.of_text(row.text))
        row.text, row.erased_seq = MARK * len(row.text), seq
        row.replaced_seq = row.replaced_seq or seq
        for name, value in about.items():
            setattr(row, name, value)
        row.sha256, row.record_sha256 = document_digests(
            AnnotatedDocument(row.external_id, row.text, (), **about)
        )
    session.flush()


def _redact_mentions(
    session: Session, targets: Sequence[ErasureTarget], erased: list[int], former: dict[int, FormerText]
) -> tuple[dict[int, bool], dict[int, list[int]]]:
    """Redact the values in every document without a hold; give the changed ones, and the held ones with holds."""
    values = {value for target in targets for value in target.values}
    said = Phrases(values)
    columns = columns_of(DocumentRow, ERASED_BY_REDACTION)
    may = or_(*(may_say(column, values) for column in columns))
    rows = session.execute(
        select(DocumentRow.id, *columns).where(may).order_by(DocumentRow.id).execution_options(yield_per=200)
    )
    ids = [row.id for row in rows if any(said.spans(text) for text in row[1:] if text)]
    held = held_documents(session, ids)
    ids = [document_id for document_id in ids if document_id not in held]
    changed: dict[int, bool] = {}
    for row in (session.get_one(DocumentRow, document_id, populate_existing=True) for document_id in ids):
        spans_in = partial(_mentioned_spans, row.text, said)
        changed |= _redact_document(session, row, spans_in, said, erased, former)
    return changed, held


def redact_about(session: Session, fact_id: int, said: Finder) -> Iterator[int]:
    """Redact what `said` finds in the metadata of a fact's document, in all its editions; yield the ids changed."""
    document = aliased(DocumentRow)
    source = select(document.corpus, document.external_id).join(FactRow, FactRow.document_id == document.id)
    of_source = tuple_(DocumentRow.corpus, DocumentRow.external_id).in_(source.where(FactRow.id == fact_id))
    for row in session.scalars(select(DocumentRow).where(of_source).order_by(DocumentRow.id)).all():
        yield from _redact_document(session, row, lambda _: [], said, [], {})


def _mentioned_spans(text: str, said: Phrases, apart_from: Sequence[Span]) -> list[Span]:
    return spans_apart(said.spans(text), apart_from)


def _redact_document(
    session: Session,
    row: DocumentRow,
    spans_in: Callable[[Sequence[Span]], list[Span]],
    said: Finder,
    erased: list[int],
    former: dict[int, FormerText],
) -> dict[int, bool]:
    """Redact the spans that `spans_in` gives in a document's text, and what `said` finds in its metadata.

    Gives its id, and whether its text changed; empty if nothing changed. `former` gets the `FormerText` of the text.
    """
    staying = _facts_of(session, row.id, erased)
    redacted = redacted_columns(row, ABOUT, said)
    text = blank_out(row.text, spans_in([(span.start, span.end) for span in staying]))
    in_text = text != row.text
    if not (in_text or redacted):
        return {}
    store_redacted(session, row, {**redacted, "text": text}, erased, former)
    return {row.id: in_text}


def store_redacted(
    session: Session,
    row: DocumentRow,
    values: Mapping[str, str],
    erased: Sequence[int],
    former: dict[int, FormerText],
) -> None:
    """Store redacted columns of a document, and new digests of its text and its record without the erased facts.

    `former` gets the `FormerText` of a text that changes, if it has none of this document.
    """
    if values.get("text", row.text) != row.text:
        former.setdefault(row.id, FormerText.of_text(row.text))
    for name, value in values.items():
        setattr(row, name, value)
    # The digests are made of the redacted texts: those of the texts before would let anyone confirm a guess.
    about = {name: getattr(row, name) for name in _RECORDED}
    staying = tuple(_facts_of(session, row.id, list(erased)))
    row.sha256, row.record_sha256 = document_digests(
        AnnotatedDocument(row.external_id, row.text, staying, **about)
    )


def _spans_in(
    row: DocumentRow, targets: Sequence[ErasureTarget], said: Phrases, apart_from: Sequence[Span]
) -> list[Span]:
    """Find the spans of the targets in one edition of their document, and their mentions, which `said` finds."""
    found = [span for target in targets for span in _find_span(row, target, apart_from)]
    former = [state for target in targets for state in target.former if state.document_id is not None]
    found += spans_apart(
        (span for state in former for span in _find_span(row, state, apart_from)), apart_from
    )
    return found + spans_apart(said.spans(row.text), apart_from)


def _find_span(row: DocumentRow, target: ErasureTarget, apart_from: Sequence[Span]) -> list[Span]:
    """Find the fact's span in an edition of its document by the characters around it, outside other facts' spans."""
    if row.id == target.document_id:
        found = [(target.start, target.end)]
    else:
        first, last = max(0, target.start - CONTEXT), target.end + CONTEXT
        sentence = target.text[first:last]
        found = [
            (m.start() + target.start - first, m.start() + target.end - first)
            for m in re.finditer(re.escape(sentence), row.text)
        ]
        found = spans_apart(found, apart_from)
    return found


def _facts_of(session: Session, document_id: int, erased: list[int]) -> list[FactSpan]:
    """Give a document's fact spans, in order and with the values in its text, without those erased now or before."""
    statement = (
        select(FactRow, FactVersionRow.value)
        .join(FactVersionRow, IS_SAID)
        .where(
            FactRow.document_id == document_id, FactRow.erased_seq.is_(None), FactRow.id != func.all(erased)
        )
        .order_by(FactRow.ordinal)
    )
    return [
        FactSpan(fact.span_start or 0, fact.span_end or 0, value, fact.question, fact.answer)
        for fact, value in session.execute(statement)
    ]


def redacted_columns(row: Any, names: Sequence[str], finder: Finder) -> dict[str, Any]:
    """Give, by name, the redacted values of those columns of a row in which the finder finds something."""
    redacted = {name: redact_json(getattr(row, name), finder) for name in names}
    return {name: value for name, value in redacted.items() if value != getattr(row, name)}


# Quoted words: those of an output that no fact stands behind and that are a document's, since the output
# quotes it.
#
# What is redacted in the document there is redacted in the output too, and so it is with what is withheld.


class QuotedSplice(Protocol):
    """A splice of an output, stored (a row) or about to be: its fact, and its place in the output.

    In an output that quotes a document, also its place in the document; else None.
    """

    @property
    def fact_id(self) -> int | None: ...
    @property
    def output_start(self) -> int: ...
    @property
    def output_end(self) -> int: ...
    @property
    def quoted_start(self) -> int | None: ...
    @property
    def quoted_end(self) -> int | None: ...


class UncoveredStretch(NamedTuple):
    """A stretch of an output that no splice covers, and the stretch of the quoted text that it repeats."""

    output: Span
    quoted: Span


def uncovered_stretches(
    length: int, quoted: Span, splices: Sequence[QuotedSplice]
) -> Iterator[UncoveredStretch]:
    """Yield the stretches between the splices of an output of this length, which quotes this span.

    Splices that begin within another are passed over.
    """
    said, (at, end) = 0, quoted
    for splice in sorted(splices, key=lambda one: (one.output_start, -one.output_end)):
        if splice.quoted_start is None or splice.quoted_end is None:
            continue
        if splice.output_start >= said and splice.quoted_start >= at:
            yield UncoveredStretch((said, splice.output_start), (at, splice.quoted_start))
            said, at = splice.output_end, splice.quoted_end
    yield UncoveredStretch((said, length), (at, end))


def marked_spans(length: int, quoted: Span, splices: Sequence[QuotedSplice], text: str) -> list[Span]:
    """Give the spans of an output whose quoted stretch, as `text` shows it now, has redaction marks.

    If a stretch and its quoted one differ in length, the whole stretch is given as soon as that has a mark.
    """
    found: list[Span] = []
    for (start, end), (first, last) in uncovered_stretches(length, quoted, splices):
        shown = text[first - quoted[0] : last - quoted[0]]
        if MARK not in shown:
            continue
        if len(shown) != end - start:
            found.append((start, end))
        else:
            found += [(start + n, start + n + 1) for n, character in enumerate(shown) if character == MARK]
    return found


def is_quoted(output: str, quoted: Span, splices: Sequence[QuotedSplice], text: str) -> bool:
    """Say whether an output's words between its splices are those of the quoted stretch; marks fit any character."""
    for (start, end), (first, last) in uncovered_stretches(len(output), quoted, splices):
        said, shown = output[start:end], text[first - quoted[0] : last - quoted[0]]
        if len(said) != len(shown) or any(a != b != MARK for a, b in zip(said, shown, strict=True)):
            return False
    return True


# What an output quotes, as its document says it now, in a statement (SQL) that joins both.
STRETCH = func.substr(
    DocumentRow.text, GenerationRow.quoted_start + 1, GenerationRow.quoted_end - GenerationRow.quoted_start
)


def quotes_redaction_condition() -> ColumnElement[bool]:
    """Give a condition (SQL) on outputs: the stretch of the document that the output quotes has redaction marks."""
    return (
        select(DocumentRow.id)
        .where(DocumentRow.id == GenerationRow.document_id, func.strpos(STRETCH, MARK) > 0)
        .exists()
    )


def quoted_stretches(session: Session, generation_ids: Collection[int]) -> dict[int, str]:
    """Give, by output id, the stretch that an output quotes, as its document is now; others are left out."""
    statement: Any = select(GenerationRow.id, STRETCH.label("stretch")).join(
        DocumentRow, DocumentRow.id == GenerationRow.document_id
    )
    rows = session.execute(statement.where(GenerationRow.id == func.any(list(generation_ids))))
    return {row.id: row.stretch for row in rows}


def stored_stretch(session: Session, document_id: int, start: int, end: int) -> str | None:
    """Give a stretch of a document's text; None if there is no such document."""
    said = func.substr(DocumentRow.text, start + 1, end - start)
    return session.scalar(select(said).where(DocumentRow.id == document_id))


def describe_held(held: Mapping[int, Collection[int]]) -> dict[str, list[int]]:
    """Give the part of a change's payload that names held documents, which were not redacted, and their holds."""
    return {"documents": sorted(held), "holds": sorted({hold for holds in held.values() for hold in holds})}
