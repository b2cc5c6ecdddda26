"""Ranked lookups: a decoder's queries with texts beside them, by key alone, by key and words, or read by the reader.

- "key" is `Lookups.find`, as in the paper.
- "words" finds sentences by both, as answers are found, and takes the best fact in them: by its cosine, and by how near
  its sentence comes to the best one by its words. The keyset's threshold holds for the sum.
- "reader" has these sentences read. The fact under the best place is found, if most of the place is that fact; over a
  deleted one nothing is. The score is a probability, and the threshold of answers holds for it.

Of "words" the SELECT of `find` is the last that is done; of "reader" the texts are read again once they were read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from colmlm.kb.answers.answering import ATTEMPTS, SURE, WINDOWS
from colmlm.kb.answers.calibrations import confidence_of_base
from colmlm.kb.answers.candidates import (
    BY_KEY,
    WEIGHT_OF_WORDS,
    CandidateSentence,
    candidate_sentences,
    keys_of_sentences,
)
from colmlm.kb.answers.places import (
    ReadPlace,
    forgotten_by_question,
    order_places,
    passages_to_read,
    place_of_own_question,
    places_in,
    settle_contradictions,
    weigh_span,
)
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.windows import FactInWindow, SaidWindow, read_windows
from colmlm.kb.errors import InvalidQuery, KeysetMismatch
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.log import audit
from colmlm.kb.lookup.likeness import SentenceEmbedder
from colmlm.kb.lookup.options import KEY, RANKINGS, READER, FullLookupOptions, LookupOptions
from colmlm.kb.lookup.records import AskedQuery, Hit, Lookup
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.store.store import require_primary
from colmlm.kb.texts.alike import compare_wording

if TYPE_CHECKING:
    from colmlm.kb.lookup.searcher import Searcher

NEITHER = (
    0.75  # of the best sentence's BM25: as many words make a fact neither nearer than its cosine nor farther
)
MOSTLY = 0.5  # of the characters of a place, which its fact says at least

Found = Sequence[CandidateSentence]


@dataclass(frozen=True, slots=True)
class RankedLookups:
    """Lookups in the present facts by any ranking, for a decoder. `reader` and `sentences` are called only if one has
    to read, and may raise.

    If `steady`, it also answers queries of the checkpoint whose keyset was active before the present one, so that an
    output ends with the checkpoint that it began with. Requests that begin after the activation must not use it.
    """

    kb: SearchableStore
    reader: Callable[[], JudgedReader]
    sentences: Callable[[], SentenceEmbedder | None] = lambda: None
    steady: bool = False

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> list[Lookup]:
        """Find the best live facts of each query [B, d]: `k` facts by key, one by another ranking.

        Raises what `Lookups.find` does, and `InvalidQuery` for an unknown ranking, or not one text per query.
        """
        try:
            return self._find(self.kb.searcher, queries_BD, checkpoint_id, options)
        except KeysetMismatch:
            former = self.kb.searcher.former(checkpoint_id) if self.steady else None
            if former is None:
                raise
            return self._find(former, queries_BD, checkpoint_id, options)

    def _find(
        self,
        searcher: Searcher,
        queries_BD: npt.NDArray[Any],
        checkpoint_id: str,
        options: LookupOptions,
    ) -> list[Lookup]:
        ranking, texts = options.get("ranking", KEY), options.get("texts", ())
        if ranking == KEY:
            return searcher.find(queries_BD, checkpoint_id=checkpoint_id, **options)
        wanted = FullLookupOptions.from_options(options | {"ranking": KEY})
        _check(ranking, texts, wanted, len(queries_BD))
        if wanted.min_seq is not None:
            searcher.await_change(wanted.min_seq)
        encoder = self.sentences() if ranking == READER else None
        seq, keyset_id = searcher.catch_up(), searcher.keyset_in_use
        near = searcher.nearest(
            queries_BD, checkpoint_id=checkpoint_id, k=BY_KEY, fact_filter=wanted.fact_filter
        )
        with self.kb.sessions() as session:
            found = [
                candidate_sentences(
                    session,
                    self.kb.words,
                    text,
                    one.hits,
                    one.tombstone,
                    asked=AskedQuery(checkpoint_id, query_D.astype(STORED).tobytes()),
                    fact_filter=wanted.fact_filter,
                    encoder=encoder,
                )[:WINDOWS]
                for text, one, query_D in zip(texts, near, np.asarray(queries_BD), strict=True)
            ]
            ids = sorted({one.sentence_id for row in found for one in row})
            keys = (
                {} if ranking == READER or keyset_id is None else keys_of_sentences(session, ids, keyset_id)
            )
        if ranking == READER:
            return self._read(texts, found, [one.tombstone for one in near], wanted)
        return searcher.among(
            queries_BD,
            [_word_weights(row, keys) for row in found],
            checkpoint_id=checkpoint_id,
            threshold=wanted.threshold,
            seq=seq,
            fact_filter=wanted.fact_filter,
        )

    def _read(
        self,
        texts: Sequence[str],
        found: Sequence[Found],
        near: Sequence[tuple[int, float] | None],
        wanted: FullLookupOptions,
    ) -> list[Lookup]:
        reader, ids = self.reader(), sorted({one.sentence_id for row in found for one in row})
        with self.kb.sessions() as session:
            now = read_windows(session, ids, fact_filter=wanted.fact_filter)
        for _ in range(ATTEMPTS):
            read = now
            there = [[one for one in row if one.sentence_id in read] for row in found]
            places = _places(reader, texts, there, read)
            with self.kb.sessions() as session:
                require_primary(session)
                seq = audit.head_seq(session)
                least = wanted.threshold
                if least is None:
                    least = confidence_of_base(session, reader).threshold
                contested = [settle_contradictions(session, one, reader.confidence.search) for one in places]
                own = [place_of_own_question(session, text, wanted.fact_filter) for text in texts]
                forgotten = [
                    forgotten_by_question(session, text, wanted.fact_filter, one)
                    for text, one in zip(texts, near, strict=True)
                ]
                now = read_windows(session, ids, fact_filter=wanted.fact_filter)
            if now == read:
                break
        else:
            raise InvalidQuery("the nearest texts keep changing. Ask again")
        scores = [
            reader.confidence.probability_of(weigh_span(*both)) if both[1] else 0.0
            for both in zip(texts, places, strict=True)
        ]
        decided = [
            _lookup_from_own(own_place, gone, _lookup_from_places(best, score, least, seq))
            for own_place, gone, best, score in zip(own, forgotten, contested, scores, strict=True)
        ]
        self.kb.searcher.observer.looked_up(decided)
        return decided


def _check(ranking: str, texts: Sequence[str], wanted: FullLookupOptions, number: int) -> None:
    if ranking not in RANKINGS:
        raise InvalidQuery(f"the ranking {ranking!r} is not one of {', '.join(RANKINGS)}")
    if len(texts) != number:
        raise InvalidQuery(f"the ranking {ranking!r} needs a text for each query: {len(texts)} for {number}")
    if wanted.k != 1:
        raise InvalidQuery(f"the ranking {ranking!r} gives one fact, but k is {wanted.k}. Leave k out")


def _word_weights(found: Found, keys: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """Give by key id what its sentence's words add to a cosine, maybe below 0; all 0 if no sentence has any."""
    is_heard = any(one.words for one in found)
    return {
        key_id: WEIGHT_OF_WORDS * (one.words - NEITHER) if is_heard else 0.0
        for one in found
        for key_id in keys.get(one.sentence_id, ())
    }


def _places(
    reader: JudgedReader, texts: Sequence[str], found: Sequence[Found], read: Mapping[int, SaidWindow]
) -> list[list[ReadPlace]]:
    asked = [(text, passages_to_read(row, read)) for text, row in zip(texts, found, strict=True)]
    return [
        order_places([one for one in places_in(row, read, readings) if one.facts], reader.confidence.search)
        for row, readings in zip(found, reader.read_all(asked), strict=True)
    ]


def _lookup_from_places(places: Sequence[ReadPlace], score: float, threshold: float, seq: int) -> Lookup:
    """Make the lookup of the best place: a hit, an abstention for a deleted fact, or no match."""
    if not places:
        return Lookup((), None, threshold, seq)
    dead = next((fact.fact_id for fact in places[0].facts if fact.version is None), None)
    if dead is not None:
        return Lookup((), None, threshold, seq, dead if score >= threshold else None)
    fact = _fact_said(places[0])
    if fact is None:
        return Lookup((), None, threshold, seq)
    said = fact.said_fact
    hit = Hit(said.fact_id, said.version, said.value, score, None, said.review)
    return Lookup((hit,) if score >= threshold else (), score, threshold, seq)


def _lookup_from_own(own: ReadPlace | None, forgotten: int | None, decided: Lookup) -> Lookup:
    """Replace hits that say something else by the fact of this very question: `own`, or abstain for a deleted one."""
    if forgotten is not None and decided.threshold <= SURE:
        return replace(decided, hits=(), abstained=forgotten)
    if (
        own is None
        or decided.threshold > SURE
        or any(compare_wording(own.text, hit.value) == "same" for hit in decided.hits)
    ):
        return decided
    return _lookup_from_places([own], SURE, decided.threshold, decided.seq)


def _fact_said(place: ReadPlace) -> FactInWindow | None:
    """Give the fact that covers most of a place; None if it covers less than `MOSTLY` of it."""

    def overlap_of(fact: FactInWindow) -> int:
        return min(place.end, fact.end) - max(place.start, fact.start)

    best = max(place.facts, key=lambda fact: (overlap_of(fact), fact.start - fact.end, -fact.fact_id))
    return best if overlap_of(best) >= MOSTLY * (place.end - place.start) else None
