"""What SQuAD files ask about their documents, as a reader learns it. It needs no database, and no runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.squad import read_questions
from colmlm.model.reader.config import ReaderConfig

if TYPE_CHECKING:
    from colmlm.model.reader.examples import ReaderExample, ReaderExamples

CURVE_QUESTIONS = 300


def split(
    documents: list[AnnotatedDocument], share: float
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Splits the documents into those to train on and those of a share of the titles, drawn at random.

    A document without a title counts as one by itself.
    """
    from colmlm.model.training.steps import hold_out

    titles = sorted({_title(document) for document in documents})
    kept_back = set(hold_out(titles, round(share * len(titles)))[1])
    return (
        [document for document in documents if _title(document) not in kept_back],
        [document for document in documents if _title(document) in kept_back],
    )


def _title(document: AnnotatedDocument) -> str:
    return document.title or document.external_id


def drawn(squad: list[Path], documents: list[AnnotatedDocument], config: ReaderConfig) -> ReaderExamples:
    """Makes examples of what the files ask about these documents."""
    from colmlm.model.reader.examples import ReaderExamples, ReaderQuestion

    numbers = {document.external_id: number for number, document in enumerate(documents)}
    asked = [
        ReaderQuestion(numbers[one.document], one.question, one.place)
        for path in squad
        for one in read_questions(path, unanswered=True)
        if one.document in numbers and (one.place is not None or not one.answers)
    ]
    if all(one.answer is None for one in asked):
        raise typer.BadParameter("no questions with answers; name a file with --squad.")
    return ReaderExamples(documents, asked, config)


def some(examples: Sequence[ReaderExample], questions: int | None = CURVE_QUESTIONS) -> list[ReaderExample]:
    """Draws the examples of so many questions, in their order."""
    from colmlm.model.training.steps import hold_out

    asked = list(dict.fromkeys(example.question for example in examples))
    if questions is None or questions >= len(asked):
        return list(examples)
    chosen = set(hold_out(asked, questions)[1])
    return [example for example in examples if example.question in chosen]
