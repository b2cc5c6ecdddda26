"""Windows: sentences with the text that a reader needs before them, with the current values of their facts.

A window's text is that of its document, with the current value of each corrected fact in place of the first one.
Deleted facts are left in it, so that a reader can tell that one of them would be the answer; nobody is shown them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, TextClause, text
from sqlalchemy.orm import Session

from colmlm.kb.answers.records import SaidFact
from colmlm.kb.facts.records import Review, Source
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.lookup.options import HIDDEN, USUAL_FACTS, FactFilter, every_fact_in_scope

# The sentence before is read with each sentence, since pronouns point back to it, or what it stands under
# (`kb.texts.searched`). Sentences of an earlier program version lack `read_from`.
_SENTENCES = text("""
SELECT s.id, s.document_id, s.fact_id, d.corpus, d.external_id, d.title, d.uri, d.licence, d.revision,
       r.span_start, s.span_end, substr(d.text, r.span_start + 1, s.span_end - r.span_start) AS said, f.question,
       (SELECT string_agg(substr(d.text, s.led_by[n] + 1, s.led_by[n + 1] - s.led_by[n]), ' › ' ORDER BY n)
        FROM generate_series(1, cardinality(s.led_by), 2) AS n) AS led
FROM sentence s
LEFT JOIN sentence b ON b.document_id = s.document_id AND b.ordinal = s.ordinal - 1 AND s.read_from IS NULL
LEFT JOIN document d ON d.id = s.document_id
LEFT JOIN fact f ON f.id = s.fact_id
CROSS JOIN LATERAL (SELECT coalesce(s.read_from, b.span_start, s.span_start) AS span_start) AS r
WHERE s.id = ANY(:ids)
""")
# A fact that is left out (HIDDEN) stays in the text as if nobody had marked it. Where its value is not what the
# document says, nobody may say that, as if it were deleted.
# Which versions of which facts stand: those of now, or those of the change `as_of`.
_NOW = ("v.to_seq IS NULL", "true")
_THEN = ("v.from_seq <= :as_of AND (v.to_seq IS NULL OR v.to_seq > :as_of)", "f.created_seq <= :as_of")


def _statements_of_now_and_then(statement: str) -> tuple[TextClause, TextClause]:
    """Build a statement twice: about the facts of now, and about those as of the change `:as_of`."""
    now, then = (
        statement.replace("HIDDEN", HIDDEN).replace("STANDS", stands).replace("KNOWN", known)
        for stands, known in (_NOW, _THEN)
    )
    return text(now), text(then)


_FACTS, _FACTS_THEN = _statements_of_now_and_then("""
SELECT w.id AS sentence_id, f.id AS fact_id, f.span_start, f.span_end, v.value, f.review,
       CASE WHEN HIDDEN THEN NULL ELSE v.version END AS version
FROM unnest(CAST(:ids AS bigint[]), CAST(:documents AS bigint[]), CAST(:starts AS int[]), CAST(:ends AS int[]))
     AS w(id, document_id, span_start, span_end)
JOIN fact f ON f.document_id = w.document_id AND f.span_start < w.span_end AND f.span_end > w.span_start AND KNOWN
LEFT JOIN fact_version v ON v.fact_id = f.id AND STANDS
LEFT JOIN fact_version said ON said.fact_id = f.id AND said.version = f.said_version
WHERE f.erased_seq IS NULL AND (v.fact_id IS NULL OR v.value <> said.value OR NOT HIDDEN)
ORDER BY w.id, f.span_start, f.id
""")
_STRETCHES = text("""
SELECT p.n AS id, d.id AS document_id, d.corpus, d.external_id, d.title, d.uri, d.licence, d.revision,
       p.span_start, p.span_end, substr(d.text, p.span_start + 1, p.span_end - p.span_start) AS said, NULL AS led
FROM unnest(CAST(:numbers AS bigint[]), CAST(:documents AS bigint[]), CAST(:starts AS int[]), CAST(:ends AS int[]))
     AS p(n, document_id, span_start, span_end)
JOIN document d ON d.id = p.document_id
""")
_PASSAGES = text("""
SELECT p.n AS id, d.id AS document_id, d.corpus, d.external_id, d.title, d.uri, d.licence, d.revision,
       p.span_start, p.span_end, substr(d.text, p.span_start + 1, p.span_end - p.span_start) AS said, NULL AS led
FROM sentence s JOIN document d ON d.id = s.document_id
CROSS JOIN LATERAL (VALUES (1, s.passage_start, s.passage_end), (2, s.own_start, s.own_end))
    AS p(n, span_start, span_end)
WHERE s.id = :id AND s.passage_start IS NOT NULL
ORDER BY p.n
""")
_ALONE, _ALONE_THEN = _statements_of_now_and_then("""
SELECT f.id AS fact_id, v.version, v.value, f.review
FROM fact f JOIN fact_version v ON v.fact_id = f.id AND STANDS
WHERE f.id = ANY(:ids) AND KNOWN AND NOT HIDDEN
""")
_WITHOUT_SENTENCE = text(
    """
SELECT -f.id AS id, f.question, f.id AS fact_id, v.version, v.value, f.review
FROM fact f JOIN fact_version v ON v.fact_id = f.id AND STANDS
WHERE f.id = ANY(:ids) AND f.document_id IS NULL AND f.question IS NOT NULL AND f.erased_seq IS NULL
  AND NOT EXISTS (SELECT FROM sentence s WHERE s.fact_id = f.id)
""".replace("STANDS", _THEN[0])
)


@dataclass(frozen=True, slots=True)
class FactInWindow:
    """A fact in a window, with its offsets there and in the document, and its live version (None: deleted)."""

    start: int
    end: int
    document_start: int
    document_end: int
    fact_id: int
    version: int | None
    value: str
    review: Review = "accepted"

    @property
    def said_fact(self) -> SaidFact:
        assert self.version is not None
        return SaidFact(self.fact_id, self.version, self.value, self.review)


@dataclass(frozen=True, slots=True)
class SaidWindow:
    """A sentence with the one before it, their place in the document, and all facts in them, in order.

    `led` are the headings and other lines further up that lead it, for the reader alone. Two windows are equal if a
    reader would read the same, and their facts have the same places, versions and reviews.
    """

    sentence_id: int
    text: str
    source: Source | None
    facts: tuple[FactInWindow, ...]
    led: str = ""

    @property
    def title(self) -> str:
        """Give what the reader gets before the text: the document's title and the headings above the sentence."""
        title = (self.source.title if self.source else None) or ""
        return " › ".join(part for part in (title, self.led) if part)

    def facts_overlapping(self, start: int, end: int) -> tuple[FactInWindow, ...]:
        """Give the facts that overlap a span of the window's text, deleted ones too."""
        return tuple(fact for fact in self.facts if fact.start < end and start < fact.end)

    def source_of(self, start: int, end: int) -> Source | None:
        """Give the place in the document of a span of the window's text; None without a document."""
        if self.source is None:
            return None
        return replace(self.source, start=self._offset(start, last=False), end=self._offset(end, last=True))

    @property
    def may_be_said(self) -> bool:
        """Tell whether nothing in the window is deleted or erased, so that all of it may be shown."""
        return MARK not in self.text and all(fact.version is not None for fact in self.facts)

    def shown_text(self) -> str:
        """Give the text with the values of deleted facts masked."""
        text = self.text
        for fact in self.facts:
            if fact.version is None:
                text = text[: fact.start] + MARK * (fact.end - fact.start) + text[fact.end :]
        return text

    def _offset(self, at: int, *, last: bool) -> int:
        """Map an offset in the text to the document; inside a corrected value it is the start or end of the fact."""
        assert self.source is not None
        shift = self.source.start
        for fact in self.facts:
            if at >= fact.end:
                shift = fact.document_end - fact.end
            elif at > fact.start and fact.end - fact.start != fact.document_end - fact.document_start:
                return fact.document_end if last else fact.document_start
        return at + shift


def read_windows(
    session: Session,
    sentence_ids: Sequence[int],
    *,
    fact_filter: FactFilter = USUAL_FACTS,
    as_of: int | None = None,
) -> dict[int, SaidWindow]:
    """Read the windows of sentences, by sentence id; sentences that no longer exist are left out.

    Their facts are those that pass the filter, with `as_of` those of that change, with the values they had then.
    """
    rows = session.execute(_SENTENCES, {"ids": list(sentence_ids)}).all()
    alone_ids = [row.fact_id for row in rows if row.document_id is None]
    asked = {"ids": alone_ids, **_fact_parameters(fact_filter, as_of)}
    alone_then = _ALONE if as_of is None else _ALONE_THEN
    alone = {row.fact_id: row for row in session.execute(alone_then, asked)} if alone_ids else {}
    of_documents = [row for row in rows if row.document_id is not None]
    return _windows_of_rows(session, of_documents, fact_filter, as_of) | {
        row.id: _window_of_fact(row, alone[row.fact_id])
        for row in rows
        if row.document_id is None and row.fact_id in alone
    }


def read_facts_without_sentence(
    session: Session, fact_ids: Sequence[int], as_of: int
) -> dict[int, SaidWindow]:
    """Read the windows, as of a change, of facts without a document that were deleted since, by minus the fact's id.

    A deletion takes the sentence of such a fact. Its filter is that of whoever found the fact.
    """
    rows = session.execute(_WITHOUT_SENTENCE, {"ids": list(fact_ids), "as_of": as_of}).all()
    return {row.id: _window_of_fact(row, row) for row in rows}


def said_passages(
    session: Session, sentence_id: int, *, fact_filter: FactFilter = USUAL_FACTS, as_of: int | None = None
) -> tuple[SaidWindow, ...]:
    """Read the passage around a sentence, and the sentence alone, as windows with their facts; none if the sentence no
    longer exists, or is that of a fact without a document.
    """
    rows = session.execute(_PASSAGES, {"id": sentence_id}).all()
    read = _windows_of_rows(session, rows, fact_filter, as_of)
    return tuple(read[row.id] for row in rows)


def read_stretches(session: Session, places: Sequence[tuple[int, int, int]]) -> list[SaidWindow]:
    """Read stretches of documents, given as (document id, start, end), as windows with their facts, in this order."""
    numbers = range(len(places))
    documents, starts, ends = ([place[part] for place in places] for part in range(3))
    values = {"numbers": list(numbers), "documents": documents, "starts": starts, "ends": ends}
    read = _windows_of_rows(session, session.execute(_STRETCHES, values).all(), every_fact_in_scope(), None)
    return [read[number] for number in numbers]


def _windows_of_rows(
    session: Session, rows: Sequence[Row[Any]], fact_filter: FactFilter, as_of: int | None
) -> dict[int, SaidWindow]:
    facts = defaultdict[int, list[Row[Any]]](list)
    for fact in session.execute(
        _FACTS if as_of is None else _FACTS_THEN,
        {
            "ids": [row.id for row in rows],
            "documents": [row.document_id for row in rows],
            "starts": [row.span_start for row in rows],
            "ends": [row.span_end for row in rows],
            **_fact_parameters(fact_filter, as_of),
        },
    ):
        facts[fact.sentence_id].append(fact)
    return {row.id: _window_of_document(row, facts[row.id]) for row in rows}


def _fact_parameters(fact_filter: FactFilter, as_of: int | None) -> dict[str, Any]:
    return fact_filter.parameters | ({} if as_of is None else {"as_of": as_of})


def _window_of_document(row: Row[Any], facts: Sequence[Row[Any]]) -> SaidWindow:
    text, standing = _apply_values(row.said, row.span_start, facts)
    about = (row.corpus, row.external_id, row.title, row.uri, row.licence, row.revision)
    source = Source(row.document_id, *about, row.span_start, row.span_end)
    return SaidWindow(row.id, text, source, standing, row.led or "")


def _window_of_fact(row: Row[Any], fact: Row[Any]) -> SaidWindow:
    """Make the window of a fact without a document: its question, then its value."""
    text = f"{row.question} {fact.value}"
    start = len(text) - len(fact.value)
    return SaidWindow(
        row.id, text, None,
        (FactInWindow(start, len(text), 0, 0, fact.fact_id, fact.version, fact.value, fact.review),),
    )  # fmt: skip


def _apply_values(text: str, offset: int, facts: Sequence[Row[Any]]) -> tuple[str, tuple[FactInWindow, ...]]:
    """Put current values in place of corrected ones; give the text, and the facts with their offsets in it.

    A fact that an end of the text cuts, or that begins inside another, keeps the words of the document. If its current
    value does not contain these, it counts as deleted.
    """
    parts: list[str] = []
    standing: list[FactInWindow] = []
    at = grown = 0  # what of `text` is copied, and by how much it grew
    for fact in facts:
        start, end = max(fact.span_start - offset, 0), min(fact.span_end - offset, len(text))
        is_whole = (start, end) == (fact.span_start - offset, fact.span_end - offset)
        begins, value = start + grown, text[start:end]
        if start >= at:
            if is_whole and fact.version is not None:
                value = fact.value
            parts += (text[at:start], value)
            at = end
            grown += len(value) - (end - start)
        is_current = fact.version is not None and value in fact.value
        standing.append(
            FactInWindow(
                begins, begins + len(value), start + offset, end + offset, fact.fact_id,
                fact.version if is_current else None, fact.value if is_current else "", fact.review,
            )
        )  # fmt: skip
    parts.append(text[at:])
    return "".join(parts), tuple(standing)


def is_unchanged(before: SaidWindow, now: Mapping[int, SaidWindow]) -> bool:
    """Tell whether a window has the same text and facts among the windows of now."""
    return now.get(before.sentence_id) == before
