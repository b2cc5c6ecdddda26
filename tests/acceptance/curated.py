"""What people who curate at once were told, and whether the log and the facts agree with it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from colmlm.kb.facts.records import FactRecord, Review
from colmlm.kb.log.records import ChangeRecord

Act = Literal["accept", "reject", "edit", "undo"]


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a fact: what a person sees of it before judging it, or what it should be after a change."""

    version: int
    value: str
    review: Review
    review_seq: int | None
    live: bool

    @classmethod
    def of(cls, fact: FactRecord) -> Standing:
        return cls(fact.version, fact.value, fact.review, fact.review_seq, fact.deleted_seq is None)


@dataclass(frozen=True, slots=True)
class Told:
    """An acknowledged act on one fact: change `seq`, of the `kind` that the log should have, by the token `who`.

    `seen` is the fact that was judged, None in an undo; `value` is what an edit gave it, `undoes` the change undone.
    """

    who: str
    act: Act
    kind: str
    fact: int
    seq: int
    seen: Standing | None = None
    value: str | None = None
    undoes: int | None = None


@dataclass(frozen=True, slots=True)
class Heard:
    """The facts, if any, that a lookup or an answer said to `who`, whose last acknowledged change was `since`."""

    who: str
    since: int
    facts: tuple[int, ...]


class Replay:
    """The states of facts as what people were told makes them, beginning with those before anybody did anything."""

    def __init__(self, before: Mapping[int, Standing], told: Iterable[Told]) -> None:
        self.told = sorted(told, key=lambda one: one.seq)
        self._states = {fact: [(0, standing)] for fact, standing in before.items()}
        for one in self.told:
            states = self._states[one.fact]
            states.append((one.seq, _after(one, states)))
        self._seqs = {
            who: sorted({t.seq for t in self.told if t.who == who}) for who in {t.who for t in self.told}
        }

    def double(self) -> list[Told]:
        """Gives acts whose fact was no longer as it was seen: another act had been acknowledged for that state."""
        return [one for one in self.told if one.seen is not None and not _fits(one, self._before(one))]

    def lost(self, log: Mapping[int, ChangeRecord], now: Mapping[int, Standing]) -> list[Told]:
        """Gives acts that the log does not have as they were told, and the last ones of facts that stand otherwise."""
        last = {one.fact: one for one in self.told}
        return [
            one
            for one in self.told
            if not _is_in(log, one)
            or (last[one.fact] is one and self._states[one.fact][-1][1] != now[one.fact])
        ]

    def untold(self, log: Iterable[int], now: Mapping[int, Standing]) -> int:
        """Counts changes that nobody was told of, and facts that differ though nobody was told of a change."""
        touched = {one.fact for one in self.told}
        changed = sum(self._states[fact][-1][1] != now[fact] for fact in now.keys() - touched)
        return len(set(log) - {one.seq for one in self.told}) + changed

    def served_rejected(self, heard: Iterable[Heard]) -> int:
        """Counts facts that were said though they were dead from what `who` knew until what it did next."""
        return sum(not self._lived(one, fact) for one in heard for fact in one.facts)

    def _lived(self, heard: Heard, fact: int) -> bool:
        own = self._seqs.get(heard.who, [])
        place = bisect_right(own, heard.since)
        until = own[place] if place < len(own) else None
        states = self._states[fact]
        first = bisect_right(states, heard.since, key=_seq) - 1
        last = len(states) if until is None else bisect_left(states, until, key=_seq)
        return any(standing.live for _, standing in states[first:last])

    def _before(self, told: Told) -> Standing:
        states = self._states[told.fact]
        return states[bisect_left(states, told.seq, key=_seq) - 1][1]


def _seq(state: tuple[int, Standing]) -> int:
    return state[0]


def _fits(told: Told, before: Standing) -> bool:
    seen = told.seen
    assert seen is not None
    same = (seen.version, seen.live) == (before.version, before.live)
    return same and (told.act == "edit" or seen.review == before.review)


def _is_in(log: Mapping[int, ChangeRecord], told: Told) -> bool:
    change = log.get(told.seq)
    if change is None or change.principal is None:
        return False
    return (change.kind, change.principal.name) == (told.kind, told.who) and told.fact in change.fact_ids


def _after(told: Told, states: Sequence[tuple[int, Standing]]) -> Standing:
    now = states[-1][1]
    if told.act == "accept":
        return replace(now, review="accepted", review_seq=told.seq)
    if told.act == "reject":
        return replace(now, review="rejected", review_seq=told.seq, live=False)
    if told.act == "undo":
        return _undone(told, now, states)
    assert told.value is not None
    edited = replace(now, version=now.version + 1, value=told.value)
    return edited if now.review == "accepted" else replace(edited, review="accepted", review_seq=told.seq)


def _undone(told: Told, now: Standing, states: Sequence[tuple[int, Standing]]) -> Standing:
    """Gives what an undo leaves: the text as before the change, and the review where nobody has set it since."""
    assert told.undoes is not None
    place = bisect_left(states, told.undoes, key=_seq)
    former, undone = states[place - 1][1], states[place][1]
    back = replace(now, live=True)
    if not undone.live:
        back = replace(back, version=now.version + 1)  # what is restored is a version of its own
    if undone.version != former.version:
        back = replace(back, version=now.version + 1, value=former.value)
    if now.review_seq == told.undoes:
        back = replace(back, review=former.review, review_seq=told.seq)
    return back
