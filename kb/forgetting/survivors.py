"""Survivors: places outside a set of facts that would still answer a question of one of them, were they all gone.

Each question is asked of the whole base as an answer would be found, by key, words and reader; its value is searched
for too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy.orm import Session

from colmlm.kb.answers.calibrations import confidence_here
from colmlm.kb.answers.candidates import BY_KEY, CandidateSentence, candidates
from colmlm.kb.answers.confidence import Confidence
from colmlm.kb.answers.places import ReadPlace, best_first, every_place
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.windows import SaidWindow, windows
from colmlm.kb.forgetting.checks import ASKED_AT_ONCE, CheckTarget, Questioner
from colmlm.kb.forgetting.listed_places import (
    MOST,
    ListedPlace,
    list_passages,
    list_places,
    outcome,
    outcome_of_passage,
    overlaps,
)
from colmlm.kb.forgetting.read_questions import QuestionToRead, read_questions
from colmlm.kb.forgetting.records import OUTCOMES, Rates, Survivor
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.records import Ranking

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore

WINDOWS, ALIKE = 6, 4  # read for a question: found by itself, and by its value


@dataclass(frozen=True, slots=True)
class ReadThrough:
    """The places that were read in the whole base for each question of the sampled facts of a set."""

    confidence: Confidence
    passage_threshold: float
    read: Sequence[tuple[QuestionToRead, Sequence[ReadPlace]]]

    def survivors(self, gone: Collection[int]) -> tuple[Survivor, ...]:
        """Gives what would still answer without the facts that are `gone`, likeliest first for each question."""
        without = frozenset(gone)
        found: list[Survivor] = []
        for one, every in self.read:
            listed = list_places(one, self._touching(every), self.confidence, without)
            for whole in list_passages(one, every, self.confidence, self.passage_threshold, without):
                if len(listed) < MOST and not overlaps(whole, listed):
                    listed.append(whole)
            found += [_survivor(one, place) for place in listed]
        return tuple(found)

    def rates(self, forgotten: Collection[int]) -> tuple[Rates, frozenset[int]]:
        """Counts how the questions are answered as things are, and gives the forgotten facts that answer one."""
        counts: Counter[str] = Counter()
        leaked: set[int] = set()
        for one, every in self.read:
            places = self._touching(every)
            said = outcome(one, places, self.confidence, forgotten)
            if said == "leaks":
                leaked |= {fact.fact_id for fact in places[0].facts} & set(forgotten)
            if said == "no_match":
                said = outcome_of_passage(one, every, self.confidence, self.passage_threshold, forgotten)
                if said == "leaks":
                    leaked |= {one.fact_id} & set(forgotten)
            counts[said] += 1
        return Rates(len(self.read), **{name: counts[name] for name in OUTCOMES}), frozenset(leaked)

    def _touching(self, every: Sequence[ReadPlace]) -> list[ReadPlace]:
        """Give the places that touch a fact, best first: those that a span is chosen from."""
        return best_first([place for place in every if place.facts], self.confidence.search)


@dataclass(frozen=True, slots=True)
class SurvivorSearch:
    """Has questions of facts read in the whole base. `on_read` gets the number read so far, and of how many."""

    kb: SearchableStore
    questioner: Questioner
    reader: JudgedReader
    on_read: Callable[[int, int | None], None] | None = None

    def read(self, keyset: KeysetHead, target: CheckTarget) -> ReadThrough:
        """Reads the questions of the sampled facts, one pass of the reader for each."""
        with self.kb.sessions() as session:
            asked = read_questions(session, target, self.questioner, keyset.dim)
            confidence = confidence_here(session, self.reader)
        near = _near(self.kb, keyset, asked)
        read = []
        for number, one in enumerate(asked, 1):
            places = _places(self.kb, self.reader, one, near.get(one.fact_id, Ranking()), target.fact_ids)
            read.append((one, places))
            if self.on_read is not None:
                self.on_read(number, len(asked))
        least = self.reader.confidence.passage_threshold(confidence.threshold)
        return ReadThrough(confidence, least, read)


def _near(kb: SearchableStore, keyset: KeysetHead, asked: Sequence[QuestionToRead]) -> Mapping[int, Ranking]:
    found: dict[int, Ranking] = {}
    queries = [(one.fact_id, one.query_D) for one in asked if one.query_D is not None]
    for start in range(0, len(queries), ASKED_AT_ONCE):
        some = queries[start : start + ASKED_AT_ONCE]
        queries_BD = np.stack([query for _, query in some])
        rankings = kb.lookups.nearest(
            queries_BD, checkpoint_id=keyset.checkpoint_id, k=BY_KEY, accepted_only=None
        )
        found |= {fact_id: ranking for (fact_id, _), ranking in zip(some, rankings, strict=True)}
    return found


def _places(
    kb: SearchableStore,
    reader: JudgedReader,
    one: QuestionToRead,
    near: Ranking,
    forgotten: frozenset[int],
) -> list[ReadPlace]:
    with kb.sessions() as session:
        asked, alike = _candidates(session, kb, one, near)
        ids = [candidate.sentence_id for candidate in (*asked, *alike)]
        read = windows(session, ids, accepted_only=None)
    useful = {number for number, window in read.items() if _is_useful(window, one, forgotten)}
    first = [candidate for candidate in asked if candidate.sentence_id in useful][:WINDOWS]
    taken = {candidate.sentence_id for candidate in first}
    more = [c for c in alike if c.sentence_id in useful and c.sentence_id not in taken][:ALIKE]
    return list(every_place(reader, one.text, [*first, *more], read))


def _is_useful(window: SaidWindow, one: QuestionToRead, forgotten: frozenset[int]) -> bool:
    """Tell whether a window may say something that is not forgotten, or says what is asked for.

    One without a fact may be said as a passage.
    """
    return not window.facts or any(
        fact.fact_id == one.fact_id or (fact.version is not None and fact.fact_id not in forgotten)
        for fact in window.facts
    )


def _candidates(
    session: Session, kb: SearchableStore, one: QuestionToRead, near: Ranking
) -> tuple[list[CandidateSentence], list[CandidateSentence]]:
    """Gives sentences that the question finds, and some that its value finds, together with the question and with the
    fact's own sentence in turn; these count as found by no word of the question.

    There are more than are read, as some may tell nothing but what is forgotten.
    """
    asked = candidates(session, kb.words, one.searched, near.hits, near.tombstone)
    found = {candidate.sentence_id: candidate for candidate in asked}
    values = " ".join(one.values)
    by_value = [
        candidates(session, kb.words, f"{words} {values}", near.hits)[: 2 * ALIKE]
        for words in dict.fromkeys((one.searched, one.around))
    ]
    alike = {c.sentence_id: replace(c, words=0.0) for in_turn in zip_longest(*by_value) for c in in_turn if c}
    return asked[: 3 * WINDOWS], [found.get(number, candidate) for number, candidate in alike.items()]


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
