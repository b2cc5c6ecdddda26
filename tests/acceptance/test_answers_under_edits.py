"""Two processes ask by words and reader while a third edits; and a run sees an answerer that is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from colmlm.kb.answers.records import Answer, NearbyPassage, SaidFact
from colmlm.kb.facts.records import Source
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import faults_in
from tests.acceptance.answers_under_edits import TOWNS, Asks, MakeAnswerers, fake, passages, run
from tests.acceptance.edited import Told
from tests.acceptance.towns import name, question, town


@dataclass(frozen=True, slots=True)
class Remembering:
    """Says what it was told once, as of now."""

    asked: Asks
    said: dict[str, Answer]

    def ask(self, question: str) -> Answer:
        return replace(self.said[question], seq=self.asked.ask(question).seq)


def remembering(kb: KnowledgeBase) -> Sequence[Asks]:
    way, *_ = fake(kb)
    return [Remembering(way, {one: way.ask(one) for one in map(question, range(2 * TOWNS))})]


@pytest.mark.slow(reason="works on a real server for seconds")
@pytest.mark.parametrize("make", [fake, passages])
def test_no_process_says_what_an_acknowledged_edit_took_back(settings: Settings, make: MakeAnswerers):
    outcome = run(settings, operations=300, make=make)
    assert faults_in(outcome) == [] and outcome["missed"] == 0, outcome
    assert outcome["operations"] == 300 and min(outcome["edits"].values()) > 0 and outcome["withheld"] > 0


@pytest.mark.slow(reason="works on a real server for seconds")
def test_a_run_sees_an_answerer_that_does_not_notice_edits(settings: Settings):
    outcome = run(settings, operations=300, make=remembering)
    assert {"stale", "outdated", "leaked"} <= set(faults_in(outcome)), outcome


DOCUMENT = town(0)
(LEADER, _) = DOCUMENT.facts
SOURCE = Source(1, "towns", "town0", None, None, None, None, LEADER.start, LEADER.end)
RIGHT = Answer(question(0), name(0), 0.9, 0.5, (SaidFact(1, 1, name(0)),), SOURCE, False, (), 1)
NOTHING = replace(RIGHT, answer=None, facts=(), source=None)
LIVE, DELETED = Told(0, name(0), frozenset(), False), Told(0, None, frozenset({name(0)}), False)
BESIDE = NearbyPassage(f"It was led by {name(0).split()[0]} then.", SOURCE, 1.0, ())


@pytest.mark.parametrize(
    ("told", "answer", "judged"),
    [
        (LIVE, RIGHT, {"said"}),
        (LIVE, NOTHING, {"missed"}),
        (LIVE, replace(RIGHT, facts=()), {"said", "misplaced"}),
        (LIVE, replace(RIGHT, source=replace(SOURCE, start=0)), {"said", "misplaced"}),
        (DELETED, NOTHING, {"withheld"}),
        (DELETED, replace(RIGHT, answer=name(0).split()[1]), {"stale", "misplaced", "instead"}),
        (DELETED, replace(NOTHING, nearest=(BESIDE,)), {"leaked", "withheld"}),
        (replace(DELETED, is_erased=True), replace(NOTHING, nearest=(BESIDE,)), {"leaked", "withheld"}),
    ],
)
def test_an_answer_is_judged_by_what_the_fact_says_now(told: Told, answer: Answer, judged: set[str]):
    assert told.judge(answer) == judged
