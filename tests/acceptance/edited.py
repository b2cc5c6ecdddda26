"""The edits of a run whose answers are judged: what each fact says after which change, and what it said before."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

from colmlm.kb.answers.records import PASSAGE, Answer
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.acceptance.towns import name, town

WHO = {"actor": "writer", "reason": "acceptance"}
ERASED = 0.02  # of the edits


@dataclass(frozen=True, slots=True)
class Told:
    """The effect of an edit: the question of a fact must now get `value` (None: nothing), and `gone` is said nowhere.

    An erased fact leaves nothing that could tell that it would be the answer, so something else may be said then.
    """

    fact: int
    value: str | None
    gone: frozenset[str]
    is_erased: bool

    def judge(self, answer: Answer) -> set[str]:
        """Names what is the case: ``said`` or ``withheld``, as it should be, or what is wrong."""
        found = set()
        if says(answer.answer or "", self.gone):
            found.add("stale")
        if any(says(passage.text, self.gone) for passage in answer.nearest):
            found.add("leaked")
        if answer.answer is not None and not _stands(answer):
            found.add("misplaced")
        if self.value is not None:
            is_whole = answer.grain == PASSAGE and self.value in (answer.answer or "")
            found.add("said" if is_whole or answer.answer == self.value else "missed")
        elif answer.answer is None or self.is_erased:
            found.add("withheld")
        else:
            found.add("instead")
        return found


def says(text: str, names: Set[str]) -> bool:
    """Tells whether a text has a word of one of the names; no word of a name is in another."""
    return any(word in text for one in names for word in one.split())


def _stands(answer: Answer) -> bool:
    """Tells whether an answer has facts, and stands where it says; a corrected value stands where the first one did."""
    if answer.source is None or not answer.facts or answer.answer is None:
        return False
    text = town(int(answer.source.external_id.removeprefix("town"))).text
    is_first = all(fact.version == 1 for fact in answer.facts)
    return not is_first or text[answer.source.start : answer.source.end] == answer.answer


@dataclass(slots=True)
class History:
    """Edits the facts of towns, and knows what each said after every change."""

    kb: KnowledgeBase
    num_facts: int
    choose: random.Random
    edits: Counter[str] = field(default_factory=Counter)
    states: dict[int, list[tuple[int, str | None]]] = field(default_factory=dict)
    _ids: dict[int, int] = field(default_factory=dict)
    _erased: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        ids = {fact.value: fact.fact_id for fact in self.kb.facts.find(limit=self.num_facts)}
        self._ids = {fact: ids[name(fact)] for fact in range(self.num_facts)}
        self.states = {fact: [(0, name(fact))] for fact in self._ids}

    def edit(self, busy: Set[int]) -> Told:
        """Edits a fact that is neither erased nor `busy`, and gives the effect."""
        fact = self.choose.choice([one for one in self._ids if one not in busy | self._erased])
        before = [value for _, value in self.states[fact] if value is not None]
        value = self._edited(fact, self.states[fact][-1][1], before[-1])
        return Told(fact, value, frozenset(before) - {value}, fact in self._erased)

    def _edited(self, fact: int, now: str | None, last: str) -> str | None:
        ids = [self._ids[fact]]
        drawn = self.choose.random()
        if drawn < ERASED and len(self._erased) < self.num_facts // 2:
            self._erased.add(fact)
            report = Erasure(self.kb).erase(ids, **WHO)
            assert report.erased is not None and report.erased.seq is not None
            return self._now("erase", fact, report.erased.seq, None)
        if now is None:
            return self._now("restore", fact, self.kb.facts.restore(ids, **WHO).seq, last)
        if drawn < 0.5:
            seq = self.kb.facts.delete(ids, **WHO, abstain=self.choose.random() < 0.3).seq
            return self._now("delete", fact, seq, None)
        value = name(self.num_facts + self.edits.total())
        return self._now("correct", fact, self.kb.facts.edit(ids[0], value=value, **WHO).seq, value)

    def _now(self, kind: str, fact: int, seq: int, value: str | None) -> str | None:
        self.edits[kind] += 1
        self.states[fact].append((seq, value))
        return value

    def held(self, fact: int, said: str | None, seq: int) -> bool:
        """Tells whether nothing is said that the fact had said before this change and neither then nor later."""
        states = self.states[fact]
        began = max(place for place, (since, _) in enumerate(states) if since <= seq)
        held = {value for _, value in states[began:]}
        gone = frozenset(value for _, value in states[:began] if value is not None and value not in held)
        return not says(said or "", gone)
