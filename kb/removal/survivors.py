"""Survivors: places outside a set of facts that would still answer a question of one of them, were they all gone.

Each question is asked of the whole base as an answer would be found, by key, words and reader; its value is searched
for too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy.orm import Session

from colmlm.kb.answers.calibrations import confidence_of_base
from colmlm.kb.answers.candidates import BY_KEY, CandidateSentence, candidate_sentences
from colmlm.kb.answers.places import (
    ReadPlace,
    best_windows,
    order_places,
    read_every_place,
    weigh_passage,
    weigh_span,
)
from colmlm.kb.answers.reading import Confidence, JudgedReader
from colmlm.kb.answers.records import SaidFact
from colmlm.kb.answers.windows import SaidWindow, read_stretches, read_windows
from colmlm.kb.facts.reading import fact_records
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.likeness import SentenceEmbedder, sentence_likenesses
from colmlm.kb.lookup.options import every_fact_in_scope
from colmlm.kb.lookup.records import AskedQuery, Ranking
from colmlm.kb.principal import as_service
from colmlm.kb.removal.checks import (
    ASKED_AT_ONCE,
    CheckTarget,
    Questioner,
    QuestionToRead,
    read_questions,
)
from colmlm.kb.removal.records import (
    OUTCOMES,
    Rates,
    SaidSurvivor,
    Survivor,
)
from colmlm.kb.texts.alike import Wording, compare_wording, terms_of

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore


WINDOWS, ALIKE = 6, 4  # read for a question: found by itself, and by its value
LEAST = 0.003  # probability from which a place that says the value is listed
LEAST_ALIKE = 0.01  # probability from which its facts say the same as the one that is asked for
MOST = 10  # places listed for a question
LEAST_WORDS, REPEATED = 6, 0.7  # of a fact's own sentence, and what share of them makes a repetition


@dataclass(frozen=True, slots=True)
class ListedPlace:
    """A place that would answer, with its probability, and how it words the value (None: no rule finds the value)."""

    place: ReadPlace
    score: float
    wording: Wording | None

    def as_survivor(self, asked_fact_id: int) -> Survivor:
        """Give the place as a survivor to store, which has ids and offsets, but no text."""
        source = self.place.window.source_of(self.place.start, self.place.end)
        return Survivor(
            asked_fact_id=asked_fact_id,
            fact_ids=tuple(fact.fact_id for fact in self.place.facts),
            document_id=None if source is None else source.document_id,
            start=None if source is None else source.start,
            end=None if source is None else source.end,
            says=self.wording or "other",
            score=round(self.score, 4),
        )


@dataclass(frozen=True, slots=True)
class PlacesOfQuestion:
    """A question, every place that was read for it, and the confidence model that gives a place's probability.

    Given facts that are `gone`, places that touch one are left out, and the others weighed as if those did not exist.
    """

    asked: QuestionToRead
    every: Sequence[ReadPlace]
    confidence: Confidence
    least: float  # probability from which a passage is said

    def survivors(self, gone: Collection[int]) -> list[Survivor]:
        """List the places that would still answer without the facts that are `gone`, likeliest first."""
        return [one.as_survivor(self.asked.fact_id) for one in self._list_places(gone)]

    def facts_alike(self, gone: Collection[int]) -> set[int]:
        """Give the ids of facts in places that say the value and, by probability or repeated words, mean the same."""
        return {
            fact.fact_id
            for one in self._list_places(gone)
            if one.wording is not None and (one.score >= LEAST_ALIKE or self._repeats(one.place))
            for fact in one.place.facts
        }

    def _list_places(self, gone: Collection[int]) -> list[ListedPlace]:
        listed = self._places(gone)
        for whole in self._passages(gone):
            if len(listed) < MOST and not any(_overlap(whole.place, other.place) for other in listed):
                listed.append(whole)
        return listed

    def outcome(self, forgotten: Collection[int]) -> tuple[str, set[int]]:
        """Give the question's outcome now, one of `OUTCOMES`, and the ids of the forgotten facts that answer it.

        Passages are judged only where no span is probable enough for an answer.
        """
        places = self._touching()
        if places and places[0].is_dead:
            return "abstained", set()
        if places and self._weigh(places) >= self.confidence.threshold:
            if leaked := {fact.fact_id for fact in places[0].facts} & set(forgotten):
                return "leaks", leaked
            return "value_leaks" if self._place_of_value(places[0]) else "wrong_neighbours", set()
        model, said = self.confidence.passage, next(self._passages(()), None)
        if model is None or said is None or best_windows(self.every, model.search)[0].is_dead:
            return "no_match", set()
        if any(fact.fact_id in forgotten and fact.version is not None for fact in said.place.window.facts):
            return "leaks", {self.asked.fact_id} & set(forgotten)
        return "value_leaks" if said.wording else "wrong_neighbours", set()

    def _touching(self) -> list[ReadPlace]:
        """Give the places that touch a fact, best first: those that a span is chosen from."""
        return order_places([place for place in self.every if place.facts], self.confidence.search)

    def _weigh(self, places: Sequence[ReadPlace]) -> float:
        """Give the probability that the first of these places is the answer, given the others."""
        return self.confidence.probability_of(weigh_span(self.asked.text, places))

    def _places(self, gone: Collection[int]) -> list[ListedPlace]:
        """List the places that would answer, without those that touch a deleted fact or one that is `gone`.

        A place that says the value is listed if its probability reaches `LEAST` or if its text repeats the fact's own
        sentence, any other if its probability reaches the threshold of answers. Each is weighed as if the others that
        say the value were gone, too.
        """
        left = [
            (place, self._place_of_value(place)) for place in self._touching() if not _is_gone(place, gone)
        ]
        rivals = [place for place, told in left if told is None]
        tried: list[ReadPlace] = []
        found: list[ListedPlace] = []
        for place, told in left:
            if told is None or len(found) == MOST or any(_overlap(told[1], other) for other in tried):
                continue
            tried.append(told[1])  # what overlaps it is less likely
            score = self._weigh([place, *rivals])
            if score >= LEAST or self._repeats(place):
                found.append(ListedPlace(told[1], score, told[0]))
        return sorted([*found, *self._others(found, gone)], key=lambda listed: -listed.score)

    def _others(self, found: Sequence[ListedPlace], gone: Collection[int]) -> Iterator[ListedPlace]:
        """Yield places whose probability reaches the threshold of answers, though by no rule they say the value.

        A window whose best place is gone is set aside as a whole: what is next best there answers something else.
        """
        places = self._touching()
        best: dict[int, ReadPlace] = {}
        for place in places:
            known = best.setdefault(place.window.sentence_id, place)
            if place.margin > known.margin:
                best[place.window.sentence_id] = place
        left = [
            place
            for place in places
            if not _is_gone(best[place.window.sentence_id], gone)
            and not _is_gone(place, gone)
            and not any(_overlap(place, other.place) for other in found)
        ]
        for _ in range(MOST - len(found)):
            if not left or (score := self._weigh(left)) < self.confidence.threshold:
                return
            yield ListedPlace(left[0], score, None)
            left = [place for place in left[1:] if not _overlap(place, left[0])]

    def _passages(self, gone: Collection[int]) -> Iterator[ListedPlace]:
        """Yield the likeliest words of each passage that would be said, if the passages before it did not exist.

        Every place that was read counts, also one that touches no fact. A window whose best place is gone is set aside.
        """
        if (model := self.confidence.passage) is None:
            return
        left = [place for place in best_windows(self.every, model.search) if not _is_gone(place, gone)]
        for _ in range(MOST):
            kept = {place.window.sentence_id for place in left}
            others = [place for place in self.every if place.window.sentence_id in kept]
            if (
                not left
                or (score := model.probability_of(weigh_passage(self.asked.text, left, others))) < self.least
            ):
                return
            said = (compare_wording(value, left[0].window.text) for value in self.asked.values)
            yield ListedPlace(left[0], score, next(filter(None, said), None))
            left = left[1:]

    def _place_of_value(self, place: ReadPlace) -> tuple[Wording, ReadPlace] | None:
        """Give how a place words a value asked for, and the part that does: itself or a fact in it; None if neither."""
        for value in self.asked.values:
            if (said := compare_wording(value, place.text)) is not None:
                return said, place
            for fact in place.facts:
                if (said := compare_wording(value, fact.value)) is not None:
                    return said, replace(place, start=fact.start, end=fact.end)
        return None

    def _repeats(self, place: ReadPlace) -> bool:
        """Tell whether the text around a place has most words of the fact's own sentence."""
        own = set(terms_of(self.asked.around))
        heard = own & set(terms_of(place.window.text))
        return len(own) >= LEAST_WORDS and len(heard) >= REPEATED * len(own)


def _is_gone(place: ReadPlace, gone: Collection[int]) -> bool:
    return place.is_dead or any(fact.fact_id in gone for fact in place.facts)


def _overlap(place: ReadPlace, other: ReadPlace) -> bool:
    """Tell whether two places share a stretch of a document, which may be read in two windows."""
    ours, theirs = (
        place.window.source_of(place.start, place.end),
        other.window.source_of(other.start, other.end),
    )
    if ours is None or theirs is None:
        return place.window.sentence_id == other.window.sentence_id
    return ours.document_id == theirs.document_id and ours.start < theirs.end and theirs.start < ours.end


@dataclass(frozen=True, slots=True)
class ReadThrough:
    """Questions of sampled facts, with the places that were read for each in the whole base."""

    read: Sequence[PlacesOfQuestion]

    def survivors(self, gone: Collection[int]) -> tuple[Survivor, ...]:
        """List the survivors of each question in turn, without the facts that are `gone`."""
        without = frozenset(gone)
        return tuple(survivor for one in self.read for survivor in one.survivors(without))

    def facts_alike(self, gone: Collection[int]) -> set[int]:
        """Give the ids of facts that say the same as one that is asked for, except those that are `gone`."""
        without = frozenset(gone)
        return {fact_id for one in self.read for fact_id in one.facts_alike(without)} - without

    def rates(self, forgotten: Collection[int]) -> tuple[Rates, set[int]]:
        """Count the outcomes of the questions in the base as it is now, and give the forgotten facts that answer."""
        counts: Counter[str] = Counter()
        leaked: set[int] = set()
        for one in self.read:
            outcome, found = one.outcome(forgotten)
            counts[outcome] += 1
            leaked |= found
        return Rates(len(self.read), **{name: counts[name] for name in OUTCOMES}), leaked


@dataclass(frozen=True, slots=True)
class SurvivorSearch:
    """Reads the whole base for questions of facts. `on_read` gets the number read so far, and their total.

    With `sentences` it finds and orders sentences by their vectors, as answers do.
    """

    kb: SearchableStore
    questioner: Questioner
    reader: JudgedReader
    sentences: SentenceEmbedder | None = None
    on_read: Callable[[int, int | None], None] | None = None

    def read_sample(self, keyset: KeysetHead, target: CheckTarget) -> ReadThrough:
        """Read the questions of the sampled facts, one pass of the reader for each."""
        with self.kb.sessions() as session:
            asked = read_questions(session, target, self.questioner, keyset.dim)
        with as_service(), self.kb.sessions() as session:  # it is of no corpus
            confidence = confidence_of_base(session, self.reader)
        near = _rank_nearest_facts(self.kb, keyset, asked)
        least = self.reader.confidence.passage_threshold(confidence.threshold)
        read = []
        for number, one in enumerate(asked, 1):
            places = self._places(keyset, one, near.get(one.fact_id, Ranking()), target.fact_ids)
            read.append(PlacesOfQuestion(one, places, confidence, least))
            if self.on_read is not None:
                self.on_read(number, len(asked))
        return ReadThrough(read)

    def _places(
        self, keyset: KeysetHead, one: QuestionToRead, near: Ranking, forgotten: frozenset[int]
    ) -> list[ReadPlace]:
        with self.kb.sessions() as session:
            asked, alike = self._candidates(session, keyset, one, near)
            ids = [candidate.sentence_id for candidate in (*asked, *alike)]
            read = read_windows(session, ids, fact_filter=every_fact_in_scope())
        useful = {number for number, window in read.items() if _is_useful(window, one, forgotten)}
        first = [candidate for candidate in asked if candidate.sentence_id in useful][:WINDOWS]
        taken = {candidate.sentence_id for candidate in first}
        more = [c for c in alike if c.sentence_id in useful and c.sentence_id not in taken][:ALIKE]
        return list(read_every_place(self.reader, one.text, [*first, *more], read))

    def _candidates(
        self, session: Session, keyset: KeysetHead, one: QuestionToRead, near: Ranking
    ) -> tuple[list[CandidateSentence], list[CandidateSentence]]:
        """Give the sentences that the question finds, and those found by its value with the words of the question or,
        in turn, of the fact's own sentence. The latter count as found by no word of the question.

        There are more than are read, as some may tell nothing but what is forgotten.
        """
        every, words = every_fact_in_scope(), self.kb.words
        query = None if one.query_D is None else one.query_D.astype(STORED).tobytes()
        asked = candidate_sentences(
            session,
            words,
            one.searched,
            near.hits,
            near.tombstone,
            asked=None if query is None else AskedQuery(keyset.checkpoint_id, query),
            fact_filter=every,
            encoder=self.sentences,
        )
        found = {candidate.sentence_id: candidate for candidate in asked}
        values = " ".join(one.values)
        by_value = [
            candidate_sentences(session, words, f"{said} {values}", near.hits, fact_filter=every)[: 2 * ALIKE]
            for said in dict.fromkeys((one.searched, one.around))
        ]
        alike = {
            c.sentence_id: replace(c, words=0.0) for in_turn in zip_longest(*by_value) for c in in_turn if c
        }
        if self.sentences is not None:
            likenesses = sentence_likenesses(session, self.sentences, one.searched, list(alike))
            unlike = min(likenesses.values(), default=0.0)
            alike = {key: replace(c, likeness=likenesses.get(key, unlike)) for key, c in alike.items()}
        return asked[: 3 * WINDOWS], [found.get(number, candidate) for number, candidate in alike.items()]


def _rank_nearest_facts(
    kb: SearchableStore, keyset: KeysetHead, asked: Sequence[QuestionToRead]
) -> Mapping[int, Ranking]:
    found: dict[int, Ranking] = {}
    queries = [(one.fact_id, one.query_D) for one in asked if one.query_D is not None]
    for start in range(0, len(queries), ASKED_AT_ONCE):
        some = queries[start : start + ASKED_AT_ONCE]
        queries_BD = np.stack([query for _, query in some])
        with as_service():  # the filter limits what is found
            rankings = kb.lookups.nearest(
                queries_BD, checkpoint_id=keyset.checkpoint_id, k=BY_KEY, fact_filter=every_fact_in_scope()
            )
        found |= {fact_id: ranking for (fact_id, _), ranking in zip(some, rankings, strict=True)}
    return found


def _is_useful(window: SaidWindow, one: QuestionToRead, forgotten: frozenset[int]) -> bool:
    """Tell whether a window has the fact asked for, or a live fact that is not forgotten, or no fact.

    One without a fact may be said as a passage.
    """
    return not window.facts or any(
        fact.fact_id == one.fact_id or (fact.version is not None and fact.fact_id not in forgotten)
        for fact in window.facts
    )


# Texts of survivors, read when they are shown: what is stored about them holds none.


def said_survivors(session: Session, survivors: Sequence[Survivor]) -> list[SaidSurvivor]:
    """Give these survivors with their texts, in their order."""
    placed = [
        (number, (one.document_id, one.start, one.end))
        for number, one in enumerate(survivors)
        if one.document_id is not None and one.start is not None and one.end is not None
    ]
    read = read_stretches(session, [place for _, place in placed])
    windows = dict(zip([number for number, _ in placed], read, strict=True))
    alone = [one.fact_ids[0] for number, one in enumerate(survivors) if number not in windows]
    facts = fact_records(session, alone)
    return [
        _of_document(one, windows[number]) if number in windows else _of_fact(one, facts[one.fact_ids[0]])
        for number, one in enumerate(survivors)
    ]


def _of_document(one: Survivor, window: SaidWindow) -> SaidSurvivor:
    live = tuple(fact.said_fact for fact in window.facts if fact.version is not None)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, window.shown_text(), window.source, live)


def _of_fact(one: Survivor, fact: FactRecord) -> SaidSurvivor:
    is_live = fact.deleted_seq is None
    live = (SaidFact(fact.fact_id, fact.version, fact.value),) if is_live else ()
    text = fact.value if is_live else MARK * len(fact.value)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, text, None, live)
