"""Corpora as tokens: flat arrays that a step takes its documents from, in memory or mapped from files."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.model.text.tokens import Encoded, FactTokenizer
from colmlm.model.training.config import TrainConfig, TrainingRefused


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
        """Give tokens `start` to `end` of a document, and the facts whose lookups begin there."""
        at = int(self.starts[document])
        first, last = (int(n) for n in self.fact_starts[document : document + 2])
        found = first + np.searchsorted(self.positions[first:last], [start, end])
        facts = range(int(found[0]), int(found[1]))
        positions = tuple(int(p) - start for p in self.positions[facts.start : facts.stop])
        ids = tuple(self.ids[at + start : at + end].tolist())
        return Encoded(ids, positions, self._mask_of(at + start, at + end)), facts

    def question(self, fact: int) -> tuple[int, ...]:
        """Give the ids of a fact's question with its closing token, or none if it has no question."""
        start, end = (int(n) for n in self.question_starts[fact : fact + 2])
        return tuple(self.questions[start:end].tolist())

    def value(self, document: int, fact: int) -> tuple[int, ...]:
        """Give the ids of a fact's value, without the tokens around it."""
        at = int(self.starts[document]) + int(self.positions[fact]) + 1
        run = self._mask_of(at, int(self.starts[document + 1]))
        length = run.index(False) if False in run else len(run)
        return tuple(self.ids[at : at + length - 1].tolist())  # the last masked token closes the value

    def _mask_of(self, start: int, end: int) -> tuple[bool, ...]:
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
    """Make the sequence of a question's ids. Its key is read at the last token; the next-token loss leaves it out."""
    return Encoded(tuple(ids), (len(ids) - 1,), (True,) * len(ids))


def merge_corpora(corpora: Sequence[Corpus]) -> Corpus:
    """Join several corpora into one."""
    if len(corpora) == 1:
        return corpora[0]
    digest = hashlib.sha256("".join(corpus.sha256 for corpus in corpora).encode())
    return Corpus(tuple(shard for corpus in corpora for shard in corpus.shards), digest.hexdigest())


def data_hash(documents: Iterable[AnnotatedDocument]) -> str:
    """Compute a SHA-256 over every document's title, text, spans and paraphrases, in order."""
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
    """Tokenise the documents into a corpus in memory."""
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
    """Tokenise the documents.

    Whether one begins with its title depends on its id alone, and which of its spans are paraphrased on its id and
    their places.
    """
    ids, masked, questions = array("I"), bytearray(), array("I")
    positions, lengths, num_facts, asked = array("I"), array("q"), array("q"), array("q")
    for document in documents:
        titled = random.Random(f"title/{document.external_id}").random() < settings.title_fraction
        said = splice_answers(document, settings.paraphrase_fraction)
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


def splice_answers(document: AnnotatedDocument, fraction: float) -> AnnotatedDocument:
    """Put answers in place of values in a share of the spans that have one, as values that are looked up stand there.

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
    """Yield for each lookup of the document its question's ids, empty where the method makes no keys of questions."""
    if tokenizer.markup.key is None:
        yield from [()] * len(encoded.fact_positions)
        return
    for span in document.facts:
        yield tokenizer.question(span.question, max_length).ids if span.question else ()


def _starts(lengths: array[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.array(lengths, dtype=np.int64))]).astype(np.int64)


# The order in which a corpus is read: seeded, endless, and the same in every run and on any hardware.

Compose = Callable[[Sequence[NDArray[np.int64]]], list[NDArray[np.int64]]]


@dataclass(frozen=True, slots=True)
class DocumentPiece:
    """A document of a corpus, or a piece of one that is longer than a row: its tokens `start` to `end`."""

    shard: int
    document: int
    start: int
    end: int


class Pieces:
    """The documents of a corpus by number; those longer than `max_length` are cut into pieces of equal length.

    It keeps 16 bytes per document; all other data stay in the corpus.
    """

    def __init__(self, corpus: Corpus, max_length: int) -> None:
        sizes = [len(shard) for shard in corpus.shards]
        self._shards = np.concatenate([[0], np.cumsum(sizes)])
        self._lengths = np.concatenate([np.diff(shard.starts) for shard in corpus.shards])
        self._starts = np.concatenate([[0], np.cumsum(-(-self._lengths // max_length))])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def place(self, piece: int) -> DocumentPiece:
        document = int(np.searchsorted(self._starts, piece, side="right")) - 1
        first, following = (int(n) for n in self._starts[document : document + 2])
        number, count, length = piece - first, following - first, int(self._lengths[document])
        shard = int(np.searchsorted(self._shards, document, side="right")) - 1
        start, end = number * length // count, (number + 1) * length // count
        return DocumentPiece(shard, document - int(self._shards[shard]), start, end)

    def lengths(self) -> NDArray[np.int64]:
        """Give the number of tokens of every piece."""
        counts = np.diff(self._starts)
        whole = np.repeat(self._lengths, counts)
        number = np.arange(len(self)) - np.repeat(self._starts[:-1], counts)
        count = np.repeat(counts, counts)
        return (number + 1) * whole // count - number * whole // count


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The amount that a step takes from a stream: a number of documents, or documents of that many tokens."""

    documents: int | None = None
    tokens: int | None = None


class Stream:
    """An endless order over a corpus's pieces, step by step.

    With `compose` the steps of a window of `window` steps exchange their documents when the first of them is asked for:
    `compose` gets the window's steps and returns the exchanged ones, which `state` then holds.
    """

    def __init__(
        self,
        pieces: Pieces,
        quota: Quota,
        *,
        block: int,
        tag: str,
        compose: Compose | None = None,
        window: int = 1,
    ) -> None:
        self.pieces, self.quota = pieces, quota
        self._block, self._tag = block, tag
        self._compose, self._window = compose, window
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None
        self._composed: tuple[int, list[NDArray[np.int64]]] | None = None
        if quota.tokens is None:
            assert quota.documents is not None
            self.per_epoch = max(1, len(pieces) // quota.documents)
        else:
            self.per_epoch = min(len(pieces), -(-int(pieces.lengths().sum()) // quota.tokens))

    def numbers(self, step: int) -> NDArray[np.int64]:
        """Give the pieces of a step, by number."""
        if self._compose is None:
            return self._drawn(step)
        epoch, within = divmod(step, self.per_epoch)
        first = epoch * self.per_epoch + within // self._window * self._window
        if self._composed is None or self._composed[0] != first:
            last = min(first + self._window, (epoch + 1) * self.per_epoch)
            self._composed = (first, self._compose([self._drawn(n) for n in range(first, last)]))
        return self._composed[1][step - first]

    def state(self) -> dict[str, Any]:
        """Give the exchanged steps, which a resumed run cannot compute again, since the model has changed since."""
        if self._composed is None:
            return {}
        return {"first": self._composed[0], "steps": [numbers.tolist() for numbers in self._composed[1]]}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            steps = [np.array(numbers, dtype=np.int64) for numbers in state["steps"]]
            self._composed = (state["first"], steps)

    def _drawn(self, step: int) -> NDArray[np.int64]:
        epoch, within = divmod(step, self.per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            order = epoch_order(len(self.pieces), self._block, f"{self._tag}/{epoch}")
            self._epoch = (epoch, order, self._edges(order))
        _, order, edges = self._epoch
        return order[edges[within] : edges[within + 1]]

    def _edges(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the places in an epoch's order where its steps begin."""
        if self.quota.documents is not None:
            return np.minimum(np.arange(self.per_epoch + 1) * self.quota.documents, len(order))
        reached = np.cumsum(self.pieces.lengths()[order])
        goals = np.arange(self.per_epoch + 1) * (int(reached[-1]) / self.per_epoch)
        edges = np.searchsorted(reached, goals, side="left")
        edges[0], edges[-1] = 0, len(order)
        # Every step has at least one piece, however long pieces are.
        ahead = np.arange(self.per_epoch + 1)
        return np.minimum(np.maximum(edges, ahead), len(order) - ahead[::-1])


def epoch_order(count: int, block: int, tag: str) -> NDArray[np.int64]:
    """Order the numbers below `count` in shuffled blocks of neighbours, cut at another place for every tag.

    The shuffle sorts raw words of a PCG64, whose stream numpy keeps the same in all its versions.
    """
    seed = int.from_bytes(hashlib.sha256(tag.encode()).digest()[:16])
    words = np.random.PCG64(seed)
    first = int(words.random_raw()) % block or block
    cuts = np.concatenate([[0], np.arange(first, count, block), [count]])
    lengths = np.diff(cuts)
    shuffled = np.argsort(words.random_raw(len(lengths)), kind="stable")
    starts, lengths = cuts[:-1][shuffled], lengths[shuffled]
    before = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return np.arange(count) + np.repeat(starts - before, lengths)


def apportion(count: int, weights: Sequence[float]) -> list[int]:
    """Divide `count` in proportion to the weights, rounding the largest remainders up.

    Raises TrainingRefused if a positive weight would get nothing.
    """
    exact = [count * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: shares[i] - exact[i])
    for i in by_remainder[: count - sum(shares)]:
        shares[i] += 1
    if any(weight > 0 and not share for weight, share in zip(weights, shares, strict=True)):
        raise TrainingRefused(f"a batch of {count} documents is too small for the weights {list(weights)}")
    return shares


# Hard negatives: documents that the model confuses are put into the same step.
#
# The current model makes keys and queries for the facts of a window of steps. If a query of one document is
# near a fact of another document with another question, the two documents belong in one step. No document is
# added or lost: the steps of the window only exchange them.

FACTS_PER_DOCUMENT = 4
_ROWS = 2048  # questions scored at once


@dataclass(frozen=True, slots=True)
class Mined:
    """A document cut after the last of the facts chosen from it, and the questions of these facts."""

    context: Encoded
    questions: tuple[Encoded, ...]

    @classmethod
    def of(cls, encoded: Encoded, questions: Sequence[tuple[int, ...]]) -> Mined:
        """Choose at most `FACTS_PER_DOCUMENT` facts with a question, spread over the document."""
        asked = [i for i, ids in enumerate(questions) if ids]
        spread = np.linspace(0, len(asked) - 1, min(FACTS_PER_DOCUMENT, len(asked))).round().astype(int)
        chosen = [asked[i] for i in spread]
        positions = tuple(encoded.fact_positions[i] for i in chosen)
        end = positions[-1] + 1 if positions else 0
        return cls(
            Encoded(encoded.ids[:end], positions, encoded.masked[:end]),
            tuple(question_sequence(questions[i]) for i in chosen),
        )


def confusable(
    steps: Sequence[NDArray[np.int64]],
    mined: Sequence[Mined],
    keys: Callable[[Sequence[Encoded]], list[NDArray[np.float32]]],
    count: int,
) -> list[NDArray[np.int64]]:
    """Regroup the documents of `steps` so that each is beside up to `count` documents that it is confused with.

    Steps keep their sizes. `mined` has one entry per document, in the order of the steps. The first document that is
    not placed yet takes the nearest ones that are not placed either, and so on; nothing is random.
    """
    with_facts = [i for i, document in enumerate(mined) if document.questions]
    if not with_facts:
        return list(steps)
    facts = keys([mined[i].context for i in with_facts])
    queries = keys([question for i in with_facts for question in mined[i].questions])
    owners = np.repeat(with_facts, [len(mined[i].questions) for i in with_facts]).astype(np.int64)
    asked = [question.ids for i in with_facts for question in mined[i].questions]
    near = _nearest(np.concatenate(facts), np.concatenate(queries), owners, asked, count)
    ends = np.cumsum([len(step) for step in steps]).tolist()
    order = _together(ends, near, count)
    return list(np.split(np.concatenate(steps)[order], ends[:-1]))


def _nearest(
    facts_ND: NDArray[np.float32],
    queries_ND: NDArray[np.float32],
    owners: NDArray[np.int64],
    asked: Sequence[tuple[int, ...]],
    count: int,
) -> dict[int, list[int]]:
    """Give for each document the others whose facts are nearest to its questions, nearest first."""
    names = {ids: number for number, ids in enumerate(dict.fromkeys(asked))}
    question_N = np.array([names[ids] for ids in asked])
    found: dict[int, dict[int, float]] = {}
    reach = min(len(owners), count + FACTS_PER_DOCUMENT)
    for start in range(0, len(owners), _ROWS):
        rows = slice(start, start + _ROWS)
        scores = queries_ND[rows] @ facts_ND.T
        scores[owners[rows, None] == owners[None, :]] = -np.inf
        scores[question_N[rows, None] == question_N[None, :]] = -np.inf  # the same question is no negative
        best = np.argsort(-scores, axis=1, kind="stable")[:, :reach]
        for row, columns in enumerate(best):
            others = found.setdefault(int(owners[start + row]), {})
            for column in columns:
                if np.isfinite(score := scores[row, column]):
                    other = int(owners[column])
                    others[other] = max(others.get(other, -np.inf), float(score))
    return {owner: sorted(others, key=lambda o: (-others[o], o)) for owner, others in found.items()}


def _together(ends: Sequence[int], near: dict[int, list[int]], count: int) -> list[int]:
    """Order documents so that each is followed by those near it, while its step has room; steps end at `ends`."""
    placed: dict[int, None] = {}
    for document in range(ends[-1]):
        if document not in placed:
            placed[document] = None
            room = next(end for end in ends if end >= len(placed)) - len(placed)
            free = [other for other in near.get(document, ()) if other not in placed]
            placed.update(dict.fromkeys(free[: min(count, room)]))
    return list(placed)
