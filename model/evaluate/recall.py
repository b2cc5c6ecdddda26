"""Recall of question -> fact: does a question's key find the fact it asks for?

A lookup splices the top hit whatever else is near, so the share of questions whose own fact comes first bounds how
often an output can be right. Recall at 10 says what a better ranking in the same space could still gain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.training.steps import question_answer

Floats = NDArray[np.float32]
OnDone = Callable[[int], None]


class Encodes(Protocol):
    """An encoder of documents' facts and of questions into one key space: `model.lm.encoder.KeyEncoder`."""

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[Floats]: ...
    def encode_questions(self, questions: Sequence[str]) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Recall:
    """Shares in [0, 1] over `questions` asked of `facts`. `value_at_1`: the top fact has the right value."""

    facts: int
    questions: int
    recall_at_1: float
    recall_at_10: float
    mrr: float
    value_at_1: float
    mean_true_score: float


def measure_recall(
    queries_QD: Floats, target_Q: NDArray[np.int64], keys: Floats | Sequence[Floats], values_K: Sequence[str]
) -> Recall:
    """Rank every fact for every query; `target_Q[i]` is the row of the fact that query i asks for.

    `keys` are [K, D], or an array for each kind of key: a fact scores as its best key, and a row of NaN is no key. On
    ties the target ranks last among its equals, so that a model that gives all facts one key scores 0.
    """
    ranks, top, true = [], [], []
    names = np.array([" ".join(value.lower().split()) for value in values_K])
    for at in range(0, len(queries_QD), 512):
        scores_QK = best_scores(queries_QD[at : at + 512], keys)
        wanted = target_Q[at : at + 512]
        own_Q = scores_QK[np.arange(len(wanted)), wanted]
        ranks.append((~(scores_QK < own_Q[:, None])).sum(axis=1))
        top.append(names[scores_QK.argmax(axis=1)] == names[wanted])
        true.append(own_Q)
    rank_Q = np.concatenate(ranks) if ranks else np.ones(0)
    if not len(rank_Q):
        raise ValueError("no questions to measure recall with; name a corpus whose facts have some")
    return Recall(
        facts=len(values_K),
        questions=len(rank_Q),
        recall_at_1=_share(rank_Q <= 1),
        recall_at_10=_share(rank_Q <= 10),
        mrr=_share(1.0 / rank_Q),
        value_at_1=_share(np.concatenate(top)),
        mean_true_score=_share(_finite(np.concatenate(true))),
    )


def best_scores(queries_QD: Floats, keys: Floats | Sequence[Floats]) -> Floats:
    """Give [Q, K]: the score of each fact's best key; minus infinity for a fact without one."""
    kinds = [keys] if isinstance(keys, np.ndarray) else keys
    scores = [queries_QD @ keys_KD.T for keys_KD in kinds]
    best_QK = np.fmax.reduce(scores)
    return np.where(np.isnan(best_QK), -np.inf, best_QK).astype(np.float32)


def _finite(values: Floats) -> Floats:
    kept = values[np.isfinite(values)]
    return kept if len(kept) else np.zeros(1, np.float32)


def _share(values: NDArray[np.floating] | NDArray[np.bool_]) -> float:
    return round(float(np.mean(values)), 4)


def in_batches(
    encode: Callable[[list[str]], Floats], texts: Sequence[str], done: OnDone, size: int = 128
) -> Floats:
    """Encode texts in batches of `size`, longest first; `done` is called with the number of texts of each batch.

    So texts of similar length are padded together, and too little memory shows at once. Rows are in the texts' order.
    """
    order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
    rows: Floats | None = None
    for at in range(0, len(order), size):
        chosen = order[at : at + size]
        part = encode([texts[n] for n in chosen])
        rows = np.empty((len(texts), part.shape[1]), np.float32) if rows is None else rows
        rows[chosen] = part
        done(len(chosen))
    if rows is None:
        raise ValueError("no questions to measure recall with; name a corpus whose facts have some")
    return rows


def document_keys(
    encoder: Encodes, documents: Sequence[AnnotatedDocument], done: OnDone, size: int = 32
) -> Floats:
    """Give the [num_facts, dim] keys of all facts of `documents`, in order."""
    parts = []
    for at in range(0, len(documents), size):
        batch = documents[at : at + size]
        parts += encoder.encode_documents(batch)
        done(sum(len(document.facts) for document in batch))
    return np.concatenate(parts)


def decoder_queries(encoder: Encodes, questions: Sequence[str], done: OnDone) -> Floats:
    """Compute the queries that the decoder itself sends: the states at ``<FACT>`` after ``Question: ... Answer:``."""

    def at_fact(batch: list[str]) -> Floats:
        return np.concatenate(encoder.encode_documents([question_answer(q, "?") for q in batch]))

    return in_batches(at_fact, questions, done)


# Recall of two kinds of query with three kinds of keys: context, generated question, and both.
#
# A human question is encoded as it is, or put before the decoder, which then sends its own query (section
# 3.1). Keys from questions must not be made from the questions that are asked; they are made from those of
# the annotator.

Place = tuple[str, int, int]
Table = dict[str, dict[str, Recall]]


@dataclass(frozen=True, slots=True)
class AskedFacts:
    """Facts, their places (document, start, end), and the questions asked; `target_Q` are the rows of their facts."""

    places: list[Place]
    values: list[str]
    questions: list[str]
    target_Q: NDArray[np.int64]

    @classmethod
    def of(cls, documents: Sequence[AnnotatedDocument]) -> AskedFacts:
        """Take all facts of these documents, in order; those with a question are asked for."""
        places = [(d.external_id, s.start, s.end) for d in documents for s in d.facts]
        return cls.at_places(
            places,
            [s.value for d in documents for s in d.facts],
            [s.question for d in documents for s in d.facts],
        )

    @classmethod
    def at_places(cls, places: list[Place], values: list[str], questions: Sequence[str | None]) -> AskedFacts:
        """Make the asked facts from places, values and questions; a fact with None or "" is not asked for."""
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
        """Give each fact's generated question, or None. Raises `ValueError` if none is, or one is for another value."""
        found: list[str | None] = []
        for place, value in zip(asked.places, asked.values, strict=True):
            question, said = self.questions.get(place, (None, value))
            if said != value:
                raise ValueError(
                    f"at {place[1]} in {place[0]} its question is for {said!r}, and the fact is {value!r}; name a new "
                    "file, and pass --questions-by DIR"
                )
            found.append(question)
        if not any(found):
            raise ValueError(
                "it has no question for these facts; pass --questions-by DIR to have them written, or name another file"
            )
        return found

    def num_asked(self, asked: AskedFacts) -> int:
        """Count the generated questions that equal, word for word, the question that is asked of their fact."""
        of_facts = self.of_facts(asked)
        pairs = zip(asked.target_Q.tolist(), asked.questions, strict=True)
        return sum((of_facts[row] or "").casefold() == question.casefold() for row, question in pairs)


def question_keys(encoder: Encodes, questions: Sequence[str | None], done: OnDone) -> Floats:
    """Give the [K, D] keys of the questions at ``<FACT-q>``, with rows of NaN for missing ones."""
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
    """Measure recall by kind of query ("question", "decoder") and by kind of key ("context", "question", "both").

    `contexts` are the keys of the facts' contexts [K, D], or the documents to make them from. `done` is called with
    each number of encodings that were made, of `num_encodings` in all.
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
        kind: {
            name: measure_recall(queries_QD, asked.target_Q, keys, asked.values)
            for name, keys in kinds.items()
        }
        for kind, queries_QD in queries.items()
    }


def num_encodings(
    asked: AskedFacts, *, has_contexts: bool, generated: WrittenQuestions | None, as_decoder: bool
) -> int:
    """Count the texts that `table` encodes."""
    contexts = 0 if has_contexts else len(asked.values)
    questions = sum(question is not None for question in generated.of_facts(asked)) if generated else 0
    return contexts + questions + (1 + as_decoder) * len(asked.questions)
