"""A question to suggest after documents were added: one that was asked, and answered from the fact that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.records import Answer
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.texts.sentences import sentence_around, sentence_ends

MOST_TO_TRY = 12
OF_A_DOCUMENT = 3
LEAST_WORDS, MOST_WORDS = 4, 14  # before a fact in its sentence, for these words to ask for it
POINTING_WORDS = 2  # "Of those, four were" says as little by itself as "They were"
WORDS_BESIDE = 2  # in an answer, so many words more than twice those of its value
_BEFORE_VALUES = "at by for from in is of on since to until was were with"
_ASKING = frozenset(_BEFORE_VALUES.split())
_POINTERS = "he her his it its she that their there these they this those"
_POINTING = frozenset(_POINTERS.split())


@dataclass(frozen=True, slots=True)
class QuestionToTry:
    """A question and the fact that answers it: in this document, from `start` to `end`, with this value."""

    question: str
    document: str
    start: int
    end: int
    value: str


def questions_to_try(document: AnnotatedDocument) -> list[QuestionToTry]:
    """Gives a few questions that facts of a document answer, those first that sound most like one."""
    ends = sentence_ends(document.text)
    asked = [
        QuestionToTry(question, document.external_id, fact.start, fact.end, fact.value)
        for fact in document.facts
        if (question := question_of(document.text, ends, fact.start, fact.end, fact.question)) is not None
    ]
    return sorted(asked, key=_sounds_odd)[:OF_A_DOCUMENT]


def _sounds_odd(one: QuestionToTry) -> tuple[int, int]:
    """Ranks questions before beginnings of sentences, and of these the short ones that end in a preposition first."""
    said = one.question.split()
    rank = 0 if said[-1].endswith("?") else 1 if said[-1] in _ASKING else 2
    return rank, len(said)


def question_of(text: str, ends: Sequence[int], start: int, end: int, question: str | None) -> str | None:
    """Gives the question of a fact, or the words before it in its sentence where they say what is asked for."""
    if question is not None:
        return question
    opening = text[sentence_around(ends, start, end)[0] : start].split()
    points_back = not _POINTING.isdisjoint(word.lower().strip(",;:") for word in opening[:POINTING_WORDS])
    says = LEAST_WORDS <= len(opening) <= MOST_WORDS and not points_back
    return " ".join(opening) if says else None


def answered_fact(runtime: Runtime, corpus: str, to_try: Sequence[QuestionToTry]) -> int | None:
    """Asks the questions, and gives the first fact found by its own; None where none is, or nothing can read."""
    from colmlm.model.lm.config import CheckpointError
    from colmlm.model.lm.wheels import BaseNotFound

    try:
        answers = runtime.answers
    except (CheckpointError, BaseNotFound):
        return None
    ranked = sorted(to_try, key=_sounds_odd)
    found = (_found(answers.ask(one.question, nearest=0), corpus, one) for one in ranked)
    return next((fact_id for fact_id in found if fact_id is not None), None)


def is_told_by(value: str, answer: str) -> bool:
    """Says whether an answer is this value, or little more: one that quotes the question as well is no good example."""
    return value in answer and len(answer.split()) <= 2 * len(value.split()) + WORDS_BESIDE


def _found(answer: Answer, corpus: str, asked: QuestionToTry) -> int | None:
    """Gives the fact that was asked for where the answer is its place, and says its value."""
    source = answer.source
    if source is None or (source.corpus, source.external_id) != (corpus, asked.document):
        return None
    touches = source.start < asked.end and asked.start < source.end
    says = touches and is_told_by(asked.value, answer.answer or "")
    return next((fact.fact_id for fact in answer.facts if says and fact.value == asked.value), None)
