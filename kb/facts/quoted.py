"""Quoted words: those of an output that no fact stands behind and that are a document's, since the output quotes it.

What is redacted in the document there is redacted in the output too, and so it is with what is withheld.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.redaction import MARK
from colmlm.kb.tables import DocumentRow, GenerationRow
from colmlm.kb.texts.wording import Span


class QuotedSplice(Protocol):
    """A splice of an output that quotes: where it says a fact, and where the quoted document does."""

    @property
    def output_start(self) -> int: ...
    @property
    def output_end(self) -> int: ...
    @property
    def quoted_start(self) -> int | None: ...
    @property
    def quoted_end(self) -> int | None: ...


class Between(NamedTuple):
    """A stretch of an output that no fact covers, and the stretch of the quoted text that it stands for."""

    output: Span
    quoted: Span


def between(length: int, quoted: Span, splices: Sequence[QuotedSplice]) -> Iterator[Between]:
    """Gives the stretches between the splices of an output of this length, which quotes this span of a document.

    Splices that begin within another are passed over. A stretch and its quoted one are equally long if the output says
    what the document does.
    """
    said, (at, end) = 0, quoted
    for splice in sorted(splices, key=lambda one: (one.output_start, -one.output_end)):
        if splice.quoted_start is None or splice.quoted_end is None:
            continue
        if splice.output_start >= said and splice.quoted_start >= at:
            yield Between((said, splice.output_start), (at, splice.quoted_start))
            said, at = splice.output_end, splice.quoted_end
    yield Between((said, length), (at, end))


def marked(length: int, quoted: Span, splices: Sequence[QuotedSplice], text: str) -> list[Span]:
    """Gives the spans of an output that stand for marks in `text`, which is the quoted stretch as it is shown now.

    A stretch that is not as long as what it stands for is marked as a whole where that has any mark.
    """
    found: list[Span] = []
    for (start, end), (first, last) in between(length, quoted, splices):
        shown = text[first - quoted[0] : last - quoted[0]]
        if MARK not in shown:
            continue
        if len(shown) != end - start:
            found.append((start, end))
        else:
            found += [(start + n, start + n + 1) for n, character in enumerate(shown) if character == MARK]
    return found


def is_quoted(output: str, quoted: Span, splices: Sequence[QuotedSplice], text: str) -> bool:
    """Says whether an output says between its splices what the quoted stretch does, whose marks stand for anything."""
    for (start, end), (first, last) in between(len(output), quoted, splices):
        said, shown = output[start:end], text[first - quoted[0] : last - quoted[0]]
        if len(said) != len(shown) or any(a != b != MARK for a, b in zip(said, shown, strict=True)):
            return False
    return True


# What an output quotes, as its document says it now, in a statement (SQL) that joins both.
STRETCH = func.substr(
    DocumentRow.text, GenerationRow.quoted_start + 1, GenerationRow.quoted_end - GenerationRow.quoted_start
)


def with_marks() -> ColumnElement[bool]:
    """Gives a condition (SQL) for the outputs that quote a stretch in which something is redacted."""
    return (
        select(DocumentRow.id)
        .where(DocumentRow.id == GenerationRow.document_id, func.strpos(STRETCH, MARK) > 0)
        .exists()
    )


def stretches(session: Session, generation_ids: Collection[int]) -> dict[int, str]:
    """Gives the stretch that each of these outputs quotes, as its document says it now; others are left out."""
    statement: Any = select(GenerationRow.id, STRETCH.label("stretch")).join(
        DocumentRow, DocumentRow.id == GenerationRow.document_id
    )
    rows = session.execute(statement.where(GenerationRow.id == func.any(list(generation_ids))))
    return {row.id: row.stretch for row in rows}


def stretch(session: Session, document_id: int, start: int, end: int) -> str | None:
    """Gives a stretch of a document; None where there is no such document."""
    said = func.substr(DocumentRow.text, start + 1, end - start)
    return session.scalar(select(said).where(DocumentRow.id == document_id))
