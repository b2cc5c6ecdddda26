"""Nearby passages: the texts that were read for a question, as they are shown, each stretch of a document once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from colmlm.kb.answers.candidates import CandidateSentence
from colmlm.kb.answers.places import ReadPlace
from colmlm.kb.answers.records import NearbyPassage
from colmlm.kb.answers.windows import SaidWindow


def nearby(
    found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow], places: Sequence[ReadPlace]
) -> list[NearbyPassage]:
    """Give the windows of these sentences, nearest first, without those that lie within another one.

    Of the places that were read, the likeliest of each window is marked in it, unless it was deleted.
    """
    likeliest: dict[int, ReadPlace] = {}
    for place in sorted(places, key=lambda one: one.margin):
        likeliest[place.window.sentence_id] = place
    marked = {key: (one.start, one.end) for key, one in likeliest.items() if not one.is_dead}
    return [
        _passage(one, read[one.sentence_id], marked.get(one.sentence_id, (None, None)))
        for one in found
        if not any(_within(read[one.sentence_id], other) for other in _others(one, found, read))
    ]


def _others(
    one: CandidateSentence, found: Sequence[CandidateSentence], read: Mapping[int, SaidWindow]
) -> Iterator[SaidWindow]:
    return (read[other.sentence_id] for other in found if other is not one)


def _within(window: SaidWindow, other: SaidWindow) -> bool:
    """Tells whether a window is a part of another one of its document."""
    ours, theirs = window.source, other.source
    if ours is None or theirs is None or ours == theirs:
        return False
    same = (ours.corpus, ours.external_id) == (theirs.corpus, theirs.external_id)
    return same and theirs.start <= ours.start and ours.end <= theirs.end


def _passage(
    candidate: CandidateSentence, window: SaidWindow, likeliest: tuple[int | None, int | None]
) -> NearbyPassage:
    live = tuple(fact.said for fact in window.facts if fact.version is not None)
    return NearbyPassage(
        window.shown(), window.source_of(0, len(window.text)), candidate.score, live, *likeliest
    )
