"""A question to suggest after documents were added: one that was asked, and answered from the fact that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.answers.records import Answer
from colmlm.kb.corpus.format import AnnotatedDocument

MOST_TO_TRY = 12
OF_A_DOCUMENT = 3
WORDS_BESIDE = 2  # in an answer, so many words more than twice those of its value


@dataclass(frozen=True, slots=True)
class QuestionToTry:
    """A question and the fact that answers it: in this document, from `start` to `end`, with this value."""

    question: str
    document: str
    start: int
    end: int
    value: str


def questions_to_try(document: AnnotatedDocument) -> list[QuestionToTry]:
    """List a few questions that facts of a document were given, the short ones first."""
    asked = [
        QuestionToTry(fact.question, document.external_id, fact.start, fact.end, fact.value)
        for fact in document.facts
        if fact.question is not None and fact.question.endswith("?")
    ]
    return sorted(asked, key=_num_words)[:OF_A_DOCUMENT]


def _num_words(one: QuestionToTry) -> int:
    return len(one.question.split())


def answered_fact(runtime: Runtime, corpus: str, to_try: Sequence[QuestionToTry]) -> int | None:
    """Asks the questions, and gives the first fact found by its own; None where none is, or nothing can read."""
    from colmlm.model.lm.config import CheckpointError
    from colmlm.model.lm.wheels import BaseNotFound

    try:
        answers = runtime.answers
    except (CheckpointError, BaseNotFound):
        return None
    ranked = sorted(to_try, key=_num_words)
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
