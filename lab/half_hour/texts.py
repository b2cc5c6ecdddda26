"""Marked texts: dense marks joined with what people asked, and read from and written to annotated files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, read_annotated, to_record
from colmlm.kb.corpus.squad import read_squad


def annotated(path: Path) -> list[AnnotatedDocument]:
    """Reads the documents of an annotated file."""
    return [parsed.document for parsed in read_annotated(path) if parsed.document is not None]


def asked(path: Path) -> list[AnnotatedDocument]:
    """Reads the paragraphs of a SQuAD file, each once, with the values that were asked for as their facts."""
    documents = [parsed.document for parsed in read_squad(path) if parsed.document is not None]
    return list({document.external_id: document for document in documents}.values())


def with_questions(
    marked: Iterable[AnnotatedDocument], questioned: Sequence[AnnotatedDocument]
) -> Iterator[AnnotatedDocument]:
    """Yields the marked documents, with people's questions in those whose text was asked about.

    A value that was asked for stands in place of the marks that it touches.
    """
    of_text = {document.text: document.facts for document in questioned}
    for document in marked:
        facts = of_text.get(document.text, ())
        free = (mark for mark in document.facts if not any(_touch(mark, fact) for fact in facts))
        yield replace(document, facts=tuple(sorted([*facts, *free], key=lambda span: span.start)))


def written(documents: Iterable[AnnotatedDocument], path: Path) -> None:
    """Writes an annotated file."""
    with path.open("w") as out:
        out.writelines(json.dumps(to_record(document)) + "\n" for document in documents)


def _touch(one: FactSpan, other: FactSpan) -> bool:
    return one.start < other.end and other.start < one.end
