"""Recall of two kinds of query with three kinds of keys: context, generated question, and both.

A human question is encoded as it is, or put before the decoder, which then sends its own query (section 3.1). Keys from
questions must not be made from the questions that are asked; they are made from those of the annotator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.evaluate.recall import (
    Encodes,
    Floats,
    OnDone,
    Recall,
    decoder_queries,
    document_keys,
    in_batches,
    recall,
)

Place = tuple[str, int, int]
Table = dict[str, dict[str, Recall]]


@dataclass(frozen=True, slots=True)
class AskedFacts:
    """Facts with their places, and the questions that are asked; `target_Q` are the rows of these questions' facts."""

    places: list[Place]
    values: list[str]
    questions: list[str]
    target_Q: NDArray[np.int64]

    @classmethod
    def of(cls, documents: Sequence[AnnotatedDocument]) -> AskedFacts:
        """Takes all facts of these documents, in order; those with a question are asked for."""
        places = [(d.external_id, s.start, s.end) for d in documents for s in d.facts]
        return cls.where(
            places,
            [s.value for d in documents for s in d.facts],
            [s.question for d in documents for s in d.facts],
        )

    @classmethod
    def where(cls, places: list[Place], values: list[str], questions: Sequence[str | None]) -> AskedFacts:
        """Takes facts at these places, with their questions if they have any."""
        rows = [row for row, question in enumerate(questions) if question]
        return cls(places, values, [questions[row] or "" for row in rows], np.array(rows, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class WrittenQuestions:
    """Questions that an annotator wrote, by the place of their span, with the value of that span."""

    questions: Mapping[Place, tuple[str, str]]

    @classmethod
    def of(cls, documents: Sequence[AnnotatedDocument]) -> WrittenQuestions:
        return cls(
            {
                (document.external_id, span.start, span.end): (span.question, span.value)
                for document in documents
                for span in document.facts
                if span.question
            }
        )

    def of_facts(self, asked: AskedFacts) -> list[str | None]:
        """Gives each fact's generated question, or None. Raises `ValueError` if the questions are of other texts."""
        found: list[str | None] = []
        for place, value in zip(asked.places, asked.values, strict=True):
            question, said = self.questions.get(place, (None, value))
            if said != value:
                raise ValueError(
                    f"{place[0]}, {place[1]}: the generated question is for {said!r}, not {value!r}"
                )
            found.append(question)
        if not any(found):
            raise ValueError(
                "no generated question is for any of these facts: other documents or other spans"
            )
        return found

    def num_asked(self, asked: AskedFacts) -> int:
        """Counts the generated questions that equal, word for word, the question that is asked of their fact."""
        of_facts = self.of_facts(asked)
        pairs = zip(asked.target_Q.tolist(), asked.questions, strict=True)
        return sum((of_facts[row] or "").casefold() == question.casefold() for row, question in pairs)


def question_keys(encoder: Encodes, questions: Sequence[str | None], done: OnDone) -> Floats:
    """Gives the [K, D] keys of the questions at ``<FACT-q>``, with rows of NaN for missing ones."""
    rows = [row for row, question in enumerate(questions) if question]
    made = in_batches(encoder.encode_questions, [questions[row] or "" for row in rows], done)
    keys_KD = np.full((len(questions), made.shape[1]), np.nan, np.float32)
    keys_KD[rows] = made
    return keys_KD


def table(
    encoder: Encodes,
    asked: AskedFacts,
    contexts: Floats | Sequence[AnnotatedDocument],
    *,
    generated: WrittenQuestions | None,
    as_decoder: bool,
    done: OnDone,
) -> Table:
    """Measures recall by kind of query ("question", "decoder") and by kind of key ("context", "question", "both").

    `contexts` are the keys of the facts' contexts [K, D], or the documents to make them from. `done` is told how many
    more of `num_encodings` are made.
    """
    if not isinstance(contexts, np.ndarray):
        contexts = document_keys(encoder, contexts, done)
    kinds: dict[str, list[Floats]] = {"context": [contexts]}
    if generated is not None:
        made = question_keys(encoder, generated.of_facts(asked), done)
        kinds |= {"question": [made], "both": [contexts, made]}
    queries = {"question": in_batches(encoder.encode_questions, asked.questions, done)}
    if as_decoder:
        queries["decoder"] = decoder_queries(encoder, asked.questions, done)
    return {
        kind: {name: recall(queries_QD, asked.target_Q, keys, asked.values) for name, keys in kinds.items()}
        for kind, queries_QD in queries.items()
    }


def num_encodings(
    asked: AskedFacts, *, has_contexts: bool, generated: WrittenQuestions | None, as_decoder: bool
) -> int:
    """Counts the texts that `table` encodes."""
    contexts = 0 if has_contexts else len(asked.values)
    questions = sum(question is not None for question in generated.of_facts(asked)) if generated else 0
    return contexts + questions + (1 + as_decoder) * len(asked.questions)
