"""Questions that the question generator writes for facts, stored in a file: `colmlm evaluate recall --generated`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from colmlm.cli.output import note, progress
from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated, to_record
from colmlm.model.evaluate.tables import WrittenQuestions

if TYPE_CHECKING:
    from colmlm.model.annotate.questions import QuestionGenerator

TOGETHER = 8  # documents whose questions are decoded in one batch


def read_generated(file: Path) -> WrittenQuestions:
    """Reads the questions of an annotated file."""
    return WrittenQuestions.of(list(_documents(file)))


def write_generated(generator: QuestionGenerator, documents: Sequence[AnnotatedDocument], file: Path) -> None:
    """Appends the documents that the file lacks, with generated questions in place of their own.

    The generator is given text and spans, and never an existing question. A run that was stopped can be continued.
    """
    _end_at_a_line(file)
    there = {document.external_id: document.text for document in _documents(file)}
    if clashing := [d.external_id for d in documents if there.get(d.external_id, d.text) != d.text]:
        raise typer.BadParameter(
            f"it has another text of document {clashing[0]}; name another file.", param_hint="--generated"
        )
    missing = [d for d in documents if d.facts and d.external_id not in there]
    if there:
        note(f"{len(there)} documents are in {file} already.")
    with file.open("a", encoding="utf-8") as target, progress("Asking about documents") as advance:
        for start in range(0, len(missing), TOGETHER):
            for document in _asked(generator, missing[start : start + TOGETHER]):
                target.write(json.dumps(to_record(document), ensure_ascii=False) + "\n")
            target.flush()
            advance(min(start + TOGETHER, len(missing)), len(missing))


def _end_at_a_line(file: Path) -> None:
    """Creates the file if it is missing, and removes a last line that a kill left incomplete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as target:
        target.seek(0)
        target.truncate(target.read().rfind(b"\n") + 1)


def _asked(
    generator: QuestionGenerator, documents: Sequence[AnnotatedDocument]
) -> Iterator[AnnotatedDocument]:
    from colmlm.model.annotate.evaluate import passage

    found = generator.annotate([passage(document) for document in documents])
    for document, questions in zip(documents, found, strict=True):
        facts = tuple(
            replace(span, question=asked.question if asked else None, answer=asked.answer if asked else None)
            for span, asked in zip(document.facts, questions, strict=True)
        )
        yield replace(document, facts=facts)


def _documents(file: Path) -> Iterator[AnnotatedDocument]:
    return (parsed.document for parsed in read_annotated(file) if parsed.document is not None)
