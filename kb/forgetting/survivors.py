"""Survivors: places outside a set of facts that would still answer a question of one of them, were they all gone.

Each question is asked of the whole base as an answer would be found, by key, words and reader; its value is searched
for too. What touches a fact that is gone is set aside, and the places behind it are weighed as if it were not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.kb.answers.candidates import BY_KEY, CandidateSentence, candidates
from colmlm.kb.answers.confidence import Confidence
from colmlm.kb.answers.places import ReadPlace, read_places, weigh
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.windows import windows
from colmlm.kb.forgetting.checks import ASKED_AT_ONCE, CheckTarget, Questioner
from colmlm.kb.forgetting.read_questions import ReadQuestion, read_questions
from colmlm.kb.forgetting.records import OUTCOMES, Rates, Survivor
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.lookup.records import Hit
from colmlm.kb.texts.alike import Wording, wording

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore

WINDOWS, ALIKE = 6, 4  # read for a question: found by the question, and by the question and its value
LEAST_MARGIN = 0.0  # from which the reader takes a place that says the value for an answer
MOST = 10  # places listed for a question

# A fact that overlaps a forgotten one is no answer any more, but a lookup by key still finds it.
_OVERLAPPING = text("""
SELECT g.id AS gone_id, f.id AS fact_id, f.document_id, f.span_start, f.span_end, v.value
FROM fact g
JOIN fact f ON f.document_id = g.document_id AND f.span_start < g.span_end AND f.span_end > g.span_start
JOIN fact_version v ON v.fact_id = f.id AND v.to_seq IS NULL
WHERE g.id = ANY(:ids) AND f.id <> ALL(:gone)
ORDER BY g.id, f.id
""")


@dataclass(frozen=True, slots=True)
class ListedPlace:
    """A place that would answer, with its probability, and how it says what was asked for (None: by no rule)."""

    place: ReadPlace
    score: float
    wording: Wording | None


@dataclass(frozen=True, slots=True)
class ReadThrough:
    """The sampled facts of a set, and the places that were read in the whole base for each of their questions."""

    target: CheckTarget
    confidence: Confidence
    read: Sequence[tuple[ReadQuestion, Sequence[ReadPlace]]]

    def survivors(self, session: Session, gone: Collection[int]) -> tuple[Survivor, ...]:
        """Gives what would still answer without the facts that are `gone`, likeliest first for each question."""
        without = frozenset(gone)
        answering = [
            _survivor(one, listed)
            for one, places in self.read
            for listed in list_places(one, places, self.confidence, without)
        ]
        return (*answering, *_overlapping(session, self.target, without))

    def rates(self, forgotten: Collection[int]) -> tuple[Rates, frozenset[int]]:
        """Counts how the questions are answered as things are, and gives the forgotten facts that answer one."""
        counts: Counter[str] = Counter()
        leaked: set[int] = set()
        for one, places in self.read:
            found = list_places(one, places, self.confidence)
            here = {fact.fact_id for listed in found for fact in listed.place.facts} & set(forgotten)
            counts[_outcome(found, places, bool(here))] += 1
            leaked |= here
        return Rates(len(self.read), **{name: counts[name] for name in OUTCOMES}), frozenset(leaked)


@dataclass(frozen=True, slots=True)
class SurvivorSearch:
    """Has questions of facts read in the whole base. `on_read` gets the number read so far, and of how many."""

    kb: SearchableStore
    questioner: Questioner
    reader: JudgedReader
    on_read: Callable[[int, int | None], None] | None = None

    def read(self, keyset: KeysetRecord, target: CheckTarget) -> ReadThrough:
        """Reads the questions of the sampled facts, one pass of the reader for each."""
        with self.kb.sessions() as session:
            asked = read_questions(session, target, self.questioner, keyset.dim)
        hits = _hits(self.kb, keyset, asked)
        read = []
        for number, one in enumerate(asked, 1):
            read.append((one, _places(self.kb, self.reader, one, hits.get(one.fact_id, ()))))
            if self.on_read is not None:
                self.on_read(number, len(asked))
        return ReadThrough(target, self.reader.confidence, read)


def _hits(
    kb: SearchableStore, keyset: KeysetRecord, asked: Sequence[ReadQuestion]
) -> Mapping[int, Sequence[Hit]]:
    found: dict[int, Sequence[Hit]] = {}
    queries = [(one.fact_id, one.query_D) for one in asked if one.query_D is not None]
    for start in range(0, len(queries), ASKED_AT_ONCE):
        some = queries[start : start + ASKED_AT_ONCE]
        lookups = kb.lookups.find(
            np.stack([query for _, query in some]),
            checkpoint_id=keyset.checkpoint_id,
            k=BY_KEY,
            threshold=-1.0,
        )
        found |= {fact_id: lookup.hits for (fact_id, _), lookup in zip(some, lookups, strict=True)}
    return found


def _places(
    kb: SearchableStore, reader: JudgedReader, one: ReadQuestion, hits: Sequence[Hit]
) -> list[ReadPlace]:
    with kb.sessions() as session:
        found = _candidates(session, kb, one, hits)
        read = windows(session, [candidate.sentence_id for candidate in found])
    return read_places(reader, one.text, [c for c in found if c.sentence_id in read], read)


def _candidates(
    session: Session, kb: SearchableStore, one: ReadQuestion, hits: Sequence[Hit]
) -> list[CandidateSentence]:
    """Gives the sentences to read; those that only the value finds come last, as found by no word of the question."""
    asked = candidates(session, kb.words, one.searched, hits)
    with_value = f"{one.searched} {' '.join(one.values)}"
    first, known = asked[:WINDOWS], {candidate.sentence_id: candidate for candidate in asked}
    taken = {candidate.sentence_id for candidate in first}
    alike = candidates(session, kb.words, with_value, hits)[:ALIKE]
    return [
        *first,
        *(known.get(c.sentence_id, replace(c, words=0.0)) for c in alike if c.sentence_id not in taken),
    ]


def list_places(
    one: ReadQuestion,
    places: Sequence[ReadPlace],
    confidence: Confidence,
    gone: frozenset[int] = frozenset(),
) -> list[ListedPlace]:
    """Lists the places that would answer, without those that touch a deleted fact or one that is `gone`.

    One that says the value in some wording answers where the reader takes it for an answer, any other where it is as
    probable as an answer that is given. Each is weighed as if those listed before it were gone, too.
    """
    left = [place for place in places if not place.is_dead and not _touches(place, gone)]
    found: list[ListedPlace] = []
    saying = [place for place in left if place.margin >= LEAST_MARGIN and _wording(one, place)]
    for place in saying:
        if len(found) < MOST and not any(_overlap(place, listed.place) for listed in found):
            rivals = [other for other in left if other is not place and _wording(one, other) is None]
            score = confidence.of(weigh(one.text, [place, *rivals]))
            found.append(ListedPlace(place, score, _wording(one, place)))
    left = [place for place in left if not any(_overlap(place, listed.place) for listed in found)]
    while left and len(found) < MOST:
        if (score := confidence.of(weigh(one.text, left))) < confidence.threshold:
            break
        found.append(ListedPlace(left[0], score, None))
        left = [place for place in left if not _overlap(place, found[-1].place)]
    return sorted(found, key=lambda listed: -listed.score)


def _touches(place: ReadPlace, gone: frozenset[int]) -> bool:
    return any(fact.fact_id in gone for fact in place.facts)


def _wording(one: ReadQuestion, place: ReadPlace) -> Wording | None:
    return next((said for value in one.values if (said := wording(value, place.text))), None)


def _overlap(place: ReadPlace, other: ReadPlace) -> bool:
    """Tells whether two places share a stretch of a document, which may be read in two windows."""
    ours, theirs = (
        place.window.source_of(place.start, place.end),
        other.window.source_of(other.start, other.end),
    )
    if ours is None or theirs is None:
        return place.window.sentence_id == other.window.sentence_id
    return ours.document_id == theirs.document_id and ours.start < theirs.end and theirs.start < ours.end


def _outcome(found: Sequence[ListedPlace], places: Sequence[ReadPlace], leaks: bool) -> str:
    if leaks:
        return "leaks"
    if found:
        return "value_leaks" if any(listed.wording for listed in found) else "wrong_neighbours"
    return "abstained" if places and places[0].is_dead else "no_match"


def _survivor(one: ReadQuestion, listed: ListedPlace) -> Survivor:
    place = listed.place
    source = place.window.source_of(place.start, place.end)
    return Survivor(
        asked_fact_id=one.fact_id,
        fact_ids=tuple(fact.fact_id for fact in place.facts),
        document_id=None if source is None else source.document_id,
        start=None if source is None else source.start,
        end=None if source is None else source.end,
        says=listed.wording or "other",
        score=round(listed.score, 4),
    )


def _overlapping(session: Session, target: CheckTarget, gone: frozenset[int]) -> Iterator[Survivor]:
    values = {fact.fact_id: fact.value for fact in target.sample if fact.erased_seq is None}
    for row in session.execute(_OVERLAPPING, {"ids": list(values), "gone": list(gone)}):
        if (says := wording(values[row.gone_id], row.value)) is not None:
            yield Survivor(
                row.gone_id, (row.fact_id,), row.document_id, row.span_start, row.span_end, says, None
            )
