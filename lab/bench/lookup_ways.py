"""Times one question's lookup by key alone, by key and words, and with the reader, in turns, on synthetic keys.

The query of a question is given, so what a model takes to form it is not in any of the times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.candidates import BY_KEY, candidates
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.keys.records import CheckpointInfo
from colmlm.kb.lookup.questions import Questions
from colmlm.lab.bench.durations import milliseconds
from colmlm.lab.bench.synthetic import normalize, synthetic_keys
from colmlm.lab.bench.word_corpus import SENTENCES_PER_DOCUMENT, WordCorpus

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase

CHECKPOINT = "synthetic"
LOOKED_UP, WARM_UP = 220, 20
MOVED = 0.5  # how far a query is from its fact's key, as a share of its length

_Vectors = npt.NDArray[np.float32]


@dataclass(slots=True)
class GivenKeys:
    """Stands in for a model: key `n` is that of the fact of sentence `n`, and each question has its query."""

    keys: _Vectors
    queries: dict[str, _Vectors] = field(default_factory=dict)

    @property
    def checkpoint(self) -> CheckpointInfo:
        return CheckpointInfo(CHECKPOINT, CHECKPOINT, self.keys.shape[1])

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[_Vectors]:
        firsts = [SENTENCES_PER_DOCUMENT * int(document.external_id[1:]) for document in documents]
        return [self.keys[first : first + len(d.facts)] for first, d in zip(firsts, documents, strict=True)]

    def encode_questions(self, questions: Sequence[str]) -> _Vectors:
        return np.stack([self.queries[question] for question in questions])

    def encode_contexts(self, texts: Sequence[str]) -> _Vectors:
        return self.encode_questions(texts)


def lookup_figures(
    kb: KnowledgeBase, corpus: WordCorpus, dim: int, seed: int, reader: JudgedReader
) -> dict[str, Any]:
    """Gives every fact a key of this width, then times the three ways."""
    keys = synthetic_keys(len(corpus.words), dim, seed=seed)
    given = GivenKeys(keys)
    kb.keysets.rekey(given)
    asked = list(zip(corpus.questions, corpus.asked, strict=True))[:LOOKED_UP]
    queries = keys[[number for _, number in asked]]
    moved = np.random.default_rng([seed, dim]).standard_normal(queries.shape, np.float32)
    normalize(moved)
    queries += np.float32(MOVED) * moved
    normalize(queries)
    given.queries = {question.text: query for (question, _), query in zip(asked, queries, strict=True)}
    seconds = _timed([question.text for question, _ in asked], _ways(kb, given, reader))
    figures: dict[str, Any] = {"facts": len(keys), "dim": dim}
    for name, times in seconds.items():
        figures |= {f"{name}_p50_ms": milliseconds(times, 50), f"{name}_p99_ms": milliseconds(times, 99)}
    alone = figures["by_key_p50_ms"]
    return figures | {f"{name}_vs_key": figures[f"{name}_p50_ms"] / alone for name in list(seconds)[1:]}


def _ways(kb: KnowledgeBase, given: GivenKeys, reader: JudgedReader) -> dict[str, Callable[[str], object]]:
    answers = Answering(kb, Questions(kb, [given]), reader)

    def by_key(question: str, k: int = 1) -> Any:
        query = given.encode_questions([question])
        (lookup,) = kb.lookups.find(query, checkpoint_id=CHECKPOINT, k=k, threshold=-1.0)
        return lookup.hits

    def by_key_and_words(question: str) -> object:
        hits = by_key(question, BY_KEY)
        with kb.sessions() as session:
            return candidates(session, kb.words, question, hits)

    return {"by_key": by_key, "by_key_and_words": by_key_and_words, "with_the_reader": answers.ask}


def _timed(questions: Sequence[str], ways: dict[str, Callable[[str], object]]) -> dict[str, list[float]]:
    """Gives how long each question took each way, without the first few."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for question in questions:
        for name, way in ways.items():  # in turns, so that other load affects all
            started = time.perf_counter()
            way(question)
            seconds[name].append(time.perf_counter() - started)
    return {name: times[WARM_UP:] if len(times) > WARM_UP else times for name, times in seconds.items()}
