"""What the trainer reads: annotated documents as steps of sequences with their pairs."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kb.corpus import AnnotatedDocument, FactSpan
from model.tokens import Encoded, FactTokenizer
from model.training.config import TrainConfig

QA_FORMS = (
    "Question: {question}\nAnswer: ",
    "Question: {question} Answer: ",
    "Q: {question}\nA: ",
    "{question}\n",
    "{question} ",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A fact's key position in one sequence and its query position in another: a positive pair."""

    fact_sequence: int
    fact_position: int
    query_sequence: int
    query_position: int
    question: str


@dataclass(frozen=True, slots=True)
class Step:
    """The sequences of one optimiser step and the pairs among them.

    `scored[i]` says whether sequence i carries the next-token loss; bare questions do not.
    """

    sequences: tuple[Encoded, ...]
    scored: tuple[bool, ...]
    pairs: tuple[Pair, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence) for sequence in self.sequences)


def question_answer(question: str, value: str, form: str = QA_FORMS[0]) -> AnnotatedDocument:
    """A document that asks `question` and answers it with the fact `value`."""
    lead = form.format(question=question)
    span = FactSpan(len(lead), len(lead) + len(value), value, question)
    return AnnotatedDocument("qa", lead + value, (span,))


def data_hash(documents: Iterable[AnnotatedDocument]) -> str:
    """SHA-256 over every document's text and spans, in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document.text.encode() + b"\0")
        for span in document.facts:
            digest.update(f"{span.start}:{span.end}:{span.question}\0".encode())
    return digest.hexdigest()


def hold_out(
    documents: Sequence[AnnotatedDocument], count: int, seed: int = 5
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """The documents to train on and `count` drawn ones to measure with, both in their order."""
    drawn = set(random.Random(seed).sample(range(len(documents)), count))
    kept = [document for i, document in enumerate(documents) if i not in drawn]
    return kept, [documents[i] for i in sorted(drawn)]


class Steps:
    """An endless, seeded order of steps over a corpus; step n is the same in every run."""

    def __init__(
        self, documents: Sequence[AnnotatedDocument], tokenizer: FactTokenizer, config: TrainConfig
    ) -> None:
        self.documents = [d for d in documents if any(span.question for span in d.facts)]
        self.tokenizer = tokenizer
        self.config = config
        self.per_epoch = max(1, len(self.documents) // config.batch_documents)

    def __iter__(self) -> Iterator[Step]:
        return self.starting_at(0)

    def starting_at(self, step: int) -> Iterator[Step]:
        while True:
            epoch, within = divmod(step, self.per_epoch)
            order = self._order(epoch)
            for number in range(within, self.per_epoch):
                size = self.config.batch_documents
                chosen = [self.documents[i] for i in order[number * size : (number + 1) * size]]
                yield self.build(chosen, random.Random(f"{self.config.seed}/{epoch}/{number}"))
            step = (epoch + 1) * self.per_epoch

    def _order(self, epoch: int) -> list[int]:
        """Blocks of neighbours in a shuffled order, cut at another place in every epoch."""
        rng = random.Random(f"{self.config.seed}/{epoch}")
        count, block = len(self.documents), self.config.block
        cuts = [0, *range(rng.randrange(block) or block, count, block), count]
        blocks = [range(start, end) for start, end in pairwise(cuts)]
        rng.shuffle(blocks)
        return [i for block in blocks for i in block]

    def build(self, documents: Sequence[AnnotatedDocument], rng: random.Random) -> Step:
        """One step: the documents, and for each fact a question or a question-answer document."""
        sequences: list[Encoded] = []
        scored: list[bool] = []
        pairs: list[Pair] = []
        for document in documents:
            encoded = self._cut(
                self.tokenizer.document(document, with_title=rng.random() < self.config.title_fraction)
            )
            at = len(sequences)
            sequences.append(encoded)
            scored.append(True)
            for span, position in zip(document.facts, encoded.fact_positions, strict=False):
                if span.question is None:
                    continue
                query, is_qa = self._query(span, rng)
                pairs.append(Pair(at, position, len(sequences), query.fact_positions[0], span.question))
                sequences.append(query)
                scored.append(is_qa)
        return Step(tuple(sequences), tuple(scored), tuple(pairs))

    def _query(self, span: FactSpan, rng: random.Random) -> tuple[Encoded, bool]:
        assert span.question is not None
        if rng.random() < self.config.qa_fraction:
            return self.tokenizer.document(
                question_answer(span.question, span.value, rng.choice(QA_FORMS))
            ), True
        return self.tokenizer.question(span.question, self.config.max_question_length), False

    def _cut(self, encoded: Encoded) -> Encoded:
        limit = self.config.max_length
        if len(encoded) <= limit:
            return encoded
        positions = tuple(p for p in encoded.fact_positions if p < limit)
        return Encoded(encoded.ids[:limit], positions, encoded.masked[:limit])
