"""Each fact as a document of its own that asks its question and answers it, for methods that train on plain documents.

Co-LMLM's trainer asks some questions of a pair in these forms itself. A method without a contrastive part reads
documents only, so one that is to answer a prompt of this form needs such documents beside the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.training.steps import QA_FORMS, question_answer


def quiz(documents: Iterable[AnnotatedDocument]) -> Iterator[AnnotatedDocument]:
    """A document for each fact that has a question, its form drawn by the fact's own place."""
    for document in documents:
        for number, span in enumerate(document.facts):
            if span.question:
                name = f"{document.external_id}/{number}"
                form = random.Random(f"quiz/{name}").choice(QA_FORMS)
                yield replace(question_answer(span.question, span.value, form), external_id=name)
