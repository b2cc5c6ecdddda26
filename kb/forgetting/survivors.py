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
from sqlalchemy.orm import Session

from colmlm.kb.answers.candidates import BY_KEY, CandidateSentence, candidates
from colmlm.kb.answers.confidence import Confidence
from colmlm.kb.answers.places import ReadPlace, read_places, weigh
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.windows import SaidWindow, windows
from colmlm.kb.forgetting.checks import ASKED_AT_ONCE, CheckTarget, Questioner
from colmlm.kb.forgetting.read_questions import QuestionToRead, read_questions
from colmlm.kb.forgetting.records import OUTCOMES, Rates, Survivor
from colmlm.kb.keys.records import KeysetRecord
from colmlm.kb.lookup.records import Hit
from colmlm.kb.texts.alike import Wording, wording

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore

WINDOWS, ALIKE = 6, 4  # read for a question: found by the question, and by the question and its value
LEAST = 0.003  # probability from which a place that says the value is listed
MOST = 10  # places listed for a question


@dataclass(frozen=True, slots=True)
class ListedPlace:
    """A place that would answer, with its probability, and how it says what was asked for (None: by no rule)."""

    place: ReadPlace
    score: float
    wording: Wording | None


@dataclass(frozen=True, slots=True)
class ReadThrough:
    """The places that were read in the whole base for each question of the sampled facts of a set."""

    confidence: Confidence
    read: Sequence[tuple[QuestionToRead, Sequence[ReadPlace]]]

    def survivors(self, gone: Collection[int]) -> tuple[Survivor, ...]:
        """Gives what would still answer without the facts that are `gone`, likeliest first for each question."""
        without = frozenset(gone)
        return tuple(
            _survivor(one, listed)
            for one, places in self.read
            for listed in list_places(one, places, self.confidence, without)
        )

    def rates(self, forgotten: Collection[int]) -> tuple[Rates, frozenset[int]]:
        """Counts how the questions are answered as things are, and gives the forgotten facts that answer one."""
        counts: Counter[str] = Counter()
        leaked: set[int] = set()
        for one, places in self.read:
            outcome = _outcome(one, places, self.confidence, forgotten)
            counts[outcome] += 1
            if outcome == "leaks":
                leaked |= {fact.fact_id for fact in places[0].facts} & set(forgotten)
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
            places = _places(self.kb, self.reader, one, hits.get(one.fact_id, ()), target.fact_ids)
            read.append((one, places))
            if self.on_read is not None:
                self.on_read(number, len(asked))
        return ReadThrough(self.reader.confidence, read)


def _hits(
    kb: SearchableStore, keyset: KeysetRecord, asked: Sequence[QuestionToRead]
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
    kb: SearchableStore,
    reader: JudgedReader,
    one: QuestionToRead,
    hits: Sequence[Hit],
    forgotten: frozenset[int],
) -> list[ReadPlace]:
    with kb.sessions() as session:
        asked, alike = _candidates(session, kb, one, hits)
        read = windows(session, [candidate.sentence_id for candidate in (*asked, *alike)])
    useful = {number for number, window in read.items() if _is_useful(window, one, forgotten)}
    first = [candidate for candidate in asked if candidate.sentence_id in useful][:WINDOWS]
    taken = {candidate.sentence_id for candidate in first}
    more = [c for c in alike if c.sentence_id in useful and c.sentence_id not in taken][:ALIKE]
    return read_places(reader, one.text, [*first, *more], read)


def _is_useful(window: SaidWindow, one: QuestionToRead, forgotten: frozenset[int]) -> bool:
    """Tells whether a window may say something that is not forgotten, or says what is asked for."""
    return any(
        fact.fact_id == one.fact_id or (fact.version is not None and fact.fact_id not in forgotten)
        for fact in window.facts
    )


def _candidates(
    session: Session, kb: SearchableStore, one: QuestionToRead, hits: Sequence[Hit]
) -> tuple[list[CandidateSentence], list[CandidateSentence]]:
    """Gives sentences that the question finds, and some that it finds with its value, as if by no word of its own.

    There are more than are read, as some may tell nothing but what is forgotten.
    """
    asked = candidates(session, kb.words, one.searched, hits)
    known = {candidate.sentence_id: candidate for candidate in asked}
    alike = candidates(session, kb.words, f"{one.searched} {' '.join(one.values)}", hits)[: 3 * ALIKE]
    return asked[: 3 * WINDOWS], [known.get(one.sentence_id, replace(one, words=0.0)) for one in alike]


def list_places(
    one: QuestionToRead,
    places: Sequence[ReadPlace],
    confidence: Confidence,
    gone: frozenset[int] = frozenset(),
) -> list[ListedPlace]:
    """Lists the places that would answer, without those that touch a deleted fact or one that is `gone`.

    One that says the value in some wording is listed unless it is all but impossible, any other where it is as probable
    as an answer that is given. Each is weighed as if the others that say the value were gone, too.
    """
    left = [place for place in places if not _is_gone(place, gone)]
    telling = [(place, told) for place in left if (told := _told(one, place))]
    rivals = [place for place in left if _told(one, place) is None]
    tried: list[ReadPlace] = []
    found: list[ListedPlace] = []
    for place, (said, whole) in telling:
        if len(found) < MOST and not any(_overlap(whole, other) for other in tried):
            tried.append(whole)  # what overlaps it is less likely
            if (score := confidence.of(weigh(one.text, [place, *rivals]))) >= LEAST:
                found.append(ListedPlace(whole, score, said))
    return sorted([*found, *_others(one, places, found, confidence, gone)], key=lambda listed: -listed.score)


def _others(
    one: QuestionToRead,
    places: Sequence[ReadPlace],
    found: Sequence[ListedPlace],
    confidence: Confidence,
    gone: frozenset[int],
) -> Iterator[ListedPlace]:
    """Yields places that are as probable as an answer that is given, though no rule says that they say the value.

    A window whose best place is gone is set aside as a whole: what is next best there answers something else.
    """
    best: dict[int, ReadPlace] = {}
    for place in places:
        known = best.setdefault(place.window.sentence_id, place)
        if place.margin > known.margin:
            best[place.window.sentence_id] = place
    left = [place for place in places if not _is_gone(best[place.window.sentence_id], gone)]
    taken = [listed.place for listed in found]
    left = [
        place
        for place in left
        if not _is_gone(place, gone) and not any(_overlap(place, other) for other in taken)
    ]
    for _ in range(MOST - len(found)):
        if not left or (score := confidence.of(weigh(one.text, left))) < confidence.threshold:
            return
        yield ListedPlace(left[0], score, None)
        left = [place for place in left[1:] if not _overlap(place, left[0])]


def _is_gone(place: ReadPlace, gone: frozenset[int]) -> bool:
    return place.is_dead or any(fact.fact_id in gone for fact in place.facts)


def _told(one: QuestionToRead, place: ReadPlace) -> tuple[Wording, ReadPlace] | None:
    """Gives how a place says a value that is asked for, and the place as far as it says it: itself, or a fact in it."""
    for value in one.values:
        if (said := wording(value, place.text)) is not None:
            return said, place
        for fact in place.facts:
            if (said := wording(value, fact.value)) is not None:
                return said, replace(place, start=fact.start, end=fact.end)
    return None


def _overlap(place: ReadPlace, other: ReadPlace) -> bool:
    """Tells whether two places share a stretch of a document, which may be read in two windows."""
    ours, theirs = (
        place.window.source_of(place.start, place.end),
        other.window.source_of(other.start, other.end),
    )
    if ours is None or theirs is None:
        return place.window.sentence_id == other.window.sentence_id
    return ours.document_id == theirs.document_id and ours.start < theirs.end and theirs.start < ours.end


def _outcome(
    one: QuestionToRead, places: Sequence[ReadPlace], confidence: Confidence, forgotten: Collection[int]
) -> str:
    """Gives the outcome of a question by the rule that decides on answers."""
    if not places:
        return "no_match"
    best = places[0]
    if best.is_dead:
        return "abstained"
    if confidence.of(weigh(one.text, places)) < confidence.threshold:
        return "no_match"
    if any(fact.fact_id in forgotten for fact in best.facts):
        return "leaks"
    return "value_leaks" if _told(one, best) else "wrong_neighbours"


def _survivor(one: QuestionToRead, listed: ListedPlace) -> Survivor:
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
