"""Redaction: one U+2588 for each character of what was erased, so that every other offset stays right.

Session first, nothing here commits. The texts of facts lie in documents; what quotes them is in `kb.facts.quotations`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, digests
from colmlm.kb.tables import Document, Fact, FactVersion
from colmlm.kb.texts.wording import Finder, Phrases, Span, may_say

MARK = "\u2588"
Mentioned = Literal["same-document", "all", "none"]  # where else than at its span a fact's value is redacted
MENTIONED: tuple[Mentioned, ...] = get_args(Mentioned)
CONTEXT = 20  # characters to either side by which a sentence is known again in another text


def as_mentioned(kept: object) -> Mentioned | None:
    """The choice as it was kept; None where none was, or one that is not known here."""
    return next((known for known in MENTIONED if known == kept), None)


@dataclass(frozen=True, slots=True)
class Target:
    """A fact to erase, with every text that tells of it. `text` and `spans` are its document's, all spans of it."""

    fact_id: int
    question: str | None
    answer: str | None
    values: tuple[str, ...]  # by version; the first is what the document says
    document_id: int | None = None
    corpus: str = ""
    external_id: str = ""
    start: int = 0
    end: int = 0
    text: str = ""
    spans: tuple[Span, ...] = ()

    @property
    def marker(self) -> str:
        """What stands for the value of an erased fact: as long as its span."""
        return MARK * max(1, self.end - self.start)

    @property
    def strings(self) -> tuple[str, ...]:
        """Everything this fact says, each once."""
        return tuple(dict.fromkeys(filter(None, (*self.values, self.question, self.answer))))


def blank(text: str, spans: Iterable[Span]) -> str:
    """The text with these spans redacted."""
    for start, end in spans:
        text = text[:start] + MARK * (end - start) + text[end:]
    return text


def apart(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Those of the spans that touch none of the others."""
    return [span for span in spans if not touches(span, others)]


def touches(span: Span, others: Iterable[Span]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in others)


def redact_json(value: Any, finder: Finder) -> Any:
    """The JSON value with everything that is found in its strings redacted. Names of members and numbers stay."""
    if isinstance(value, str):
        return blank(value, finder.spans(value))
    if isinstance(value, dict):
        return {name: redact_json(item, finder) for name, item in value.items()}
    if isinstance(value, list):
        return [redact_json(item, finder) for item in value]
    return value


def redact_documents(
    session: Session, targets: Sequence[Target], mentions: Mentioned = "same-document"
) -> list[int]:
    """Redact the facts in every text of their documents, replaced ones too; the ids of the rows this changed.

    And where these texts mention the values elsewhere, or with "all" the texts of any document do; but not what
    another fact stands on.
    """
    by_source: dict[tuple[str, str], list[Target]] = {}
    for target in targets:
        if target.document_id is not None:
            by_source.setdefault((target.corpus, target.external_id), []).append(target)
    erased = [target.fact_id for target in targets]
    changed: list[int] = []
    for source, of_source in by_source.items():
        rows = session.scalars(
            select(Document)
            .where(tuple_(Document.corpus, Document.external_id).in_([source]))
            .order_by(Document.id)
            .execution_options(populate_existing=True)
        )
        for row in rows:
            own = partial(_spans_in, row, of_source, in_all=mentions != "none")
            changed += [row.id] if _redact_document(session, row, own, erased) else []
    if mentions == "all":
        changed += _redact_mentions(session, targets, erased)
    session.flush()
    return sorted(set(changed))


def _redact_mentions(session: Session, targets: Sequence[Target], erased: list[int]) -> list[int]:
    """Redact the values in every document's text."""
    values = {value for target in targets for value in target.values}
    said = Phrases(values)
    ids = session.scalars(
        select(Document.id).where(may_say(Document.text, values)).order_by(Document.id)
    ).all()
    rows = (session.get_one(Document, document_id, populate_existing=True) for document_id in ids)
    return [
        row.id for row in rows if _redact_document(session, row, partial(_mentioned, row.text, said), erased)
    ]


def _mentioned(text: str, said: Phrases, apart_from: Sequence[Span]) -> list[Span]:
    return apart(said.spans(text), apart_from)


def _redact_document(
    session: Session, row: Document, spans_in: Callable[[Sequence[Span]], list[Span]], erased: list[int]
) -> bool:
    staying = _facts_of(session, row.id, erased)
    redacted = blank(row.text, spans_in([(span.start, span.end) for span in staying]))
    if redacted == row.text:
        return False
    about = {name: getattr(row, name) for name in ("title", "uri", "licence", "revision")}
    row.text = redacted
    # Of the text as it is now: a digest of the one before would let anyone confirm a guess.
    row.sha256, row.record_sha256 = digests(
        AnnotatedDocument(row.external_id, redacted, tuple(staying), **about)
    )
    return True


def _spans_in(
    row: Document, targets: Sequence[Target], apart_from: Sequence[Span], *, in_all: bool
) -> list[Span]:
    """Where a text of the facts' document says them. A text that nobody reads any more is searched in any case."""
    found = [span for target in targets for span in _stated(row, target, apart_from)]
    if in_all or row.replaced_seq is not None:
        said = Phrases(value for target in targets for value in target.values)
        found += apart(said.spans(row.text), apart_from)
    return found


def _stated(row: Document, target: Target, apart_from: Sequence[Span]) -> list[Span]:
    """Where a text of the fact's document states it, by its sentence; what another fact stands on is that one's."""
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
    """The facts that the document's record still has, as they were ingested, in its order."""
    statement = (
        select(Fact, FactVersion.value)
        .join(FactVersion, (FactVersion.fact_id == Fact.id) & (FactVersion.version == 1))
        .where(Fact.document_id == document_id, Fact.erased_seq.is_(None), Fact.id != func.all(erased))
        .order_by(Fact.ordinal)
    )
    return [
        FactSpan(fact.span_start or 0, fact.span_end or 0, value, fact.question, fact.answer)
        for fact, value in session.execute(statement)
    ]
