"""Questions of facts as a reader can be asked them, also those of facts that have none.

A fact without a question is asked for by its own sentence: the reader goes on with a text that stops before the value,
and the search takes all words of the sentence but the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from colmlm.kb.answers.answering import MAX_QUESTION
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.forgetting.checks import CheckTarget, Questioner
from colmlm.kb.keys.calibration import normalise
from colmlm.kb.keys.keysets import Vectors
from colmlm.kb.texts.alike import terms

LEAST_WORDS, MOST_WORDS = 3, 25  # of a sentence before its value, for it to ask alone

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
    """Makes the questions of the sampled facts, each once. One that no sentence of a current text says is left out."""
    facts = [fact for fact in target.sample if fact.erased_seq is None]
    keys = _first_keys(target, facts)
    asking: dict[str, list[FactRecord]] = {}
    for fact in facts:
        if fact.question:
            asking.setdefault(normalise(fact.question), []).append(fact)
    if questioner.encoder is not None:
        firsts = [same[0] for same in asking.values()]
        queries = questioner.encode([fact.question or "" for fact in firsts], dim)
        keys |= {fact.fact_id: query for fact, query in zip(firsts, queries, strict=True)}
    sentences = {
        row.fact_id: row for row in session.execute(_SENTENCES, {"ids": [one.fact_id for one in facts]})
    }
    silent = [fact for fact in facts if not fact.question]
    return [*(_asked(same, keys, sentences) for same in asking.values()), *_cut_out(silent, keys, sentences)]


def _first_keys(target: CheckTarget, facts: Sequence[FactRecord]) -> dict[int, Vectors]:
    ids = np.array(sorted(fact.fact_id for fact in facts), dtype=np.int64)
    has_key, keys = target.keys.first(ids)
    return dict(zip(ids[has_key].tolist(), keys, strict=True))


def _asked(
    same: Sequence[FactRecord], keys: Mapping[int, Vectors], sentences: Mapping[int, Row[Any]]
) -> QuestionToRead:
    fact_id, question = same[0].fact_id, (same[0].question or "")[:MAX_QUESTION]
    values = tuple(dict.fromkeys(fact.value for fact in same))
    own = sentences.get(fact_id)
    around = "" if own is None else f"{own.before} {own.after}"
    return QuestionToRead(fact_id, question, question, values, keys.get(fact_id), around)


def _cut_out(
    facts: Sequence[FactRecord], keys: Mapping[int, Vectors], sentences: Mapping[int, Row[Any]]
) -> Iterator[QuestionToRead]:
    for fact in facts:
        own = sentences.get(fact.fact_id)
        if own is not None and (asked := _stopped(own.before, own.after)):
            around = f"{own.before} {own.after}"
            about = "" if _names(own.title, asked) else f"{own.title} "
            key = keys.get(fact.fact_id)
            yield QuestionToRead(
                fact.fact_id, about + asked, f"{own.title} {around}", (fact.value,), key, around
            )


def _stopped(before: str, after: str) -> str:
    """Gives a sentence up to its value, or without it where too little stands before it to go on from."""
    said = before.split()
    return " ".join(said[-MOST_WORDS:] if len(said) >= LEAST_WORDS else [*said, *after.split()][:MOST_WORDS])


def _names(title: str, text: str) -> bool:
    """Tells whether a text has a word of a title, as far as this has one."""
    wanted = set(terms(title))
    return not wanted or bool(wanted & set(terms(text)))
