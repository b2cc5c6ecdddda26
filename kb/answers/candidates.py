"""Candidates: the sentences that may answer a question, found by key and by words.

A key knows what stands before a fact, and the words of a sentence all of it; together they find more than either does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.keys.keysets import STORED, decode_keys
from colmlm.kb.lookup.likeness import SentenceEmbedder, sentence_likenesses
from colmlm.kb.lookup.options import EVERY_FACT, HIDDEN, OUTSIDE, FactFilter
from colmlm.kb.lookup.records import AskedQuery, Hit
from colmlm.kb.lookup.searchable import MOST_CANDIDATES, SentenceFound, WordSearch

# Held: the facts that begin in sentences, or have one for themselves without a document; a part of
# statements.

HELD = """
(
    SELECT s.id AS sentence_id, f.id AS fact_id
    FROM sentence s JOIN fact f
      ON f.document_id = s.document_id AND s.span_start <= f.span_start AND f.span_start < s.span_end
    WHERE s.id = ANY(:ids)
    UNION ALL
    SELECT s.id, s.fact_id FROM sentence s WHERE s.id = ANY(:ids) AND s.fact_id IS NOT NULL
) AS held
"""
_FACTS = text("SELECT DISTINCT held.fact_id FROM HELD".replace("HELD", HELD))


def facts_in_sentences(session: Session, sentence_ids: Collection[int]) -> frozenset[int]:
    """Give the ids of the facts, live or not, that begin in these sentences; one without a document has its own."""
    return frozenset(session.scalars(_FACTS, {"ids": list(sentence_ids)}))


BY_KEY = 50  # facts
BY_WORDS = 30  # sentences
BY_WORDS_TO_ENCODE = 200  # sentences, where vectors say which of them mean what is asked
WEIGHT_OF_WORDS = 0.4
WEIGHT_OF_WORDS_BESIDE, WEIGHT_OF_KEY_BESIDE = 0.2, 0.1  # beside the likeness of vectors

_OF_FACTS = text("""
SELECT f.id AS fact_id, s.id AS sentence_id
FROM fact f JOIN sentence s
  ON s.document_id = f.document_id AND s.span_start <= f.span_start AND f.span_start < s.span_end
WHERE f.id = ANY(:ids)
UNION ALL
SELECT s.fact_id, s.id FROM sentence s WHERE s.fact_id = ANY(:ids)
""")

_KEYS = text(
    """
SELECT held.sentence_id, k.id AS key_id
FROM HELD JOIN fact_key k ON k.fact_id = held.fact_id
WHERE k.keyset_id = :keyset_id
""".replace("HELD", HELD)
)

# Sentences that have facts, of which each is left out, and none was deleted; and those outside of the corpora.
_LEFT_OUT = text(
    """
SELECT held.sentence_id
FROM HELD JOIN fact f ON f.id = held.fact_id
GROUP BY held.sentence_id HAVING bool_and(f.deleted_seq IS NULL AND HIDDEN)
UNION
SELECT s.id FROM sentence s LEFT JOIN document d ON d.id = s.document_id WHERE s.id = ANY(:ids) AND OUTSIDE
""".replace("HIDDEN", HIDDEN)
    .replace("HELD", HELD)
    .replace("OUTSIDE", OUTSIDE)
)

_OF_CORPORA = text("""
SELECT s.id FROM sentence s JOIN document d ON d.id = s.document_id WHERE d.corpus = ANY(:corpora) LIMIT :most
""")


@dataclass(frozen=True, slots=True)
class CandidateSentence:
    """A sentence with the best `cosine` of a fact's key in it, and its BM25 (`words`) as a share of the highest.

    `nearness` is that cosine without the scale of a checkpoint: 0 for the median of the question's hits, 1 for the key
    that is the query itself. `likeness` is the cosine of its own vector and the question's (`kb.lookup.likeness`), None
    where there is no encoder of sentences.
    """

    sentence_id: int
    cosine: float
    nearness: float
    words: float
    likeness: float | None = None

    @property
    def score(self) -> float:
        if self.likeness is None:
            return self.cosine + WEIGHT_OF_WORDS * self.words
        return (
            self.likeness
            + WEIGHT_OF_WORDS_BESIDE * self.words
            + WEIGHT_OF_KEY_BESIDE * max(0.0, self.nearness)
        )


def nearness_of(cosine: float, typical: float) -> float:
    """Give a cosine without the scale of a checkpoint: 0 for the `typical` one of the hits, 1 for the query itself."""
    return (cosine - typical) / max(1e-3, 1 - typical)


def candidate_sentences(
    session: Session,
    words: WordSearch,
    question: str,
    hits: Sequence[Hit],
    tombstone: tuple[int, float] | None = None,
    gone: Collection[int] = (),
    *,
    asked: AskedQuery | None = None,
    fact_filter: FactFilter = EVERY_FACT,
    encoder: SentenceEmbedder | None = None,
) -> list[CandidateSentence]:
    """Give the sentences that contain these hits of a lookup, or share words with the question, best first.

    The sentence of the `tombstone`, a deleted fact with its cosine, is one of them. A sentence found by words alone
    gets the least cosine of the hits, and one found by key alone gets 0 for its words. With the query `asked`, a
    sentence found by words is at least as near as the nearest deleted fact in it. Left out are sentences in `gone`,
    which contain none of the hits, and those with only live facts that fail the filter. With an `encoder` more
    sentences are found by words, and the likeness of vectors orders them.
    """
    by_key = dict(_by_key(session, hits, tombstone))
    wanted = BY_WORDS if encoder is None else BY_WORDS_TO_ENCODE
    found = _by_words(session, words, question, by_key, gone, fact_filter, wanted)
    if asked is not None:
        for one, cosine in deleted_cosines(session, [row.sentence_id for row in found], asked).items():
            by_key[one] = max(cosine, by_key.get(one, cosine))
    best = max((one.score for one in found), default=0.0) or 1.0
    by_words = {one.sentence_id: one.score / best for one in found}
    cosines = [hit.score for hit in hits] or [0.0]
    least, typical = min(cosines), median(cosines)
    alike: dict[int, float] = {}
    if encoder is not None:
        alike = sentence_likenesses(session, encoder, question, dict.fromkeys((*by_words, *by_key)))
    unlike = min(alike.values(), default=0.0)
    rows = []
    for one in by_key.keys() | by_words.keys():
        cosine = by_key.get(one, least)
        likeness = None if encoder is None else alike.get(one, unlike)
        nearness = nearness_of(cosine, typical) if hits else 0.0
        rows.append(CandidateSentence(one, cosine, nearness, by_words.get(one, 0.0), likeness))
    return sorted(rows, key=lambda one: (-one.score, one.sentence_id))


def _by_words(
    session: Session,
    words: WordSearch,
    question: str,
    also: Collection[int],
    gone: Collection[int],
    fact_filter: FactFilter,
    wanted: int,
) -> list[SentenceFound]:
    """Find sentences by their words, and search again for more if too many of them are left out.

    In corpora of few sentences every sentence that shares a word is found, whatever other corpora contain.
    """
    few = _all_of_few(session, fact_filter.corpora)
    limit = 2 * MOST_CANDIDATES if few else wanted + len(gone)
    while True:
        found = words.find(session, question, limit, {*also, *few}, fact_filter.corpora)
        left_out = _left_out(session, [one.sentence_id for one in found], fact_filter)
        shared = (one for one in found if one.score > 0 or one.sentence_id in also)
        kept = [one for one in shared if one.sentence_id not in gone and one.sentence_id not in left_out]
        if not left_out or len(kept) >= wanted or len(found) < limit or limit > MOST_CANDIDATES:
            return kept
        limit *= 4


def _all_of_few(session: Session, corpora: Sequence[str]) -> frozenset[int]:
    """Give the sentences of these corpora if they are few enough to compare one by one, else none."""
    if not corpora:
        return frozenset()
    asked = {"corpora": list(corpora), "most": MOST_CANDIDATES + 1}
    found = session.scalars(_OF_CORPORA, asked).all()
    return frozenset(found) if len(found) <= MOST_CANDIDATES else frozenset()


def _left_out(session: Session, ids: Sequence[int], fact_filter: FactFilter) -> set[int]:
    if fact_filter == EVERY_FACT:
        return set()
    return set(session.scalars(_LEFT_OUT, {"ids": list(ids), **fact_filter.parameters}))


def sentences_of(session: Session, fact_ids: Collection[int]) -> dict[int, int]:
    """Give the sentence that each fact begins in, by fact; a fact without a document has one for itself."""
    if not fact_ids:
        return {}
    return {row.fact_id: row.sentence_id for row in session.execute(_OF_FACTS, {"ids": list(fact_ids)})}


def keys_of_sentences(
    session: Session, sentence_ids: Collection[int], keyset_id: int
) -> dict[int, list[int]]:
    """Give the keys in a keyset of the facts that begin in each of these sentences, by sentence."""
    found = defaultdict[int, list[int]](list)
    for row in session.execute(_KEYS, {"ids": list(sentence_ids), "keyset_id": keyset_id}):
        found[row.sentence_id].append(row.key_id)
    return found


def _by_key(
    session: Session, hits: Sequence[Hit], tombstone: tuple[int, float] | None
) -> Mapping[int, float]:
    scores = {hit.fact_id: hit.score for hit in hits} | dict([tombstone] if tombstone else [])
    best: dict[int, float] = {}
    for fact_id, sentence_id in sentences_of(session, scores).items():
        best[sentence_id] = max(best.get(sentence_id, -1.0), scores[fact_id])
    return best


# Deleted facts near a question: how near their keys are, though no lookup finds them.
#
# A sentence that is read because of a fact is read as well once the fact is deleted. Else what stands behind
# it in the order would be read in its place, look surer than it was, and be said.

_KEYS_DELETED = text(
    """
SELECT held.sentence_id, k.key
FROM HELD JOIN fact f ON f.id = held.fact_id AND f.deleted_seq IS NOT NULL AND f.erased_seq IS NULL
JOIN fact_key k ON k.fact_id = f.id
JOIN keyset y ON y.id = k.keyset_id AND y.state IN ('active', 'ready') AND y.checkpoint_id = :checkpoint_id
""".replace("HELD", HELD)
)


def deleted_cosines(session: Session, sentence_ids: Collection[int], asked: AskedQuery) -> dict[int, float]:
    """Give the best cosine to the query of a deleted fact in each sentence that has one with a key, by sentence."""
    rows = session.execute(
        _KEYS_DELETED, {"ids": list(sentence_ids), "checkpoint_id": asked.checkpoint_id}
    ).all()
    if not rows:
        return {}
    query_D = np.frombuffer(asked.query, STORED).astype(np.float32)
    cosines = decode_keys([row.key for row in rows], len(query_D)) @ query_D
    best: dict[int, float] = {}
    for row, cosine in zip(rows, cosines.tolist(), strict=True):
        best[row.sentence_id] = max(best.get(row.sentence_id, -1.0), cosine)
    return best
