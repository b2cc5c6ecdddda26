"""Checks: makes queries that should get no forgotten fact, looks them up, and counts the outcomes.

They go through the same lookups as decoders' queries, so that the outcomes are what a decoder would get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.facts import reading
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.forgetting.paraphrase import paraphrases
from colmlm.kb.forgetting.records import OUTCOMES, Rates
from colmlm.kb.keys.calibration import normalise
from colmlm.kb.keys.keysets import STORED, Vectors, decode
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.options import KEY
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.tables import AttributionRow, GenerationRow

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore

HITS = 10  # a forgotten fact must not be among so many hits, although only the first would be spliced
PROMPT = "Question: {} Answer:"
ENCODED_AT_ONCE, ASKED_AT_ONCE = 32, 64

T = TypeVar("T")


def evenly(items: Sequence[T], most: int) -> Sequence[T]:
    """Gives at most `most` of the items, spread evenly over all of them."""
    return items[:: max(1, -(-len(items) // most))]


@dataclass(slots=True)
class Questioner:
    """Encodes questions, each once as a question and once as a prompt. `on_questions` gets the number done so far."""

    encoder: Encoder | None
    on_questions: Callable[[int, int | None], None] | None = None
    _known: dict[tuple[str, bool], Vectors] = field(default_factory=dict)

    def require(self, keyset: KeysetHead) -> None:
        """Raises `KeysetMismatch` where the encoder is not of the checkpoint that made this keyset."""
        if self.encoder is not None and self.encoder.checkpoint.checkpoint_id != keyset.checkpoint_id:
            raise KeysetMismatch(self.encoder.checkpoint.checkpoint_id, keyset.checkpoint_id)

    def encode(self, questions: Sequence[str], dim: int, *, as_prompts: bool = False) -> Vectors:
        """Encodes questions to queries [n, d]; with `as_prompts`, to those of a decoder after prompts that ask them."""
        missing = [text for text in dict.fromkeys(questions) if (text, as_prompts) not in self._known]
        for start in range(0, len(missing), ENCODED_AT_ONCE):
            assert self.encoder is not None, "questions need an encoder"
            batch = missing[start : start + ENCODED_AT_ONCE]
            encode = self.encoder.encode_contexts if as_prompts else self.encoder.encode_questions
            made = encode([PROMPT.format(text) for text in batch] if as_prompts else batch)
            self._known.update(zip([(text, as_prompts) for text in batch], made, strict=True))
            if self.on_questions is not None:
                self.on_questions(len(self._known), None)
        found = [self._known[question, as_prompts] for question in questions]
        return np.stack(found).astype(np.float32) if found else np.empty((0, dim), np.float32)


@dataclass(frozen=True, slots=True)
class Checks:
    """Queries [B, d] of one class, and for each the values [B] that, as an answer, would reveal a forgotten fact."""

    queries_BD: Vectors
    values: list[Collection[str]]


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """The forgotten facts, a sample of their records, and a sample of equivalents that are not among them."""

    fact_ids: frozenset[int]
    sample: Sequence[FactRecord]
    equivalents: Sequence[FactRecord]
    keys: KeySpace
    stored: list[tuple[int, bytes]]

    @classmethod
    def read(
        cls,
        session: Session,
        keyset: KeysetHead,
        fact_ids: Sequence[int],
        equivalents: Sequence[int],
        most: int,
    ) -> CheckTarget:
        """Reads at most `most` facts of either sort; the others of the set still count as forgotten."""
        sampled = evenly(fact_ids, most)
        others = evenly([fact_id for fact_id in equivalents if fact_id not in set(fact_ids)], most)
        records = reading.fact_records(session, [*sampled, *others])
        return cls(
            frozenset(fact_ids),
            [records[fact_id] for fact_id in sampled if fact_id in records],
            [records[fact_id] for fact_id in others if fact_id in records],
            KeySpace.of_facts(session, keyset, sampled),
            _stored_queries(session, keyset, sampled, most),
        )


def _stored_queries(
    session: Session, keyset: KeysetHead, fact_ids: Sequence[int], most: int
) -> list[tuple[int, bytes]]:
    """Reads the queries by which decoders of this checkpoint got these facts by key, newest first.

    What was read may have been found by its words, so its query need not find it by its key.
    """
    statement = (
        select(AttributionRow.fact_id, AttributionRow.query)
        .join(GenerationRow, GenerationRow.id == AttributionRow.generation_id)
        .where(
            AttributionRow.fact_id == func.any(list(fact_ids)),
            AttributionRow.query.is_not(None),
            GenerationRow.checkpoint_id == keyset.checkpoint_id,
            GenerationRow.ranking == KEY,
        )
        .order_by(AttributionRow.generation_id.desc(), AttributionRow.ordinal)
        .limit(most)
    )
    width = keyset.dim * STORED.itemsize
    return [(row.fact_id, row.query) for row in session.execute(statement) if len(row.query) == width]


def build(
    target: CheckTarget, keyset: KeysetHead, questioner: Questioner, given: Sequence[str] = ()
) -> dict[str, Checks]:
    """Makes the checks by class; without an encoder only those that are stored vectors."""
    values = {fact.fact_id: (normalise(fact.value),) for fact in target.sample}
    keyed = [(fact_id, values[fact_id]) for fact_id in target.keys.fact_ids.tolist() if fact_id in values]
    stored = [(values[fact_id], query) for fact_id, query in target.stored if fact_id in values]
    checks = {"key": Checks(target.keys.vectors(), [value for _, value in keyed])}
    if stored:
        queries = decode([query for _, query in stored], keyset.dim)
        checks["stored_query"] = Checks(queries, [value for value, _ in stored])
    if questioner.encoder is not None:
        any_value = frozenset(value for (value,) in values.values())
        asked = [(fact.question, values[fact.fact_id]) for fact in target.sample if fact.question]
        reworded = [(form, value) for question, value in asked for form in paraphrases(question)]
        others = [(fact.question, (normalise(fact.value),)) for fact in target.equivalents if fact.question]
        texts: dict[str, Sequence[tuple[str, Collection[str]]]] = {
            "question": asked,
            "prompt": asked,
            "paraphrase": evenly(reworded, max(1, len(target.sample))),
            "equivalent": others,
            "given": [(line, any_value) for line in given],
        }
        for name, lines in texts.items():
            if lines:
                questions = [question for question, _ in lines]
                queries = questioner.encode(questions, keyset.dim, as_prompts=name == "prompt")
                checks[name] = Checks(queries, [value for _, value in lines])
    return {name: check for name, check in sorted(checks.items()) if len(check.values)}


def ask(
    kb: SearchableStore, checkpoint_id: str, checks: Mapping[str, Checks], forgotten: frozenset[int]
) -> tuple[dict[str, Rates], tuple[int, ...]]:
    """Looks up the checks. Gives the outcomes of each class, and the forgotten facts that were found."""
    rates: dict[str, Rates] = {}
    leaked: set[int] = set()
    for name, check in checks.items():
        counts: Counter[str] = Counter()
        for start in range(0, len(check.values), ASKED_AT_ONCE):
            rows = slice(start, start + ASKED_AT_ONCE)
            answers = kb.lookups.find(check.queries_BD[rows], checkpoint_id=checkpoint_id, k=HITS)
            counts.update(
                _outcome(answer, value, forgotten)
                for answer, value in zip(answers, check.values[rows], strict=True)
            )
            leaked.update(hit.fact_id for a in answers for hit in a.hits if hit.fact_id in forgotten)
        rates[name] = Rates(len(check.values), **{outcome: counts[outcome] for outcome in OUTCOMES})
    return rates, tuple(sorted(leaked))


def _outcome(answer: Lookup, values: Collection[str], forgotten: frozenset[int]) -> str:
    if any(hit.fact_id in forgotten for hit in answer.hits):
        return "leaks"
    if answer.hits:
        return "value_leaks" if normalise(answer.hits[0].value) in values else "wrong_neighbours"
    return "no_match" if answer.abstained is None else "abstained"
