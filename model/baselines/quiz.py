"""Documents that ask and answer one fact each, for methods that train on plain documents.

Co-LMLM's trainer writes some questions in these forms itself. A method without a contrastive part reads documents only,
so a model that is to answer prompts of this form needs such documents beside the others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.training.config import QA_FORMS
from colmlm.model.training.steps import question_answer


def quiz(documents: Iterable[AnnotatedDocument]) -> Iterator[AnnotatedDocument]:
    """Makes a document for each fact that has a question; the fact's place decides which form it takes."""
    for document in documents:
        for number, span in enumerate(document.facts):
            if span.question:
                name = f"{document.external_id}/{number}"
                form = random.Random(f"quiz/{name}").choice(QA_FORMS)
                yield replace(question_answer(span.question, span.value, form), external_id=name)
