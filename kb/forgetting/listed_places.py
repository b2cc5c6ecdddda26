"""Lists which of the places that were read for a question would answer it, were some facts gone.

What touches a fact that is gone is set aside, and the places behind it are weighed as if it were not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from colmlm.kb.answers.confidence import Confidence
from colmlm.kb.answers.places import ReadPlace, best_windows, weigh, weigh_passage
from colmlm.kb.forgetting.read_questions import QuestionToRead
from colmlm.kb.texts.alike import Wording, terms, wording

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
            score = confidence.of(weigh(one.text, [place, *rivals]))
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
        if not left or (score := confidence.of(weigh(one.text, left))) < confidence.threshold:
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
    own = set(terms(one.around))
    heard = own & set(terms(place.window.text))
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
    if confidence.of(weigh(one.text, places)) < confidence.threshold:
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
