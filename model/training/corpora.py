"""Corpora as tokens: flat arrays that a step takes its documents from, in memory or mapped from files."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.text.tokens import Encoded, FactTokenizer
from colmlm.model.training.config import TrainConfig


class DataError(ValueError):
    """The data cannot be trained on; the message says why."""


@dataclass(frozen=True, slots=True)
class TokenShard:
    """Tokenised documents in flat arrays.

    Document i has the tokens ``ids[starts[i]:starts[i + 1]]`` and the facts ``fact_starts[i]`` to ``fact_starts[i +
    1]``; fact f begins a lookup at ``positions[f]`` of its document and has the question
    ``questions[question_starts[f]:question_starts[f + 1]]``, which is empty if it has none. `masked` holds one bit per
    token.
    """

    ids: NDArray[Any]
    masked: NDArray[np.uint8]
    starts: NDArray[np.int64]
    positions: NDArray[np.uint32]
    fact_starts: NDArray[np.int64]
    questions: NDArray[Any]
    question_starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def piece(self, document: int, start: int, end: int) -> tuple[Encoded, range]:
        """Gives tokens `start` to `end` of a document, and the facts whose lookups begin there."""
        at = int(self.starts[document])
        first, last = (int(n) for n in self.fact_starts[document : document + 2])
        found = first + np.searchsorted(self.positions[first:last], [start, end])
        facts = range(int(found[0]), int(found[1]))
        positions = tuple(int(p) - start for p in self.positions[facts.start : facts.stop])
        ids = tuple(self.ids[at + start : at + end].tolist())
        return Encoded(ids, positions, self._masked(at + start, at + end)), facts

    def question(self, fact: int) -> tuple[int, ...]:
        """Gives the ids of a fact's question with its closing token, or none if it has no question."""
        start, end = (int(n) for n in self.question_starts[fact : fact + 2])
        return tuple(self.questions[start:end].tolist())

    def value(self, document: int, fact: int) -> tuple[int, ...]:
        """Gives the ids of a fact's value, without the tokens around it."""
        at = int(self.starts[document]) + int(self.positions[fact]) + 1
        run = self._masked(at, int(self.starts[document + 1]))
        length = run.index(False) if False in run else len(run)
        return tuple(self.ids[at : at + length - 1].tolist())  # the last masked token closes the value

    def _masked(self, start: int, end: int) -> tuple[bool, ...]:
        first = start // 8
        bits = np.unpackbits(self.masked[first : -(-end // 8)], bitorder="little")
        return tuple(bits[start - first * 8 : end - first * 8].astype(bool).tolist())


@dataclass(frozen=True, slots=True)
class Corpus:
    """The documents of several shards as one corpus. `sha256` digests the texts and annotations they were made from."""

    shards: tuple[TokenShard, ...]
    sha256: str

    @property
    def num_documents(self) -> int:
        return sum(len(shard) for shard in self.shards)

    @property
    def num_tokens(self) -> int:
        return sum(int(shard.starts[-1]) for shard in self.shards)

    @property
    def num_questions(self) -> int:
        return sum(int(np.count_nonzero(np.diff(shard.question_starts))) for shard in self.shards)


def question_sequence(ids: Sequence[int]) -> Encoded:
    """Makes the sequence of a question's ids. Its key is read at the last token; the next-token loss leaves it out."""
    return Encoded(tuple(ids), (len(ids) - 1,), (True,) * len(ids))


def merged(corpora: Sequence[Corpus]) -> Corpus:
    """Joins several corpora into one."""
    if len(corpora) == 1:
        return corpora[0]
    digest = hashlib.sha256("".join(corpus.sha256 for corpus in corpora).encode())
    return Corpus(tuple(shard for corpus in corpora for shard in corpus.shards), digest.hexdigest())


def data_hash(documents: Iterable[AnnotatedDocument]) -> str:
    """Computes a SHA-256 over every document's title, text, spans and paraphrases, in order."""
    digest = hashlib.sha256()
    for document in documents:
        if document.title:
            digest.update(document.title.encode() + b"\1")
        digest.update(document.text.encode() + b"\0")
        for span in document.facts:
            digest.update(f"{span.start}:{span.end}:{span.question}\0".encode())
            if span.answer and span.answer != span.value:
                digest.update(f"{span.answer}\1".encode())
    return digest.hexdigest()


def tokenise(documents: Sequence[AnnotatedDocument], tokenizer: FactTokenizer, config: TrainConfig) -> Corpus:
    """Tokenises the documents into a corpus in memory."""
    shard = shard_of(documents, tokenizer, Tokenising.of(config))
    return Corpus((shard,), data_hash(documents))


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenising:
    """The settings by which documents become tokens; the same settings give the same tokens."""

    max_question_length: int
    title_fraction: float
    paraphrase_fraction: float

    @staticmethod
    def of(config: TrainConfig) -> Tokenising:
        return Tokenising(
            max_question_length=config.max_question_length,
            title_fraction=config.title_fraction,
            paraphrase_fraction=config.paraphrase_fraction,
        )


def shard_of(
    documents: Iterable[AnnotatedDocument], tokenizer: FactTokenizer, settings: Tokenising
) -> TokenShard:
    """Tokenises the documents.

    Whether one begins with its title depends on its id alone, and which of its spans are paraphrased on its id and
    their places.
    """
    ids, masked, questions = array("I"), bytearray(), array("I")
    positions, lengths, num_facts, asked = array("I"), array("q"), array("q"), array("q")
    for document in documents:
        titled = random.Random(f"title/{document.external_id}").random() < settings.title_fraction
        said = spliced(document, settings.paraphrase_fraction)
        encoded = tokenizer.document(said, with_title=titled)
        ids.extend(encoded.ids)
        masked.extend(encoded.masked)
        lengths.append(len(encoded))
        positions.extend(encoded.fact_positions)
        num_facts.append(len(encoded.fact_positions))
        for question in _questions(document, encoded, tokenizer, settings.max_question_length):
            questions.extend(question)
            asked.append(len(question))
    kind = np.uint16 if tokenizer.vocabulary_size <= 1 << 16 else np.uint32
    return TokenShard(
        ids=np.array(ids, dtype=kind),
        masked=np.packbits(np.frombuffer(masked, dtype=np.uint8), bitorder="little"),
        starts=_starts(lengths),
        positions=np.array(positions, dtype=np.uint32),
        fact_starts=_starts(num_facts),
        questions=np.array(questions, dtype=kind),
        question_starts=_starts(asked),
    )


def spliced(document: AnnotatedDocument, fraction: float) -> AnnotatedDocument:
    """Puts answers in place of values in a share of the spans that have one, as values that are looked up stand there.

    Offsets stay those of the text.
    """
    if not fraction:
        return document
    rng = random.Random(f"paraphrase/{document.external_id}")

    def said(span: FactSpan) -> FactSpan:
        drawn = rng.random() < fraction
        return replace(span, value=span.answer) if drawn and span.answer else span

    return replace(document, facts=tuple(map(said, document.facts)))


def _questions(
    document: AnnotatedDocument, encoded: Encoded, tokenizer: FactTokenizer, max_length: int
) -> Iterator[tuple[int, ...]]:
    """Yields for each lookup of the document its question's ids, empty where the method makes no keys of questions."""
    if tokenizer.markup.key is None:
        yield from [()] * len(encoded.fact_positions)
        return
    for span in document.facts:
        yield tokenizer.question(span.question, max_length).ids if span.question else ()


def _starts(lengths: array[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))]).astype(np.int64)
