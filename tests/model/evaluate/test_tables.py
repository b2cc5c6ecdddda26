"""Recall by kind of query and of key: generated questions are keys, human ones are asked, and never the reverse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.evaluate.recall import AskedFacts, WrittenQuestions, num_encodings, table
from colmlm.model.lm.checkpoint import Checkpoint
from colmlm.model.lm.encoder import KeyEncoder
from tests.fakes import FakeEncoder, Vectors
from tests.kb.corpora import PERU, numbered


@dataclass(slots=True)
class Reading(FakeEncoder):
    """Makes context keys from the text before the span; a question in capitals equals one in small letters."""

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Vectors]:
        return [self._stack([d.text[: span.start] for span in d.facts]) for d in documents]

    def encode_questions(self, questions: Sequence[str]) -> Vectors:
        return self._stack([question.lower() for question in questions])


def rewritten(document: AnnotatedDocument) -> AnnotatedDocument:
    return replace(
        document, facts=tuple(replace(s, question=(s.question or "").upper()) for s in document.facts)
    )


def test_each_kind_of_key_is_measured_by_itself_and_both_together():
    documents = [*numbered(5), PERU]
    asked, done = AskedFacts.of(documents), list[int]()
    generated = WrittenQuestions.of([rewritten(PERU)])
    found = table(Reading(), asked, documents, generated=generated, as_decoder=False, done=done.append)
    by_keys = found["question"]
    assert list(found) == ["question"] and list(by_keys) == ["context", "question", "both"]
    assert {r.facts for r in by_keys.values()} == {r.questions for r in by_keys.values()} == {8}
    assert by_keys["question"].recall_at_1 == 3 / 8 <= by_keys["both"].recall_at_1
    assert sum(done) == 8 + 3 + 8
    assert sum(done) == num_encodings(asked, has_contexts=False, generated=generated, as_decoder=False)
    assert generated.num_asked(asked) == 3, "the same words: a reader of the figures must be told"


def test_a_generated_question_of_another_text_is_refused():
    asked = AskedFacts.of([PERU])
    with pytest.raises(ValueError, match="for these facts"):
        WrittenQuestions.of(numbered(2)).of_facts(asked)
    other = replace(PERU, facts=(replace(PERU.facts[0], value="Cusco"),))
    with pytest.raises(ValueError, match="for 'Cusco', and the fact is 'Lima'"):
        WrittenQuestions.of([other]).of_facts(asked)


def test_the_decoder_asks_for_itself(checkpoint: Checkpoint):
    documents = [*numbered(3), PERU]
    asked, encoder = AskedFacts.of(documents), KeyEncoder(checkpoint)
    keys = np.concatenate(encoder.encode_documents(documents))
    found = table(encoder, asked, keys, generated=None, as_decoder=True, done=lambda _: None)
    assert list(found) == ["question", "decoder"] and list(found["decoder"]) == ["context"]
    assert found["decoder"]["context"] != found["question"]["context"]
