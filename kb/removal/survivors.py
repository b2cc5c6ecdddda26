"""Survivors: places outside a set of facts that would still answer a question of one of them, were they all gone.

Each question is asked of the whole base as an answer would be found, by key, words and reader; its value is searched
for too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.answers.calibrations import confidence_here
from colmlm.kb.answers.candidates import BY_KEY, CandidateSentence, candidate_sentences
from colmlm.kb.answers.confidence import Confidence
from colmlm.kb.answers.places import (
    ReadPlace,
    best_first,
    best_windows,
    every_place,
    weigh_passage,
    weigh_span,
)
from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.answers.records import SaidFact
from colmlm.kb.answers.windows import SaidWindow, read_stretches, windows
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.facts.reading import fact_records
from colmlm.kb.facts.records import FactRecord
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.keys import keysets
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.lookup.records import Ranking
from colmlm.kb.removal.checks import (
    ASKED_AT_ONCE,
    CheckTarget,
    Questioner,
    QuestionToRead,
    ask_probes,
    build_checks,
    read_questions,
)
from colmlm.kb.removal.records import (
    OUTCOMES,
    READ,
    ForgetPlan,
    Rates,
    SaidSurvivor,
    Survivor,
    Verification,
    level_reached,
)
from colmlm.kb.tables import FactKeyRow, FactVersionRow, TombstoneRow
from colmlm.kb.texts.alike import Wording, terms_of, wording

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
    asked = candidate_sentences(session, kb.words, one.searched, near.hits, near.tombstone)
    found = {candidate.sentence_id: candidate for candidate in asked}
    values = " ".join(one.values)
    by_value = [
        candidate_sentences(session, kb.words, f"{words} {values}", near.hits)[: 2 * ALIKE]
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


# Lists which of the places that were read for a question would answer it, were some facts gone.
#
# What touches a fact that is gone is set aside, and the places behind it are weighed as if it were not there.

LEAST = 0.003  # probability from which a place that says the value is listed
MOST = 10  # places listed for a question
LEAST_WORDS, REPEATED = 6, 0.7  # of a fact's own sentence, and what share of them makes a repetition


@dataclass(frozen=True, slots=True)
class ListedPlace:
    """A place that would answer, with its probability, and how it says what was asked for (None: by no rule)."""

    place: ReadPlace
    score: float
    wording: Wording | None


def list_places(
    one: QuestionToRead,
    places: Sequence[ReadPlace],
    confidence: Confidence,
    gone: frozenset[int] = frozenset(),
) -> list[ListedPlace]:
    """Lists the places that would answer, without those that touch a deleted fact or one that is `gone`.

    One that says the value in some wording is listed unless it is all but impossible, or where its text repeats the
    fact's own sentence; any other where it is as probable as an answer that is given. Each is weighed as if the others
    that say the value were gone, too.
    """
    left = [place for place in places if not _is_gone(place, gone)]
    telling = [(place, told) for place in left if (told := _told(one, place))]
    rivals = [place for place in left if _told(one, place) is None]
    tried: list[ReadPlace] = []
    found: list[ListedPlace] = []
    for place, (said, whole) in telling:
        if len(found) < MOST and not any(_overlap(whole, other) for other in tried):
            tried.append(whole)  # what overlaps it is less likely
            score = confidence.of(weigh_span(one.text, [place, *rivals]))
            if score >= LEAST or _repeats(one, place):
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
        if not left or (score := confidence.of(weigh_span(one.text, left))) < confidence.threshold:
            return
        yield ListedPlace(left[0], score, None)
        left = [place for place in left[1:] if not _overlap(place, left[0])]


def list_passages(
    one: QuestionToRead,
    every: Sequence[ReadPlace],
    confidence: Confidence,
    threshold: float,
    gone: frozenset[int] = frozenset(),
) -> Iterator[ListedPlace]:
    """Yield the likeliest words of each passage that would be said, were the ones before it not there.

    `every` place that was read counts, also one that touches no fact. A window whose best place is gone is set aside.
    """
    if (model := confidence.passage) is None:
        return
    left = [place for place in best_windows(every, model.search) if not _is_gone(place, gone)]
    for _ in range(MOST):
        kept = {place.window.sentence_id for place in left}
        others = [place for place in every if place.window.sentence_id in kept]
        if not left or (score := model.of(weigh_passage(one.text, left, others))) < threshold:
            return
        told = [said for value in one.values if (said := wording(value, left[0].window.text)) is not None]
        yield ListedPlace(left[0], score, told[0] if told else None)
        left = left[1:]


def overlaps(listed: ListedPlace, others: Iterable[ListedPlace]) -> bool:
    """Tell whether a listed place shares a stretch of a document with one of these."""
    return any(_overlap(listed.place, other.place) for other in others)


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


def _repeats(one: QuestionToRead, place: ReadPlace) -> bool:
    """Tells whether a place stands in a text with most words of the fact's own sentence, whatever the question asks."""
    own = set(terms_of(one.around))
    heard = own & set(terms_of(place.window.text))
    return len(own) >= LEAST_WORDS and len(heard) >= REPEATED * len(own)


def _overlap(place: ReadPlace, other: ReadPlace) -> bool:
    """Tells whether two places share a stretch of a document, which may be read in two windows."""
    ours, theirs = (
        place.window.source_of(place.start, place.end),
        other.window.source_of(other.start, other.end),
    )
    if ours is None or theirs is None:
        return place.window.sentence_id == other.window.sentence_id
    return ours.document_id == theirs.document_id and ours.start < theirs.end and theirs.start < ours.end


def outcome(
    one: QuestionToRead, places: Sequence[ReadPlace], confidence: Confidence, forgotten: Collection[int]
) -> str:
    """Give the outcome of a question by the rule that decides on spans."""
    if not places:
        return "no_match"
    best = places[0]
    if best.is_dead:
        return "abstained"
    if confidence.of(weigh_span(one.text, places)) < confidence.threshold:
        return "no_match"
    if any(fact.fact_id in forgotten for fact in best.facts):
        return "leaks"
    return "value_leaks" if _told(one, best) else "wrong_neighbours"


def outcome_of_passage(
    one: QuestionToRead,
    every: Sequence[ReadPlace],
    confidence: Confidence,
    threshold: float,
    forgotten: Collection[int],
) -> str:
    """Give the outcome of a question that gets no span, by the rule that decides on passages."""
    windows = best_windows(every, confidence.passage.search) if confidence.passage else []
    listed = next(list_passages(one, every, confidence, threshold), None)
    if listed is None or windows[0].is_dead:
        return "no_match"
    if any(fact.fact_id in forgotten and fact.version is not None for fact in listed.place.window.facts):
        return "leaks"
    return "value_leaks" if listed.wording else "wrong_neighbours"


# Texts of survivors, read when they are shown: what is stored about them holds none.


def said_survivors(session: Session, survivors: Sequence[Survivor]) -> list[SaidSurvivor]:
    """Gives these survivors with their texts, in their order."""
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
    live = tuple(fact.said for fact in window.facts if fact.version is not None)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, window.shown(), window.source, live)


def _of_fact(one: Survivor, fact: FactRecord) -> SaidSurvivor:
    is_live = fact.deleted_seq is None
    live = (SaidFact(fact.fact_id, fact.version, fact.value),) if is_live else ()
    text = fact.value if is_live else MARK * len(fact.value)
    return SaidSurvivor(one.asked_fact_id, one.says, one.score, text, None, live)


# Verifies that facts are forgotten: looks up every check of them, and searches the index for their keys.


def verify_survivors(
    kb: SearchableStore,
    plan: ForgetPlan,
    questioner: Questioner,
    given: Sequence[str],
    most: int,
    reading: SurvivorSearch | None = None,
) -> Verification:
    """Asks for the facts of an applied plan, with checks made from them and with the `given` questions.

    With `reading` their questions are read in the whole base, too.
    """
    seq = kb.lookups.catch_up()
    indexed = kb.searcher.current().candidates.ids
    ids = list(plan.fact_ids)
    with kb.sessions() as session:
        keyset = keysets.active_head(session)
        questioner.require(keyset)
        target = CheckTarget.read(session, keyset, plan.fact_ids, plan.equivalents, most)
        key_ids = session.scalars(
            select(FactKeyRow.id).where(
                FactKeyRow.keyset_id == keyset.keyset_id, FactKeyRow.fact_id == func.any(ids)
            )
        ).all()
        still_live = session.scalar(
            select(func.count())
            .select_from(FactVersionRow)
            .where(FactVersionRow.fact_id == func.any(ids), IS_LIVE)
        )
        tombstones = session.scalar(
            select(func.count()).select_from(TombstoneRow).where(TombstoneRow.fact_id == func.any(ids))
        )
    rates, leaked = ask_probes(
        kb, keyset.checkpoint_id, build_checks(target, keyset, questioner, given), target.fact_ids
    )
    read, survivors = 0, tuple[Survivor, ...]()
    if reading is not None:
        through = reading.read(keyset, target)
        read, rates[READ], found = len(through.read), *through.rates(target.fact_ids)
        leaked = tuple(sorted({*leaked, *found}))
        survivors = through.survivors(target.fact_ids)
    in_index = int(np.isin(np.array(key_ids, dtype=np.int64), indexed).sum())
    return Verification(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seq=seq,
        keyset_id=keyset.keyset_id,
        checkpoint_id=keyset.checkpoint_id,
        threshold=keyset.threshold,
        probes=rates,
        still_live=still_live or 0,
        tombstones=tombstones or 0,
        keys_in_index=in_index,
        leaked=leaked,
        level=level_reached(bool(leaked or still_live), in_index),
        read=read,
        survivors=survivors,
    )
