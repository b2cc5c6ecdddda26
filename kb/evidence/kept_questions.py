"""Withholds the past in kept questions and in what runs were answered, by the facts that answered them.

A value is past where one of its facts is deleted, or says something else by now. Past texts are withheld wherever the
question or the expected values say them, but for what the facts still say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from colmlm.kb.evidence.withholding import texts_of
from colmlm.kb.facts.redaction import MARK, apart, blank
from colmlm.kb.questions import reading
from colmlm.kb.questions.records import AskedItem, KeptQuestion, RunComparison
from colmlm.kb.texts.wording import Phrases, normalised

_Texts = Mapping[int, tuple[str | None, tuple[str, ...]]]


def questions(session: Session, found: Sequence[KeptQuestion]) -> list[KeptQuestion]:
    """Gives these questions with past texts withheld."""
    texts = texts_of(session, [fact_id for one in found for fact_id in one.fact_ids])
    return [_question(one, _Past.of(texts, one.fact_ids)) for one in found]


def items(session: Session, found: Sequence[AskedItem]) -> list[AskedItem]:
    """Gives what came of questions with the past texts of all facts that ever answered them withheld."""
    answered = reading.facts_of(session, [one.question_id for one in found])
    facts = {one.question_id: {*answered.get(one.question_id, ()), *one.fact_ids} for one in found}
    texts = texts_of(session, [fact_id for every in facts.values() for fact_id in every])
    return [_item(one, texts, sorted(facts[one.question_id])) for one in found]


def comparison(session: Session, found: RunComparison) -> RunComparison:
    """Gives a comparison with past texts withheld in both runs."""
    both = [item for one in found.items for item in (one.before, one.after) if item is not None]
    shown = iter(items(session, both))
    return replace(
        found,
        items=tuple(
            replace(one, before=one.before and next(shown), after=one.after and next(shown))
            for one in found.items
        ),
    )


@dataclass(frozen=True, slots=True)
class _Past:
    """Past texts, and the present ones that stay even where they are among these."""

    gone: Phrases
    stays: Phrases

    @classmethod
    def of(cls, texts: _Texts, fact_ids: Sequence[int], *also: str) -> _Past:
        known = [texts[fact_id] for fact_id in fact_ids if fact_id in texts]
        past = [said for _, every in known for said in every]
        return cls(Phrases([*past, *also]), Phrases(now for now, _ in known if now is not None))

    def shown(self, text: str) -> str:
        return blank(text, apart(self.gone.spans(text), self.stays.spans(text))) if self.gone else text


def _question(one: KeptQuestion, past: _Past) -> KeptQuestion:
    return replace(one, question=past.shown(one.question), expected=tuple(map(past.shown, one.expected)))


def _item(one: AskedItem, texts: _Texts, fact_ids: Sequence[int]) -> AskedItem:
    is_past = one.value is not None and any(
        not _says(texts[fact_id][0], one.value) for fact_id in one.fact_ids if fact_id in texts
    )
    past = _Past.of(texts, fact_ids, *([one.value] if is_past and one.value else []))
    return replace(
        one,
        question=past.shown(one.question),
        expected=tuple(map(past.shown, one.expected)),
        value=MARK * len(one.value) if is_past and one.value else one.value,
    )


def _says(now: str | None, value: str) -> bool:
    """Says whether a fact still says this value: all of it, a part, or more."""
    if now is None:
        return False
    said, current = f" {normalised(value)} ", f" {normalised(now)} "
    return said in current or current in said
