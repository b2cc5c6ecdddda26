"""Redacts new outputs of what was erased while they were decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.evidence.records import NewOutput
from colmlm.kb.facts import quoted
from colmlm.kb.facts.erased_texts import ErasedTexts, TextOrigin
from colmlm.kb.facts.quoting_outputs import without
from colmlm.kb.tables import FactRow, answer_modes
from colmlm.kb.texts.wording import Span


def without_erased(
    session: Session, made: NewOutput, erased: Mapping[int, int]
) -> tuple[NewOutput, int | None]:
    """Redacts an output before it is stored; gives it with the last erasure that redacted it (None: none did).

    Erasures must be held off. Splices of facts that are `erased` by now, each by that change, are redacted, and in the
    rest of the output every text that was erased since the change that the decoder's lookups had seen, and what is
    redacted in the document that it quotes.
    """
    texts = ErasedTexts.counting(session, said := TextOrigin(frozenset(erased), seq=made.seq))
    marks = _marks(session, made)
    if not (erased or texts or marks):
        return made, None
    prompt, output = without(made.prompt, made.output, made.splices, erased.keys(), texts.within(said), marks)
    if not erased and (prompt, output) == (made.prompt, made.output):
        return made, None
    # A query is made from what stands before it, and all lookups of an answer have the one of its question.
    all_go = prompt != made.prompt or (made.mode in answer_modes and bool(erased))
    splices = tuple(
        replace(s, query=None) if all_go or s.outcome != "hit" or s.fact_id in erased else s
        for s in made.splices
    )
    last = max(texts.last, *erased.values(), 0) or _last_erasure(session)
    return replace(made, prompt=prompt, output=output, splices=splices), last


def _marks(session: Session, made: NewOutput) -> list[Span]:
    """Gives the spans of the output that are redacted by now in the document that it quotes."""
    if (quotes := made.quotes) is None:
        return []
    text = quoted.stretch(session, quotes.document_id, quotes.start, quotes.end)
    return quoted.marked(len(made.output), (quotes.start, quotes.end), made.splices, text or "")


def _last_erasure(session: Session) -> int | None:
    return session.scalar(select(func.max(FactRow.erased_seq)))
