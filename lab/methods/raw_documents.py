"""Asks people's questions of raw texts: a knowledge base of its own gets the texts as `corpus add` would, and answers.

People's marks are used as gold only. A *right* answer equals a gold one or holds it, after SQuAD's normalisation, and
stands in the text where it says; a *near* one is held by a gold one. An answer that its document does not say at its
place is *made up*.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from colmlm.kb.answers.calibration import outcome
from colmlm.kb.answers.records import SPAN, Answer
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.squad import SquadQuestion, read_questions, read_squad
from colmlm.kb.texts.wording import Span

OUTCOMES = ("exact", "holds", "near", "wrong", "abstained", "made_up")


@dataclass(frozen=True, slots=True)
class RawQuestion:
    """A question, its gold answers, the document that has them, and where the first stands there."""

    text: str
    answers: tuple[str, ...]
    document: str
    place: Span | None


@dataclass(frozen=True, slots=True)
class RawTexts:
    """Texts without marks, the questions that they answer, and questions of texts that were left out."""

    documents: tuple[AnnotatedDocument, ...]
    questions: tuple[RawQuestion, ...]
    unanswerable: tuple[RawQuestion, ...]


def draw(squad: Path, documents: int | None, questions: int | None, absent: int, seed: int) -> RawTexts:
    """Draws paragraphs of a SQuAD file, with their questions, and questions of other paragraphs.

    Without a number all are taken; a paragraph in twenty is then left out if questions without an answer are wanted.
    """
    texts = [
        AnnotatedDocument(one.external_id, one.text, (), title=one.title)
        for parsed in read_squad(squad)
        if (one := parsed.document) is not None
    ]
    order = random.Random(seed)
    order.shuffle(texts)
    taken = texts[: documents if documents is not None else len(texts) - (len(texts) // 20 if absent else 0)]
    inside = {one.external_id for one in taken}
    asked = [_question(one) for one in read_questions(squad)]
    answerable = [one for one in asked if one.document in inside]
    others = [one for one in asked if one.document not in inside]
    order.shuffle(answerable)
    order.shuffle(others)
    return RawTexts(tuple(taken), tuple(answerable[:questions]), tuple(others[:absent]))


def _question(one: SquadQuestion) -> RawQuestion:
    return RawQuestion(one.question, one.answers, one.document, one.place)


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """A question with the answer that was said, its score and outcome, the seconds it took, the document that it cites
    with the place there, and its grain.
    """

    question: RawQuestion
    said: str | None
    score: float
    outcome: str
    seconds: float
    cited: tuple[str, int, int] | None = None
    grain: str = SPAN

    def at(self, threshold: float) -> str:
        """Gives the outcome at a threshold."""
        return self.outcome if self.said is not None and self.score >= threshold else "abstained"


def ask_all(
    questions: Sequence[RawQuestion],
    answer: Callable[[str], Answer],
    texts: Iterable[AnnotatedDocument],
    advance: Callable[[int, int | None], None],
) -> list[RawAnswer]:
    """Asks every question, and checks each answer against the text that it cites."""
    by_id = {one.external_id: one.text for one in texts}
    done: list[RawAnswer] = []
    for question in questions:
        begun = time.perf_counter()
        got = answer(question.text)
        seconds = time.perf_counter() - begun
        stands = got.answer is None or _stands(got, by_id)
        found = outcome(got.answer, question.answers) if stands else "made_up"
        cited = (got.source.external_id, got.source.start, got.source.end) if got.source else None
        done.append(RawAnswer(question, got.answer, got.score, found, seconds, cited, got.grain))
        advance(len(done), len(questions))
    return done


def _stands(answer: Answer, by_id: dict[str, str]) -> bool:
    source = answer.source
    return (
        source is not None and by_id.get(source.external_id, "")[source.start : source.end] == answer.answer
    )


def coverage(texts: RawTexts, marked: Iterable[AnnotatedDocument]) -> dict[str, float]:
    """Gives the shares of the gold spans that are a fact, and that a fact overlaps, and the facts in 100 words."""
    spans = {one.external_id: [(f.start, f.end) for f in one.facts] for one in marked}
    placed = [one for one in texts.questions if one.place is not None]
    exact = overlapped = 0
    for one in placed:
        assert one.place is not None
        start, end = one.place
        of = spans.get(one.document, [])
        exact += (start, end) in of
        overlapped += any(start < e and s < end for s, e in of)
    words = sum(len(one.text.split()) for one in texts.documents)
    facts = sum(map(len, spans.values()))
    return {
        "coverage": overlapped / max(1, len(placed)),
        "coverage_exact": exact / max(1, len(placed)),
        "facts_per_100_words": 100 * facts / max(1, words),
    }
