"""Checks: makes queries that should get no forgotten fact, looks them up, and counts the outcomes.

The queries are looked up as those of a decoder are, so that the outcomes are what a decoder would get.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sqlalchemy import Row, func, select, text
from sqlalchemy.orm import Session

from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.errors import KeysetMismatch
from colmlm.kb.facts import reading
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.keys.calibration import normalise_value
from colmlm.kb.keys.keysets import STORED, Vectors, decode_keys
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.lookup.options import KEY
from colmlm.kb.lookup.records import Lookup
from colmlm.kb.principal import as_service
from colmlm.kb.removal.records import OUTCOMES, Rates
from colmlm.kb.tables import AttributionRow, GenerationRow
from colmlm.kb.texts.alike import terms_of

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore


HITS = 10  # a forgotten fact must not be among so many hits, although only the first would be spliced
PROMPT = "Question: {} Answer:"
ENCODED_AT_ONCE, ASKED_AT_ONCE = 32, 64

T = TypeVar("T")


def sample_evenly(items: Sequence[T], most: int) -> Sequence[T]:
    """Give at most `most` of the items, spread evenly over all of them."""
    return items[:: max(1, -(-len(items) // most))]


@dataclass(slots=True)
class Questioner:
    """Encodes questions and keeps their queries. `on_questions` gets the number encoded so far, and None as total."""

    encoder: Encoder | None
    on_questions: Callable[[int, int | None], None] | None = None
    _known: dict[tuple[str, bool], Vectors] = field(default_factory=dict)

    def require_keyset(self, keyset: KeysetHead) -> None:
        """Raise `KeysetMismatch` unless the encoder is of the checkpoint that made this keyset."""
        if self.encoder is not None and self.encoder.checkpoint.checkpoint_id != keyset.checkpoint_id:
            raise KeysetMismatch(self.encoder.checkpoint.checkpoint_id, keyset.checkpoint_id)

    def encode(self, questions: Sequence[str], dim: int, *, as_prompts: bool = False) -> Vectors:
        """Encode questions to queries [n, d]; with `as_prompts`, to those of a decoder after prompts that ask them."""
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
    """Queries [B, d] of a class such as "prompt", and for each the normalised values [B] that a hit would leak."""

    queries_BD: Vectors
    values: list[Collection[str]]


@dataclass(frozen=True, slots=True)
class CheckTarget:
    """The facts to check: the ids of all, records, keys and stored queries of a sample, and records of equivalents."""

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
        """Read at most `most` of the facts and as many equivalents. The other facts still count as forgotten."""
        sampled = sample_evenly(fact_ids, most)
        others = sample_evenly([fact_id for fact_id in equivalents if fact_id not in set(fact_ids)], most)
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
    """Read the queries by which decoders of this checkpoint got these facts by key, newest first.

    Lookups by words or reader are left out, as their queries need not find the fact by its key.
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


def build_checks(
    target: CheckTarget, keyset: KeysetHead, questioner: Questioner, given: Sequence[str] = ()
) -> dict[str, Checks]:
    """Make the checks, by class, without empty classes. Without an encoder there are only "key" and "stored_query"."""
    values = {fact.fact_id: (normalise_value(fact.value),) for fact in target.sample}
    keyed = [(fact_id, values[fact_id]) for fact_id in target.keys.fact_ids.tolist() if fact_id in values]
    stored = [(values[fact_id], query) for fact_id, query in target.stored if fact_id in values]
    checks = {"key": Checks(target.keys.vectors(), [value for _, value in keyed])}
    if stored:
        queries = decode_keys([query for _, query in stored], keyset.dim)
        checks["stored_query"] = Checks(queries, [value for value, _ in stored])
    if questioner.encoder is not None:
        any_value = frozenset(value for (value,) in values.values())
        asked = [(fact.question, values[fact.fact_id]) for fact in target.sample if fact.question]
        reworded = [(form, value) for question, value in asked for form in paraphrases(question)]
        others = [
            (fact.question, (normalise_value(fact.value),)) for fact in target.equivalents if fact.question
        ]
        texts: dict[str, Sequence[tuple[str, Collection[str]]]] = {
            "question": asked,
            "prompt": asked,
            "paraphrase": sample_evenly(reworded, max(1, len(target.sample))),
            "equivalent": others,
            "given": [(line, any_value) for line in given],
        }
        for name, lines in texts.items():
            if lines:
                questions = [question for question, _ in lines]
                queries = questioner.encode(questions, keyset.dim, as_prompts=name == "prompt")
                checks[name] = Checks(queries, [value for _, value in lines])
    return {name: check for name, check in sorted(checks.items()) if len(check.values)}


def ask_probes(
    kb: SearchableStore, checkpoint_id: str, checks: Mapping[str, Checks], forgotten: frozenset[int]
) -> tuple[dict[str, Rates], set[int]]:
    """Look up the checks. Give the counts of outcomes by class, and the ids of forgotten facts among the hits."""
    rates: dict[str, Rates] = {}
    leaked: set[int] = set()
    for name, check in checks.items():
        counts: Counter[str] = Counter()
        for start in range(0, len(check.values), ASKED_AT_ONCE):
            rows = slice(start, start + ASKED_AT_ONCE)
            with as_service():  # the filter limits what is found
                answers = kb.lookups.find(check.queries_BD[rows], checkpoint_id=checkpoint_id, k=HITS)
            counts.update(
                _lookup_outcome(answer, value, forgotten)
                for answer, value in zip(answers, check.values[rows], strict=True)
            )
            leaked.update(hit.fact_id for a in answers for hit in a.hits if hit.fact_id in forgotten)
        rates[name] = Rates(len(check.values), **{outcome: counts[outcome] for outcome in OUTCOMES})
    return rates, leaked


def _lookup_outcome(answer: Lookup, values: Collection[str], forgotten: frozenset[int]) -> str:
    if any(hit.fact_id in forgotten for hit in answer.hits):
        return "leaks"
    if answer.hits:
        return "value_leaks" if normalise_value(answer.hits[0].value) in values else "wrong_neighbours"
    return "no_match" if answer.abstained is None else "abstained"


# Paraphrases a question by rules, in forms in which the same thing is often asked.
#
# They are no proof against every wording; they find facts that come back by a change of case, punctuation or
# prompt form.

_WH = re.compile(r"(?:what|which|who|when|where) (?:is|was|are|were) (?P<rest>.+)", re.IGNORECASE)


def paraphrases(question: str) -> list[str]:
    """Give other ways to ask `question`, in a fixed order, each once and none of them the question itself."""
    bare = question.strip().rstrip("?").strip()
    lower_first = bare[:1].lower() + bare[1:]
    forms = [
        f"Question: {question}\nAnswer:",
        question.lower(),
        bare,
        f"Tell me: {lower_first}?",
        f"Do you know {lower_first}?",
    ]
    if (asked := _WH.fullmatch(bare)) is not None:
        rest = asked["rest"]
        forms += [f"Tell me {rest}.", f"{rest[:1].upper()}{rest[1:]}?"]
    return [form for form in dict.fromkeys(forms) if form != question]


# Questions of facts as a reader can be asked them, also those of facts that have none.
#
# A fact without a question is asked for by its own sentence: the reader goes on with a text that stops before
# the value, and the search takes all words of the sentence but the value.

LEAST_QUESTION_WORDS, MOST_WORDS = 3, 25  # of a sentence before its value, for it to ask alone

_SENTENCES = text("""
SELECT f.id AS fact_id, coalesce(d.title, '') AS title,
       substr(d.text, s.span_start + 1, f.span_start - s.span_start) AS before,
       substr(d.text, f.span_end + 1, greatest(0, s.span_end - f.span_end)) AS after
FROM fact f
JOIN sentence s ON s.document_id = f.document_id AND s.span_start <= f.span_start AND f.span_start < s.span_end
JOIN document d ON d.id = f.document_id
WHERE f.id = ANY(:ids)
""")


@dataclass(frozen=True, slots=True)
class QuestionToRead:
    """A question of a fact as it is read, the text whose words are searched for, the values that it asks for, its query
    [d] (None: it has no key), and what the fact's own sentence says around the value, where it has one.
    """

    fact_id: int
    text: str
    searched: str
    values: tuple[str, ...]
    query_D: Vectors | None
    around: str = ""


def read_questions(
    session: Session, target: CheckTarget, questioner: Questioner, dim: int
) -> list[QuestionToRead]:
    """Make the reader's questions: a fact's own, each once, or one of its sentence. A fact with neither is left out."""
    facts = [fact for fact in target.sample if fact.erased_seq is None]
    keys = _first_keys(target, facts)
    asking: dict[str, list[FactRecord]] = {}
    for fact in facts:
        if fact.question:
            asking.setdefault(normalise_value(fact.question), []).append(fact)
    if questioner.encoder is not None:
        firsts = [same[0] for same in asking.values()]
        queries = questioner.encode([fact.question or "" for fact in firsts], dim)
        keys |= {fact.fact_id: query for fact, query in zip(firsts, queries, strict=True)}
    sentences = {
        row.fact_id: row for row in session.execute(_SENTENCES, {"ids": [one.fact_id for one in facts]})
    }
    silent = [fact for fact in facts if not fact.question]
    return [
        *(_question_to_read(same, keys, sentences) for same in asking.values()),
        *_questions_from_sentences(silent, keys, sentences),
    ]


def _first_keys(target: CheckTarget, facts: Sequence[FactRecord]) -> dict[int, Vectors]:
    ids = np.array(sorted(fact.fact_id for fact in facts), dtype=np.int64)
    has_key, keys = target.keys.first_keys(ids)
    return dict(zip(ids[has_key].tolist(), keys, strict=True))


def _question_to_read(
    same: Sequence[FactRecord], keys: Mapping[int, Vectors], sentences: Mapping[int, Row[Any]]
) -> QuestionToRead:
    fact_id, question = same[0].fact_id, (same[0].question or "")[:MAX_QUESTION]
    values = tuple(dict.fromkeys(fact.value for fact in same))
    own = sentences.get(fact_id)
    around = "" if own is None else f"{own.before} {own.after}"
    return QuestionToRead(fact_id, question, question, values, keys.get(fact_id), around)


def _questions_from_sentences(
    facts: Sequence[FactRecord], keys: Mapping[int, Vectors], sentences: Mapping[int, Row[Any]]
) -> Iterator[QuestionToRead]:
    for fact in facts:
        own = sentences.get(fact.fact_id)
        if own is not None and (asked := _sentence_to_value(own.before, own.after)):
            around = f"{own.before} {own.after}"
            about = "" if _has_word_of_title(own.title, asked) else f"{own.title} "
            key = keys.get(fact.fact_id)
            yield QuestionToRead(
                fact.fact_id, about + asked, f"{own.title} {around}", (fact.value,), key, around
            )


def _sentence_to_value(before: str, after: str) -> str:
    """Give a sentence up to its value; the whole sentence without the value if too few words stand before it."""
    said = before.split()
    return " ".join(
        said[-MOST_WORDS:] if len(said) >= LEAST_QUESTION_WORDS else [*said, *after.split()][:MOST_WORDS]
    )


def _has_word_of_title(title: str, text: str) -> bool:
    """Tell whether a text has a word of the title, or the title has none to look for."""
    wanted = set(terms_of(title))
    return not wanted or bool(wanted & set(terms_of(text)))
