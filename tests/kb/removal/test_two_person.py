"""Erasure by two: asked with one admin's token, approved with another's."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from colmlm.kb.access.records import TokenRecord
from colmlm.kb.access.tokens import create_token, read_token
from colmlm.kb.errors import Conflict
from colmlm.kb.removal.erase import Erasure, ErasureRequests
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.waits import Waits
from tests.gates import table_locked
from tests.kb.corpora import PERU, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "ann", "reason": "request of the person"}


@pytest.fixture
def strict(kb: KnowledgeBase) -> KnowledgeBase:
    """A base with facts whose settings want two."""
    ingest(kb, PERU)
    kb.settings = replace(kb.settings, erase_needs_two=True)
    return kb


@pytest.fixture
def admins(strict: KnowledgeBase) -> tuple[TokenRecord, TokenRecord]:
    with Session(strict.engine) as session, session.begin():
        for name in ("ann", "bob"):
            create_token(session, name, "admin")
        return read_token(session, "ann"), read_token(session, "bob")


def test_nothing_is_erased_before_another_token_approves(
    strict: KnowledgeBase, admins: tuple[TokenRecord, TokenRecord]
) -> None:
    (ann, bob), lima, requests = admins, fact_id(strict, "Lima"), ErasureRequests(strict)
    with raises_code("SecondPersonNeeded"):
        Erasure(strict).erase([lima], **WHO)
    asked = requests.ask([lima], token=ann, **WHO)
    with raises_code("SamePerson"):
        requests.approve(asked.erasure_request_id, token=ann)
    assert strict.facts.show(lima).value == "Lima" and requests.requests(waiting=True) == [asked]

    done, report = requests.approve(asked.erasure_request_id, token=bob)

    assert (done.state, done.asked_by, done.decided_by) == ("approved", "ann", "bob")
    assert report.erased is not None and report.erased.seq == done.seq and report.level == 2
    assert strict.facts.show(lima).erased_seq == done.seq and requests.requests(waiting=True) == []
    change = strict.log.changes(after=report.erased.seq - 1)[0]
    assert (change.actor, change.kind, change.principal) == ("bob", "erase", bob.principal)
    assert "asked with the token ann, approved with the token bob" in change.reason
    with raises_code("ErasureRequestState", match="approved already"):
        requests.approve(asked.erasure_request_id, token=bob)
    again = requests.ask([lima], token=ann, **WHO)
    _, report = requests.approve(again.erasure_request_id, token=bob)
    assert report.erased is not None and (report.erased.seq, report.erased.again) == (None, (lima,))


def test_request_can_be_withdrawn_by_either(
    strict: KnowledgeBase, admins: tuple[TokenRecord, TokenRecord]
) -> None:
    (ann, bob), requests = admins, ErasureRequests(strict)
    for token in (ann, bob):
        asked = requests.ask([fact_id(strict, "Lima")], token=ann, **WHO)
        assert requests.withdraw(asked.erasure_request_id, token=token).decided_by == token.name
        with raises_code("ErasureRequestState", match="withdrawn already"):
            requests.approve(asked.erasure_request_id, token=bob)
    with raises_code("ErasureRequestNotFound"):
        requests.withdraw(99, token=ann)
    assert strict.facts.show(fact_id(strict, "Lima")).erased_seq is None


def test_of_two_who_decide_at_once_one_does(
    strict: KnowledgeBase, admins: tuple[TokenRecord, TokenRecord]
) -> None:
    (ann, bob), requests = admins, ErasureRequests(strict)
    asked = requests.ask([fact_id(strict, "Lima")], token=ann, **WHO)

    def approve(_: int) -> bool:
        try:
            requests.approve(asked.erasure_request_id, token=bob)
        except Conflict as error:
            assert error.code == "ErasureRequestState"
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(approve, range(2))) == [False, True]


def test_what_reads_every_fact_outlasts_the_limit_of_a_request(
    strict: KnowledgeBase, admins: tuple[TokenRecord, TokenRecord]
) -> None:
    (ann, bob), lima = admins, fact_id(strict, "Lima")
    hurried = strict.beside("requests", Waits(lock=0, statement=0.5), 2)
    requests, url = ErasureRequests(hurried), strict.engine.url.render_as_string(hide_password=False)
    asked = requests.ask([lima], token=ann, **WHO).erasure_request_id

    def outlasts(table: str, work: Callable[[], object]) -> None:
        with ThreadPoolExecutor(1) as aside:
            with table_locked(url, table) as somebody_waits:
                done = aside.submit(work)
                while not (somebody_waits() or done.done()):
                    time.sleep(0.01)
                time.sleep(1)
            done.result()

    outlasts("fact_version", lambda: Erasure(hurried).traces([lima]))
    outlasts("generation", lambda: Erasure(hurried).complete(**WHO))
    outlasts("fact_version", lambda: requests.approve(asked, token=bob))
    assert requests.read(asked).state == "approved" and strict.facts.show(lima).erased_seq is not None
    with table_locked(url, "fact_version"), raises_code("ErasureRequestState", match="approved already"):
        ErasureRequests(strict.beside("others", Waits(lock=0.5, statement=0.5), 2)).approve(asked, token=bob)


def test_only_a_working_admins_token_counts(strict: KnowledgeBase) -> None:
    with Session(strict.engine) as session, session.begin():
        reader, admin = create_token(session, "r", "operator"), create_token(session, "a", "admin")
    requests = ErasureRequests(strict)
    for secret in (None, "", "wrong", reader):
        with raises_code("AdminKeyNeeded"):
            requests.token_of(secret)
    assert requests.token_of(admin).name == "a"
