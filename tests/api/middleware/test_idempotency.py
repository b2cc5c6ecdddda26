"""An edit that is sent twice: once carried out, twice answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.api.middleware.gate import GatedApp
from colmlm.kb.access import access
from colmlm.kb.access.access import KeptAnswer
from colmlm.kb.access.tokens import read_token
from colmlm.kb.jobs.kinds import Check
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.principal import Claim, Origin, Principal, origin
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect
from tests.api.serving import served
from tests.refusals import raises_code

FACT = {"question": "Who wrote Emma?", "value": "Jane Austen", "reason": "new"}
ONCE = {"Idempotency-Key": "order-1"}
WHO = {"actor": "tester", "reason": "test"}


def test_same_request_again_gives_the_stored_answer_and_edits_nothing(
    operator: Client, atlas: KnowledgeBase
) -> None:
    first = operator.post("/v1/facts", json=FACT, headers=ONCE)
    head = atlas.log.head_seq()
    again = operator.post("/v1/facts", json=FACT, headers=ONCE)
    assert first.status_code == again.status_code == 201 and first.content == again.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert atlas.log.head_seq() == head
    assert operator.post("/v1/facts", json=FACT).json()["seq"] > head  # without a key each one counts


def test_other_body_or_route_under_the_same_key_is_refused(
    operator: Client, atlas: KnowledgeBase, fact_id: int
) -> None:
    operator.post("/v1/facts", json=FACT, headers=ONCE)
    head = atlas.log.head_seq()
    for method, path, body in (
        ("POST", "/v1/facts", {**FACT, "value": "George Eliot"}),
        ("POST", "/v1/facts?x=1", FACT),
        ("DELETE", f"/v1/facts/{fact_id}", {"reason": "new"}),
    ):
        answer = operator.request(method, path, json=body, headers=ONCE)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:colmlm:RequestDiffers"), path
    assert atlas.log.head_seq() == head


def test_keys_of_two_callers_do_not_meet(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client = connect(app, "operator")
    mine = client.post("/v1/facts", json=FACT, headers=ONCE).json()
    other = {**ONCE, "Authorization": f"Bearer {new_token('admin')}"}
    theirs = client.post("/v1/facts", json={**FACT, "value": "Austen"}, headers=other)
    assert theirs.status_code == 201 and theirs.json()["seq"] > mine["seq"]
    reader = {**ONCE, "Authorization": f"Bearer {new_token('reader')}"}
    assert client.post("/v1/facts", json=FACT, headers=reader).status_code == 403


def test_what_was_refused_leaves_the_key_free(operator: Client, fact_id: int) -> None:
    body = {"fact_ids": [fact_id], "reason": "back"}
    assert operator.post("/v1/facts/restore", json=body, headers=ONCE).status_code == 409
    assert operator.request("DELETE", f"/v1/facts/{fact_id}", json={"reason": "x"}).status_code == 200
    assert operator.post("/v1/facts/restore", json=body, headers=ONCE).status_code == 200


def test_key_that_is_none_is_refused(operator: Client, subtests: pytest.Subtests) -> None:
    for name in ("", "x" * 201, "a\tb", "\xe9"):
        with subtests.test(name=name):
            headers = {"Idempotency-Key": name.encode("latin-1")}
            answer = operator.post("/v1/facts", json=FACT, headers=headers)
            assert (answer.status_code, answer.json()["type"]) == (400, "urn:colmlm:BadIdempotencyKey")


def test_of_many_at_once_one_is_carried_out(
    app: GatedApp, atlas: KnowledgeBase, new_token: Callable[[str], str]
) -> None:
    headers = {"Authorization": f"Bearer {new_token('operator')}", **ONCE}
    before = len(atlas.facts.find())
    with served(app) as address, httpx.Client(base_url=address, headers=headers, timeout=60) as client:
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda _: client.post("/v1/facts", json=FACT), range(8)))
        last = client.post("/v1/facts", json=FACT)
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert all(a.headers["retry-after"] == "1" for a in answers if a.status_code == 409)
    assert {a.content for a in answers if a.status_code == 201} == {last.content}
    assert len(atlas.facts.find()) == before + 1


@pytest.fixture
def key_id(atlas: KnowledgeBase, new_token: Callable[[str], str]) -> int:
    new_token("operator")
    with Session(atlas.engine) as session:
        return read_token(session, "the operator").key_id


def claim(kb: KnowledgeBase, key_id: int) -> Claim | KeptAnswer:
    with Session(kb.engine) as session, session.begin():
        return access.claim_key(session, key_id, "order-1", b"body")


def settle(kb: KnowledgeBase, held: Claim, answer: KeptAnswer) -> None:
    with Session(kb.engine) as session, session.begin():
        access.settle_key(session, held, answer)


@contextmanager
def under(held: Claim | KeptAnswer) -> Iterator[None]:
    assert isinstance(held, Claim)
    token = origin.set(Origin(Principal("key", "the operator", 1), "r", claim=held))
    try:
        yield
    finally:
        origin.reset(token)


def elapse(kb: KnowledgeBase, minutes: int) -> None:
    with Session(kb.engine) as session, session.begin():
        statement = "UPDATE idempotency SET claimed_at = claimed_at - make_interval(mins => :minutes)"
        session.execute(text(statement), {"minutes": minutes})


def test_process_that_died_before_it_edited_leaves_the_key_free(atlas: KnowledgeBase, key_id: int) -> None:
    dead = claim(atlas, key_id)
    with raises_code("RequestUnderWay"):
        claim(atlas, key_id)
    elapse(atlas, 3)
    heir = claim(atlas, key_id)
    head = atlas.log.head_seq()
    with under(dead), raises_code("RequestUnderWay"):  # it was only slow: now it must not edit any more
        atlas.facts.add("Q?", "A", **WHO)
    assert atlas.log.head_seq() == head
    with under(heir):
        atlas.facts.add("Q?", "A", **WHO)
    assert isinstance(dead, Claim) and isinstance(heir, Claim)
    settle(atlas, dead, KeptAnswer(200, "text/plain", b"late"))
    settle(atlas, heir, KeptAnswer(201, "text/plain", b"done"))
    assert claim(atlas, key_id) == KeptAnswer(201, "text/plain", b"done")


def test_process_that_died_after_it_edited_is_not_repeated(atlas: KnowledgeBase, key_id: int) -> None:
    with under(claim(atlas, key_id)):
        edit = atlas.facts.add("Q?", "A", **WHO)
    elapse(atlas, 3)
    with raises_code("AnswerGone", match=f"change {edit.seq}"):
        claim(atlas, key_id)


def test_process_that_died_after_it_queued_a_job_does_not_queue_another(
    atlas: KnowledgeBase, key_id: int
) -> None:
    with under(claim(atlas, key_id)):
        Jobs(atlas).submit(Check(), actor="tester")
    elapse(atlas, 3)
    with raises_code("AnswerGone"):
        claim(atlas, key_id)


def test_failure_after_an_edit_is_an_answer_and_a_day_later_the_key_is_new(
    atlas: KnowledgeBase, key_id: int
) -> None:
    held = claim(atlas, key_id)
    with under(held):
        atlas.facts.add("Q?", "A", **WHO)
    assert isinstance(held, Claim)
    settle(atlas, held, KeptAnswer(500, "text/plain", b"keying failed"))
    assert claim(atlas, key_id) == KeptAnswer(500, "text/plain", b"keying failed")
    elapse(atlas, 24 * 60 + 1)
    assert isinstance(claim(atlas, key_id), Claim)


def test_erasure_drops_kept_answers_and_their_requests_stay_done(
    operator: Client, atlas: KnowledgeBase, fact_id: int
) -> None:
    operator.post("/v1/facts", json=FACT, headers=ONCE)
    Erasure(atlas).erase([fact_id], actor="tester", reason="request")
    answer = operator.post("/v1/facts", json=FACT, headers=ONCE)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:colmlm:AnswerGone")
    assert len(atlas.facts.find(text="Austen")) == 1
