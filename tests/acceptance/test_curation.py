"""Clients curate the same facts at once; and a run sees clients, a log and facts that are not as they should be."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from colmlm.kb.facts.records import FactRecord
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.principal import Principal
from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import faults_in
from tests.acceptance.curated import Heard, Replay, Standing, Told
from tests.acceptance.curation import run
from tests.acceptance.curators import Curator, Work

SHORT = {"facts": 120, "minutes": 0.05}


class Careless(Curator):
    """Judges facts as it read them first, and names them as they are by now."""

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.once: dict[int, FactRecord] = {}

    def read(self, fact_ids: list[int]) -> list[FactRecord]:
        for fact in super().read(fact_ids):
            self.once.setdefault(fact.fact_id, fact)
        return [self.once[fact_id] for fact_id in fact_ids]

    def shown(self, facts: list[FactRecord]) -> list[dict[str, Any]]:
        return super().shown(super().read([fact.fact_id for fact in facts]))


@pytest.mark.slow(reason="works on a real server for seconds")
def test_no_verdict_is_lost_or_given_twice_and_nothing_rejected_is_said(settings: Settings):
    outcome = run(settings, **SHORT)
    assert faults_in(outcome) == [], outcome
    assert {"accept", "reject", "edit"} <= outcome["operations"].keys() and outcome["asked_again"] > 0
    assert sum(outcome["conflicts"].values()) > 0, "they were at the same facts"


@pytest.mark.slow(reason="works on a real server for seconds")
def test_a_run_sees_verdicts_that_do_not_name_what_was_judged(settings: Settings):
    outcome = run(settings, make=Careless, **SHORT)
    assert "double" in faults_in(outcome) and outcome["lost"] == 0, outcome


PROPOSED = Standing(1, "Lima", "proposed", 1, live=True)
ACCEPT = Told("ann", "accept", "accept", 7, 2, PROPOSED)
EDIT = Told("ben", "edit", "update", 7, 3, PROPOSED, value="Callao")
REJECT = Told("ann", "reject", "reject", 7, 4, Standing(2, "Callao", "accepted", 2, live=True))
BACK = Told("ann", "undo", "restore", 7, 5, undoes=4)
ALL = (ACCEPT, EDIT, REJECT, BACK)
STANDING = Standing(3, "Callao", "accepted", 5, live=True)


def in_log(told: Told) -> ChangeRecord:
    who = Principal("key", told.who, 1)
    return ChangeRecord(told.seq, told.kind, (7,), 1, told.who, "", datetime.now(UTC), "", "", principal=who)


LOG = {told.seq: in_log(told) for told in ALL}


def test_what_was_told_explains_how_the_fact_stands():
    replay = Replay({7: PROPOSED}, reversed(ALL))
    assert replay.lost(LOG, {7: STANDING}) == replay.double() == []
    assert replay.untold(LOG, {7: STANDING}) == 0


@pytest.mark.parametrize(
    ("wrong", "lost"),
    [
        ({2: replace(LOG[2], kind="reject")}, [ACCEPT]),
        ({2: replace(LOG[2], fact_ids=(8,))}, [ACCEPT]),
        ({2: replace(LOG[2], principal=Principal("key", "ben", 2))}, [ACCEPT]),
        ({2: replace(LOG[2], principal=None)}, [ACCEPT]),
    ],
)
def test_a_verdict_that_the_log_has_otherwise_is_lost(wrong: dict[int, ChangeRecord], lost: list[Told]):
    assert Replay({7: PROPOSED}, ALL).lost(LOG | wrong, {7: STANDING}) == lost


def test_a_verdict_that_neither_log_nor_fact_has_is_lost():
    replay = Replay({7: PROPOSED}, ALL)
    assert replay.lost({seq: LOG[seq] for seq in (2, 3, 5)}, {7: STANDING}) == [REJECT]
    assert replay.lost(LOG, {7: replace(STANDING, review="proposed")}) == [BACK]
    assert replay.lost(LOG, {7: replace(STANDING, value="Lima")}) == [BACK]


def test_changes_that_nobody_was_told_of_are_counted():
    assert Replay({7: PROPOSED}, ALL[:3]).untold(LOG, {7: STANDING}) == 1
    assert Replay({7: PROPOSED}, ()).untold({}, {7: STANDING}) == 1


def test_of_two_verdicts_on_what_was_seen_once_the_later_is_double():
    late = replace(ACCEPT, who="ben", act="reject", kind="reject", seq=3)
    assert Replay({7: PROPOSED}, (late, ACCEPT)).double() == [late]
    again = replace(late, seq=4)
    undone = Told("ann", "undo", "propose", 7, 3, undoes=2)
    assert Replay({7: PROPOSED}, (ACCEPT, undone, again)).double() == [], "it stands as it was seen"


def test_a_rejected_fact_may_be_said_until_its_rejection_is_known_and_when_it_is_back():
    replay = Replay({7: PROPOSED}, ALL)
    assert [replay.served_rejected([Heard(*known, (7,))]) for known in (("ann", 3), ("ann", 5))] == [0, 0]
    assert replay.served_rejected([Heard("ann", 4, (7,)), Heard("ann", 4, ())]) == 1
    assert replay.served_rejected([Heard("cid", 4, (7,))]) == 0, "it may have been asked when it was back"
