"""What every request passes: its id, its key's rate, other origins, and the journal of denials and edits."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Bucket, Tuning
from colmlm.api.settings import ServerSettings
from colmlm.api.watch.logs import RECORDED_A_MINUTE
from colmlm.kb.access import tokens as access
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect
from tests.fakes import FakeEncoder

APP = "https://app.example.org"
STOPPED = Tuning(clock=lambda: 100.0)  # by which no bucket fills again, however long a test takes


def test_bucket_grants_a_minutes_worth_at_once_and_then_evenly() -> None:
    now = 100.0
    bucket = Bucket(6, clock=lambda: now)
    assert [bucket.take() for _ in range(6)] == [0.0] * 6
    assert bucket.take() == pytest.approx(10)
    now += 10
    assert bucket.take() == 0.0 and bucket.take() == pytest.approx(10)
    now += 3600
    assert [bucket.take() for _ in range(7)][5:] == [0.0, pytest.approx(10)]


def test_token_that_asks_too_often_is_told_when_to_come_back(kb: KnowledgeBase, connect: Connect) -> None:
    with Session(kb.engine) as session, session.begin():
        token = access.create_token(session, "hasty", "reader", rate_limit=3)
    client = connect(create_app(kb, tuning=STOPPED), "reader")
    hasty = {"Authorization": f"Bearer {token}"}
    statuses = [client.get("/v1/facts", headers=hasty).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    refused = client.get("/nowhere", headers=hasty)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "20")
    assert refused.json()["type"] == "urn:colmlm:TooManyRequests"
    assert client.get("/v1/facts").status_code == 200  # another key has a bucket of its own


def test_settings_limit_tokens_without_a_limit_of_their_own(kb: KnowledgeBase, connect: Connect) -> None:
    client = connect(create_app(kb, tuning=STOPPED, settings=ServerSettings(rate_limit=2)), "reader")
    assert [client.get("/v1/facts").status_code for _ in range(3)] == [200, 200, 429]


def test_every_answer_names_its_request_and_a_problem_does_too(app: GatedApp, connect: Connect) -> None:
    client = connect(app, "reader")
    for path in ("/v1/facts", "/v1/facts/999", "/nowhere", "/"):
        for headers in ({}, {"Authorization": "Bearer no"}):
            answer = client.get(path, headers={"X-Request-ID": "trace-1.a", **headers})
            assert answer.headers["x-client-request-id"] == "trace-1.a"
            if answer.headers["content-type"] == "application/problem+json":
                assert answer.json()["request_id"] == answer.headers["x-request-id"] != "trace-1.a"
    made = {client.get("/v1/facts").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3


def test_id_of_the_callers_that_is_none_is_passed_over(reader: Client) -> None:
    for given in ("a b", "-a", "é", "x" * 65, "a\tb", ""):
        answer = reader.get("/v1/facts", headers={"X-Request-ID": given.encode("latin-1")})
        assert "x-client-request-id" not in answer.headers, given
        assert answer.headers["x-request-id"] not in (given, ""), given


def test_change_keeps_the_request_that_made_it(operator: Client, atlas: KnowledgeBase, fact_id: int) -> None:
    body, headers = {"reason": "wrong"}, {"X-Request-ID": "ticket-7"}
    answer = operator.request("DELETE", f"/v1/facts/{fact_id}", json=body, headers=headers)
    last = operator.get("/v1/changes").json()["items"][-1]
    assert (last["actor"], last["client_request_id"]) == ("the operator", "ticket-7")
    assert last["request_id"] == answer.headers["x-request-id"]
    atlas.facts.restore([fact_id], actor="tester", reason="back")
    assert atlas.log.changes(after=last["seq"])[0].request_id is None
    assert atlas.upkeep.fsck().ok


def test_edits_and_denials_are_logged_with_who_and_where(
    operator: Client, fact_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="colmlm.journal")
    ids = {"X-Request-ID": "r1"}
    operator.get("/v1/facts", headers=ids)
    operator.request("DELETE", "/v1/facts/999", json={"reason": "no such"}, headers=ids)
    assert ours(caplog) == []  # a look and a refused edit change nothing
    operator.request("DELETE", f"/v1/facts/{fact_id}", json={"reason": "wrong"}, headers=ids)
    operator.get("/v1/facts", headers={**ids, "Authorization": "Bearer no"})
    edited, denied = ({name: getattr(r, name) for name in FIELDS} for r in ours(caplog))
    assert edited == dict(
        zip(FIELDS, ("r1", "the operator", "DELETE", "/v1/facts/{fact_id}", 200), strict=True)
    )
    assert denied == dict(zip(FIELDS, ("r1", None, "GET", None, 401), strict=True))
    assert ours(caplog)[1].cause == "NotSignedIn"  # type: ignore[attr-defined]


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "colmlm.journal"]


FIELDS = ("client_request_id", "actor", "method", "route", "status")


def test_auditor_reads_who_was_denied_what(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client = connect(app, "auditor")
    reader = {"Authorization": f"Bearer {new_token('reader')}"}
    assert client.get("/v1/denials", headers=reader).status_code == 403
    refused = client.post("/v1/facts", json={}, headers=reader).headers["x-request-id"]
    client.get("/v1/%1b[31mred?secret=1", headers={"Authorization": "Bearer no"})
    newest, second, first = client.get("/v1/denials").json()["items"]
    assert (newest["actor"], newest["status"], newest["cause"]) == (None, 401, "NotSignedIn")
    assert newest["path"] == "unrouted"
    assert (second["actor"], second["path"], second["request_id"]) == ("the reader", "/v1/facts", refused)
    assert (first["cause"], first["path"]) == ("RightMissing", "/v1/denials")
    page = client.get("/v1/denials", params={"limit": 2}).json()
    older = client.get("/v1/denials", params={"cursor": page["next"]}).json()["items"]
    assert [d["denial_id"] for d in older] == [first["denial_id"]]


def test_flood_of_denials_is_counted_and_does_not_hide_a_tokens(
    kb: KnowledgeBase, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client = connect(create_app(kb, tuning=STOPPED), "auditor")
    for _ in range(RECORDED_A_MINUTE + 20):
        client.get("/v1/facts", headers={"Authorization": "Bearer no"})
    client.post("/v1/facts", json={}, headers={"Authorization": f"Bearer {new_token('reader')}"})
    newest, *others = client.get("/v1/denials").json()["items"]
    assert newest["actor"] == "the reader"
    assert sum(d["num_unrecorded"] + 1 for d in (newest, *others)) == RECORDED_A_MINUTE + 21
    assert newest["num_unrecorded"] == 20


def test_other_origins_may_ask_only_if_they_are_named(
    kb: KnowledgeBase, encoder: FakeEncoder, connect: Connect
) -> None:
    asking = {"Origin": APP, "Access-Control-Request-Method": "POST"}
    closed = connect(create_app(kb, encoder), "reader")
    assert closed.options("/v1/facts", headers={**asking, "Authorization": ""}).status_code == 401
    assert "access-control-allow-origin" not in closed.get("/v1/facts", headers={"Origin": APP}).headers

    opened = connect(create_app(kb, encoder, settings=ServerSettings(cors_origins=(APP,))), "trainer")
    preflight = opened.options("/v1/facts", headers={**asking, "Authorization": ""})
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (204, APP)
    assert "Idempotency-Key" in preflight.headers["access-control-allow-headers"]
    for headers in ({"Origin": APP}, {"Origin": APP, "Authorization": "Bearer no"}):
        answer = opened.get("/v1/facts", headers=headers)
        assert answer.headers["access-control-allow-origin"] == APP and answer.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in answer.headers
    for other in ("https://evil.example", f"{APP}.evil.example", f"{APP}:8443", "null"):
        refused = opened.options("/v1/facts", headers={**asking, "Origin": other, "Authorization": ""})
        assert refused.status_code == 401 and "access-control-allow-origin" not in refused.headers, other
    rebound = opened.options("/v1/facts", headers={**asking, "Host": "evil.example"})
    assert rebound.status_code == 421
