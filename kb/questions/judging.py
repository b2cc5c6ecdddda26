"""Judging: says whether what was heard is right, and else why not.

Right is what the calibration of answers takes for right (`kb.answers.outcomes`): the value is an expected one, or holds
one. The reasons are tried in this order, and each is decided by what is stored:

- *withheld*: a deleted fact would have said it, so that nothing was said;
- *below the threshold*: the likeliest words were right, and not likely enough;
- *cut value*: the likeliest words are a part of an expected value;
- *another answer*: a text that the question was looked for in holds an expected value, and other words were likelier;
- *not found*: none of these texts holds one, but a live fact or document of the corpus does;
- *no fact holds it*: none does.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.answers.outcomes import ARTICLES, RIGHT, outcome
from colmlm.kb.answers.windows import windows
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.facts.sought import SoughtText
from colmlm.kb.questions.hearing import Asker, Heard
from colmlm.kb.questions.records import (
    ANOTHER,
    BELOW,
    CUT,
    NOT_FOUND,
    NOT_HELD,
    WITHHELD,
    AskedItem,
    KeptQuestion,
)
from colmlm.kb.store.store import Store
from colmlm.kb.tables import DocumentRow, FactRow, FactVersionRow, SentenceRow

MOST = 1000  # values, and sentences, with all words of an expected value, that are compared with it


def wanted(kept: KeptQuestion) -> tuple[str, ...]:
    """Gives the expected values that nothing was erased of."""
    return tuple(value for value in kept.expected if MARK not in value)


def is_askable(kept: KeptQuestion) -> bool:
    """Says whether enough is left of a question to be asked."""
    return MARK not in kept.question and (bool(wanted(kept)) or not kept.expected)


def judged(store: Store, corpus: str | None, kept: KeptQuestion, heard: Heard, asker: Asker) -> AskedItem:
    """Judges what was heard to a question whose answer should be in this corpus (None: in any)."""
    result, reason = _outcome(kept, heard), None
    if result != "right":
        likeliest = _of_likeliest(heard, wanted(kept)) if kept.expected else ANOTHER
        reason = likeliest or _of_texts(store, corpus, kept, asker)
    return AskedItem(
        question=kept.question,
        expected=kept.expected,
        value=heard.value,
        fact_id=heard.fact_id,
        outcome=result,
        reason=reason,
        score=heard.score,
        question_id=kept.question_id,
        fact_ids=heard.fact_ids if heard.value is not None or heard.withheld else (),
    )


def _outcome(kept: KeptQuestion, heard: Heard) -> str:
    if not kept.expected:
        return "right" if heard.value is None else "wrong"
    if outcome(heard.value, wanted(kept)) in RIGHT:
        return "right"
    return "abstained" if heard.value is None else "wrong"


def _of_likeliest(heard: Heard, wanted: Sequence[str]) -> str | None:
    """Gives the reason that follows from what was likeliest, if one does."""
    if heard.withheld:
        return WITHHELD
    best = outcome(heard.best, wanted)
    if best in RIGHT:
        return BELOW
    return CUT if best == "near" else None


def _of_texts(store: Store, corpus: str | None, kept: KeptQuestion, asker: Asker) -> str:
    if any(outcome(text, wanted(kept)) in RIGHT for text in asker.looked_in(kept.question)):
        return ANOTHER
    with store.sessions() as session:
        held = any(_is_said(session, value, corpus) for value in wanted(kept))
    return NOT_FOUND if held else NOT_HELD


def _is_said(session: Session, value: str, corpus: str | None) -> bool:
    """Says whether a live fact or a current document says this value. Text under deleted facts does not count."""
    sought = SoughtText.read(session, ARTICLES.sub(" ", value.lower()))
    values = select(FactVersionRow.value).where(
        FactVersionRow.to_seq.is_(None), sought.within(FactVersionRow.value)
    )
    if corpus is not None:
        values = values.join(FactRow, FactRow.id == FactVersionRow.fact_id).join(
            DocumentRow, (DocumentRow.id == FactRow.document_id) & (DocumentRow.corpus == corpus)
        )
    if any(outcome(said, [value]) in RIGHT for said in session.scalars(values.limit(MOST))):
        return True
    if (with_words := sought.of_sentences()) is None:
        return False
    sentences = select(SentenceRow.id).where(with_words)
    if corpus is not None:
        sentences = sentences.join(
            DocumentRow, (DocumentRow.id == SentenceRow.document_id) & (DocumentRow.corpus == corpus)
        )
    read = windows(session, session.scalars(sentences.limit(MOST)).all())
    return any(outcome(window.shown(), [value]) in RIGHT for window in read.values())
