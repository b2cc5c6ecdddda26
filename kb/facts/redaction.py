"""Redaction: puts one U+2588 in place of each character that was erased, so that every other offset stays right.

The functions take the session first and never commit. They redact documents, which hold the texts of facts;
`kb.facts.quotations` redacts what quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, digests
from colmlm.kb.errors import InvalidValue
from colmlm.kb.facts import sentences
from colmlm.kb.facts.records import MENTIONED, Mentioned
from colmlm.kb.tables import IS_SAID, DocumentRow, FactRow, FactVersionRow
from colmlm.kb.texts.wording import Finder, Phrases, Span, may_say

MARK = "\u2588"
CONTEXT = 20  # characters on either side of a span that must match to find it in another edition of the text


def as_mentioned(kept: object) -> Mentioned | None:
    """Reads a stored choice of mentions; gives None where there was none, or one that this version does not know."""
    return next((known for known in MENTIONED if known == kept), None)


def check_mentioned(asked: str) -> None:
    """Raises `InvalidValue` for a choice of mentions that there is not, of which an erasure would make another."""
    if as_mentioned(asked) is None:
        raise InvalidValue("choice of mentions", f"it is none of {', '.join(MENTIONED)}")


@dataclass(frozen=True, slots=True)
class ErasureTarget:
    """A fact to erase, with every text it has. `text` and `spans` are its document's: the text and all fact spans.

    `former` is the fact as it asked and stood before it was mended, with the same values. A fact of a release has no
    document here that says it, and as `start` its number in the sample of this external id.
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
        """The fact as it is, then as it was."""
        return self, *self.former

    @property
    def marker(self) -> str:
        """The marks that replace the value of an erased fact, as many as its span has characters."""
        return MARK * max(1, self.end - self.start)

    @property
    def strings(self) -> tuple[str, ...]:
        """Every text of this fact, each once."""
        asked = (said for state in self.states for said in (state.question, state.answer))
        return tuple(dict.fromkeys(filter(None, (*self.values, *asked))))


def blank(text: str, spans: Iterable[Span]) -> str:
    """Gives the text with these spans redacted."""
    for start, end in spans:
        text = text[:start] + MARK * (end - start) + text[end:]
    return text


def apart(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Gives those of the spans that overlap none of the others."""
    return [span for span in spans if not touches(span, others)]


def touches(span: Span, others: Iterable[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def redact_json(value: Any, finder: Finder) -> Any:
    """Gives the JSON value with every span that the finder finds in its strings redacted; names and numbers stay."""
    if isinstance(value, str):
        return blank(value, finder.spans(value))
    if isinstance(value, dict):
        return {name: redact_json(item, finder) for name, item in value.items()}
    if isinstance(value, list):
        return [redact_json(item, finder) for item in value]
    return value


def redact_documents(
    session: Session, targets: Sequence[ErasureTarget], mentions: Mentioned = "same-document"
) -> list[int]:
    """Redacts the facts in their documents, replaced ones too, and gives the ids of the rows that changed.

    It also redacts mentions: the facts' values elsewhere in these texts, or with "all" in the texts of every document.
    The spans of other facts stay.
    """
    by_source: dict[tuple[str, str], list[ErasureTarget]] = {}
    for target in targets:
        if target.document_id is not None:
            by_source.setdefault((target.corpus, target.external_id), []).append(target)
    erased = [target.fact_id for target in targets]
    changed: list[int] = []
    for source, of_source in by_source.items():
        rows = session.scalars(
            select(DocumentRow)
            .where(tuple_(DocumentRow.corpus, DocumentRow.external_id).in_([source]))
            .order_by(DocumentRow.id)
            .execution_options(populate_existing=True)
        )
        for row in rows:
            own = partial(_spans_in, row, of_source, in_all=mentions != "none")
            changed += [row.id] if _redact_document(session, row, own, erased) else []
    if mentions == "all":
        changed += _redact_mentions(session, targets, erased)
    session.flush()
    sentences.write_documents(session, set(changed))
    return sorted(set(changed))


def _redact_mentions(session: Session, targets: Sequence[ErasureTarget], erased: list[int]) -> list[int]:
    """Redacts the values in every document's text."""
    values = {value for target in targets for value in target.values}
    said = Phrases(values)
    ids = session.scalars(
        select(DocumentRow.id).where(may_say(DocumentRow.text, values)).order_by(DocumentRow.id)
    ).all()
    rows = (session.get_one(DocumentRow, document_id, populate_existing=True) for document_id in ids)
    return [
        row.id for row in rows if _redact_document(session, row, partial(_mentioned, row.text, said), erased)
    ]


def _mentioned(text: str, said: Phrases, apart_from: Sequence[Span]) -> list[Span]:
    return apart(said.spans(text), apart_from)


def _redact_document(
    session: Session, row: DocumentRow, spans_in: Callable[[Sequence[Span]], list[Span]], erased: list[int]
) -> bool:
    staying = _facts_of(session, row.id, erased)
    redacted = blank(row.text, spans_in([(span.start, span.end) for span in staying]))
    if redacted == row.text:
        return False
    about = {name: getattr(row, name) for name in ("title", "uri", "licence", "revision")}
    row.text = redacted
    # The digests are made of the redacted text: those of the text before would let anyone confirm a guess.
    row.sha256, row.record_sha256 = digests(
        AnnotatedDocument(row.external_id, redacted, tuple(staying), **about)
    )
    return True


def _spans_in(
    row: DocumentRow, targets: Sequence[ErasureTarget], apart_from: Sequence[Span], *, in_all: bool
) -> list[Span]:
    """Finds the spans where an edition of the facts' document says them. Mentions in replaced editions always count."""
    found = [span for target in targets for span in _stated(row, target, apart_from)]
    former = [state for target in targets for state in target.former if state.document_id is not None]
    found += apart((span for state in former for span in _stated(row, state, apart_from)), apart_from)
    if in_all or row.replaced_seq is not None:
        said = Phrases(value for target in targets for value in target.values)
        found += apart(said.spans(row.text), apart_from)
    return found


def _stated(row: DocumentRow, target: ErasureTarget, apart_from: Sequence[Span]) -> list[Span]:
    """Finds the fact's span in an edition of its document by the characters around it, outside other facts' spans."""
    if row.id == target.document_id:
        found = [(target.start, target.end)]
    else:
        first, last = max(0, target.start - CONTEXT), target.end + CONTEXT
        sentence = target.text[first:last]
        found = [
            (m.start() + target.start - first, m.start() + target.end - first)
            for m in re.finditer(re.escape(sentence), row.text)
        ]
        found = apart(found, apart_from)
    return found


def _facts_of(session: Session, document_id: int, erased: list[int]) -> list[FactSpan]:
    """Gives the facts that the document still has, in its order and as they were ingested."""
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
    """Gives the redacted values of those columns of a row that redaction changes."""
    redacted = {name: redact_json(getattr(row, name), finder) for name in names}
    return {name: value for name, value in redacted.items() if value != getattr(row, name)}
