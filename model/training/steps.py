"""The input of the trainer: documents as steps of sequences with their pairs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.corpus.training_record import TrainingRecord
from colmlm.model.text.tokens import EncodedText, FactTokenizer
from colmlm.model.training.config import ASKING, QA_FORMS, TrainConfig, TrainingRefused
from colmlm.model.training.corpora import (
    Corpus,
    DocumentPiece,
    Pieces,
    PieceStream,
    Quota,
    apportion,
    merge_corpora,
    question_sequence,
)

Item = TypeVar("Item")
Keys = Callable[[Sequence[EncodedText]], list[NDArray[np.float32]]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A positive pair: the positions, in two sequences, at which the vectors of a fact and of its question are read."""

    fact_sequence: int
    fact_position: int
    query_sequence: int
    query_position: int
    question: str

    def shift(self, by: int) -> Pair:
        """Give the pair with its sequences' indices raised by `by`, the number of sequences put before them."""
        fact_sequence, query_sequence = self.fact_sequence + by, self.query_sequence + by
        return replace(self, fact_sequence=fact_sequence, query_sequence=query_sequence)


@dataclass(frozen=True, slots=True)
class Step:
    """The sequences of some documents and the pairs among them: a whole optimiser step, or a part of one.

    `scored[i]` says whether sequence i carries the next-token loss; bare questions do not.
    """

    sequences: tuple[EncodedText, ...]
    scored: tuple[bool, ...]
    pairs: tuple[Pair, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence) for sequence in self.sequences)

    @classmethod
    def of(cls, parts: Sequence[Step]) -> Step:
        """Join the sequences of several parts, and their pairs."""
        begins = [0, *accumulate(len(part.sequences) for part in parts)]
        pairs = tuple(
            pair.shift(begin) for part, begin in zip(parts, begins, strict=False) for pair in part.pairs
        )
        sequences = tuple(sequence for part in parts for sequence in part.sequences)
        return cls(sequences, tuple(scored for part in parts for scored in part.scored), pairs)


@dataclass(frozen=True, slots=True)
class DrawnDocument:
    """One document of a step, or a piece of a longer one. `draw` seeds the random choices made for it."""

    corpus: int
    place: DocumentPiece
    draw: str


@dataclass(frozen=True, slots=True)
class _Phase:
    """A phase of training: from step `begin` on, documents come from these streams, each with its corpus's number."""

    begin: int
    streams: tuple[tuple[int, PieceStream], ...]


def question_answer(question: str, value: str, form: str = QA_FORMS[0]) -> AnnotatedDocument:
    """Make a document that asks `question` and answers it with the fact `value`."""
    return document_answering(form.format(question=question), value, question)


def document_answering(lead: str, value: str, question: str) -> AnnotatedDocument:
    """Make a document of `lead`, which asks for the fact, and the fact `value`."""
    span = FactSpan(len(lead), len(lead) + len(value), value, question)
    return AnnotatedDocument("qa", lead + value, (span,))


def hold_out(documents: Sequence[Item], count: int, seed: int = 5) -> tuple[list[Item], list[Item]]:
    """Split documents into those to train on and `count` random ones to measure with, both in their former order."""
    drawn = set(random.Random(seed).sample(range(len(documents)), count))
    kept = [document for i, document in enumerate(documents) if i not in drawn]
    return kept, [documents[i] for i in sorted(drawn)]


class Steps:
    """An endless, seeded sequence of steps; step n is the same in every run and with any number of processes.

    `draw_documents` names the documents of a step. `build` makes the sequences of all or some of them, each document's
    independently of the others. `keys` computes unit vectors at the lookups of sequences with the current model, the
    same in all processes; only hard negatives need it.
    """

    def __init__(
        self,
        corpora: Sequence[Corpus],
        tokenizer: FactTokenizer,
        config: TrainConfig,
        *,
        keys: Keys | None = None,
    ) -> None:
        self.tokenizer, self.config, self._keys = tokenizer, config, keys
        for mix in (config.mix, config.cooldown_mix):
            if mix and len(mix) != len(corpora):
                raise TrainingRefused(
                    f"the mix weighs {len(mix)} corpora, and there are {len(corpora)}. "
                    f"Nothing was trained. Give as many weights, as in --set mix={[1] * len(corpora)}"
                )
        if config.hard_negatives and keys is None:
            raise TrainingRefused(
                "hard negatives need the model's own keys. Nothing was trained. Give Steps these `keys`, or set "
                "hard_negatives=0 in its TrainConfig"
            )
        self.corpora = [*corpora, merge_corpora(corpora)]
        if config.markup.key and not self.corpora[-1].num_questions:
            raise TrainingRefused(
                "nothing to train on: no document has a fact with a question. "
                "Add questions with `colmlm corpus annotate`"
            )
        self._pieces: dict[int, Pieces] = {}
        self._phases = [self._phase("main", 0, config.mix)]
        if config.cooldown_mix:
            self._phases.append(self._phase("cooldown", config.cooldown_start, config.cooldown_mix))

    @property
    def sha256(self) -> str:
        """Give the SHA-256, in hex, of the data of all corpora together."""
        return self.corpora[-1].sha256

    def add_to_record(self, record: TrainingRecord) -> TrainingRecord:
        """Give the training record with the digests of all texts of all corpora added."""
        return self.corpora[-1].add_to_record(record)

    @property
    def num_documents(self) -> int:
        return self.corpora[-1].num_documents

    def epochs(self, steps: int) -> float:
        """Compute the epochs of the mix's first corpus in `steps` steps, not counting those of a cooldown mix."""
        return min(steps, self._phase_end(0)) / self._phases[0].streams[0][1].per_epoch

    def most_per_forward(self, count: int) -> int | None:
        """Give how many of a step's `count` documents one micro-batch may take at most; None: all."""
        rows, batch = self.config.micro_rows, self.config.batch_rows
        if batch is None:
            return self.config.micro_documents
        return None if rows is None else max(1, count * rows // batch)

    def __iter__(self) -> Iterator[Step]:
        return self.starting_at(0)

    def starting_at(self, step: int) -> Iterator[Step]:
        return (self.build(self.draw_documents(n)) for n in count(step))

    def draw_documents(self, step: int) -> list[DrawnDocument]:
        """Draw the documents of a step, each with the seed of its random choices."""
        phase = next(phase for phase in reversed(self._phases) if phase.begin <= step)
        seed = f"{self.config.seed}/{step}"
        return [
            DrawnDocument(corpus, self._pieces[corpus].place(int(number)), f"{seed}/{corpus}/{number}")
            for corpus, stream in phase.streams
            for number in stream.numbers(step - phase.begin)
        ]  # fmt: skip

    def build(self, documents: Sequence[DrawnDocument]) -> Step:
        """Make the sequences of these documents, with a question or a question-answer document for each fact."""
        sequences: list[EncodedText] = []
        scored: list[bool] = []
        pairs: list[Pair] = []
        for drawn in documents:
            rng, at = random.Random(drawn.draw), len(sequences)
            shard = self.corpora[drawn.corpus].shards[drawn.place.shard]
            encoded, facts = shard.encoded_piece(drawn.place.document, drawn.place.start, drawn.place.end)
            sequences.append(encoded)
            scored.append(True)
            for fact, position in zip(facts, encoded.fact_positions, strict=True):
                if not (ids := shard.question(fact)):
                    continue
                question = self.tokenizer.decode(ids[1:-1])
                query, is_qa = question_sequence(ids), False
                if rng.random() < self.config.qa_fraction:
                    value = shard.value(drawn.place.document, fact)
                    lead = ASKING[self.config.asking](question, rng)
                    query, is_qa = self._question_document(lead, value, question), True
                pairs.append(Pair(at, position, len(sequences), query.fact_positions[0], question))
                sequences.append(query)
                scored.append(is_qa)
        return Step(tuple(sequences), tuple(scored), tuple(pairs))

    def state(self) -> dict[str, Any]:
        """Give the state that a resumed run must restore; empty without hard negatives."""
        streams = [stream.state() for phase in self._phases for _, stream in phase.streams]
        return {"streams": streams} if any(streams) else {}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            streams = [stream for phase in self._phases for _, stream in phase.streams]
            for stream, kept in zip(streams, state["streams"], strict=True):
                stream.restore(kept)

    def _question_document(self, lead: str, value_ids: Sequence[int], question: str) -> EncodedText:
        value = self.tokenizer.decode(value_ids)
        if self.tokenizer.space_inside:
            value = value.removeprefix(" ")
        return self.tokenizer.document(document_answering(lead, value, question))

    def _phase(self, name: str, begin: int, mix: Sequence[float]) -> _Phase:
        corpora = range(len(mix)) if mix else [len(self.corpora) - 1]
        quotas = self._quotas(mix or (1.0,))
        streams = [
            (corpus, self._stream(name, corpus, quota))
            for corpus, quota in zip(corpora, quotas, strict=True)
            if quota.documents or quota.tokens
        ]
        return _Phase(begin, tuple(streams))

    def _quotas(self, mix: Sequence[float]) -> list[Quota]:
        config = self.config
        if config.batch_rows is None:
            return [Quota(documents=share) for share in apportion(config.batch_documents, mix)]
        tokens = config.batch_rows * config.max_length
        return [Quota(tokens=round(tokens * weight / sum(mix))) for weight in mix]

    def _stream(self, name: str, corpus: int, quota: Quota) -> PieceStream:
        config = self.config
        pieces = self._pieces.setdefault(corpus, Pieces(self.corpora[corpus], config.max_length))
        return PieceStream(
            pieces,
            quota,
            block=config.block,
            tag=f"{config.seed}/{name}/{corpus}",
            compose=self._composer(corpus) if config.hard_negatives else None,
            window=config.mine_every,
        )

    def _composer(self, corpus: int) -> Callable[[Sequence[NDArray[np.int64]]], list[NDArray[np.int64]]]:
        def compose(steps: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
            mined = [self._mined_document(corpus, int(number)) for step in steps for number in step]
            assert self._keys is not None
            return regroup_by_confusion(steps, mined, self._keys, self.config.hard_negatives)

        return compose

    def _mined_document(self, corpus: int, number: int) -> MinedDocument:
        """Give the facts of document piece `number` and their questions, by which its hard negatives are found."""
        place = self._pieces[corpus].place(number)
        shard = self.corpora[corpus].shards[place.shard]
        encoded, facts = shard.encoded_piece(place.document, place.start, place.end)
        return MinedDocument.of(encoded, [shard.question(fact) for fact in facts])

    def _phase_end(self, phase: int) -> int:
        return self._phases[phase + 1].begin if phase + 1 < len(self._phases) else self.config.steps


# Documents that ask and answer one fact each, for methods that train on plain documents.
#
# Co-LMLM's trainer writes some questions in these forms itself. A method without a contrastive part reads documents
# only, so a model that is to answer prompts of this form needs such documents beside the others.


def quiz_documents(documents: Iterable[AnnotatedDocument]) -> Iterator[AnnotatedDocument]:
    """Make a question-answer document of each fact with a question; document id and fact number choose its form."""
    for document in documents:
        for number, span in enumerate(document.facts):
            if span.question:
                name = f"{document.external_id}/{number}"
                form = random.Random(f"quiz/{name}").choice(QA_FORMS)
                yield replace(question_answer(span.question, span.value, form), external_id=name)


# Hard negatives: documents that the model confuses are put into the same step.
#
# The current model makes keys and queries for the facts of a window of steps. If a query of one document is
# near a fact of another document with another question, the two documents belong in one step. No document is
# added or lost: the steps of the window only exchange them.

FACTS_PER_DOCUMENT = 4
_ROWS = 2048  # questions scored at once


@dataclass(frozen=True, slots=True)
class MinedDocument:
    """A document cut after the last of the facts chosen from it, and the questions of these facts."""

    context: EncodedText
    questions: tuple[EncodedText, ...]

    @classmethod
    def of(cls, encoded: EncodedText, questions: Sequence[tuple[int, ...]]) -> MinedDocument:
        """Choose at most `FACTS_PER_DOCUMENT` facts with a question, spread over the document."""
        asked = [i for i, ids in enumerate(questions) if ids]
        spread = np.linspace(0, len(asked) - 1, min(FACTS_PER_DOCUMENT, len(asked))).round().astype(int)
        chosen = [asked[i] for i in spread]
        positions = tuple(encoded.fact_positions[i] for i in chosen)
        end = positions[-1] + 1 if positions else 0
        return cls(
            EncodedText(encoded.ids[:end], positions, encoded.masked[:end]),
            tuple(question_sequence(questions[i]) for i in chosen),
        )


def regroup_by_confusion(
    steps: Sequence[NDArray[np.int64]],
    mined: Sequence[MinedDocument],
    keys: Callable[[Sequence[EncodedText]], list[NDArray[np.float32]]],
    count: int,
) -> list[NDArray[np.int64]]:
    """Regroup the documents of `steps` so that each is in one step with up to `count` documents it is confused with.

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
    order = _order_by_nearness(ends, near, count)
    return list(np.split(np.concatenate(steps)[order], ends[:-1]))


def _nearest(
    facts_ND: NDArray[np.float32],
    queries_ND: NDArray[np.float32],
    owners: NDArray[np.int64],
    asked: Sequence[tuple[int, ...]],
    count: int,
) -> dict[int, list[int]]:
    """Give for each document, by index, the other documents whose facts are nearest to its questions, nearest first."""
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


def _order_by_nearness(ends: Sequence[int], near: dict[int, list[int]], count: int) -> list[int]:
    """Order documents so that each is followed by those near it, while its step has room; steps end at `ends`."""
    placed: dict[int, None] = {}
    for document in range(ends[-1]):
        if document not in placed:
            placed[document] = None
            room = next(end for end in ends if end >= len(placed)) - len(placed)
            free = [other for other in near.get(document, ()) if other not in placed]
            placed.update(dict.fromkeys(free[: min(count, room)]))
    return list(placed)
