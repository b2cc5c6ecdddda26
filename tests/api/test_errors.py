"""Whatever goes wrong, the answer is a problem document; and the OpenAPI document says what can be asked."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from inspect import signature

import pytest
from sqlalchemy import create_engine

from colmlm.api.app import create_app
from colmlm.api.client.connection import error_of
from colmlm.api.errors import problem_of, status_of
from colmlm.api.middleware.auth import build_admission
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.limiters import Limiters
from colmlm.api.wire import MAX_BODY_BYTES
from colmlm.kb.access.access import Access
from colmlm.kb.errors import KBError, refusals
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.store import Store
from tests.api.conftest import Client, Connect
from tests.api.serving import served

STANDARD = {"type", "title", "status", "detail"}


REFUSED: list[tuple[str, str, bytes | None, int]] = [
    ("GET", "/v1/facts/999", None, 404),
    ("GET", "/v1/facts/999/trace", None, 404),
    ("GET", "/v1/documents/999", None, 404),
    ("GET", "/v1/generations/999", None, 404),
    ("GET", "/v1/facts?corpus=nowhere", None, 404),
    ("GET", "/v1/facts?corpus=%00", None, 422),
    ("GET", "/v1/facts?text=%00", None, 422),
    ("GET", "/v1/facts?limit=0", None, 400),
    ("GET", "/v1/facts?limit=501", None, 400),
    ("GET", "/v1/facts?cursor=WyJjaGFuZ2VzIiwxXQ", None, 422),
    ("GET", "/v1/facts?cursor=%00", None, 422),
    ("GET", "/v1/facts?state=maybe", None, 400),
    ("GET", "/v1/changes?since=yesterday", None, 422),
    ("GET", "/v1/changes?kind=%00", None, 422),
    ("GET", "/v1/corpora/nowhere", None, 404),
    ("GET", "/v1/documents/999/facts", None, 404),
    ("GET", "/v1/keysets/999", None, 404),
    ("GET", "/v1/keysets/999/gate", None, 404),
    ("GET", "/v1/forget-runs/999", None, 404),
    ("POST", "/v1/impact", b'{"selector": {}}', 422),
    ("POST", "/v1/impact", b'{"selector": {"document": "' + b"9" * 5000 + b'"}}', 422),
    ("POST", "/v1/impact", b'{"selector": {"since": "0001-01-01T00:00:00+23:59"}}', 422),
    ("POST", "/v1/certificates/check", b'{"text": NaN}', 400),
    ("GET", "/v1/facts/0", None, 400),
    ("GET", "/v1/facts/9223372036854775808", None, 400),
    ("GET", "/v1/facts/x", None, 404),
    ("GET", "/v1/nowhere", None, 404),
    ("PUT", "/v1/facts", b"{}", 405),
    ("POST", "/v1/facts", b"", 400),
    ("POST", "/v1/facts", b"{", 400),
    ("POST", "/v1/facts", b"[]", 400),
    ("POST", "/v1/facts", b'{"question": "q", "value": "v"}', 400),
    ("POST", "/v1/facts", b'{"question": "q", "value": "v", "reason": ""}', 400),
    ("POST", "/v1/facts", b'{"question": "q", "value": " ", "reason": "r"}', 422),
    ("POST", "/v1/facts", b'{"question": "q", "value": "\\u0000", "reason": "r"}', 422),
    ("POST", "/v1/facts", b'{"question": "q", "value": "\\ud800", "reason": "r"}', 400),
    ("POST", "/v1/facts", b'{"question": "q", "value": "\xff", "reason": "r"}', 400),
    ("DELETE", "/v1/facts", b'{"fact_ids": [], "reason": "r"}', 400),
    ("DELETE", "/v1/facts", b'{"fact_ids": [1.5], "reason": "r"}', 400),
    ("POST", "/v1/facts", b'"' + b"x" * MAX_BODY_BYTES + b'"', 413),
]


def test_every_refusal_is_a_problem_document(operator: Client) -> None:
    for method, path, body, status in REFUSED:
        answer = operator.request(method, path, content=body, headers={"Content-Type": "application/json"})
        case = (method, path, (body or b"")[:100], answer.text)
        assert answer.status_code == status, case
        assert answer.headers["content-type"] == "application/problem+json", case
        assert set(answer.json()) >= STANDARD and answer.json()["status"] == status, case
        assert "Traceback" not in answer.text and "psycopg" not in answer.text, case


def test_malformed_field_is_named(operator: Client) -> None:
    problem = operator.post("/v1/facts", json={"question": "q", "value": "v", "reason": 7}).json()
    assert [(e["field"], e["source"]) for e in problem["errors"]] == [("reason", "body")]
    body = {"facts": [{"question": "q", "value": "v"}, {"question": "q"}], "reason": "r"}
    problem = operator.post("/v1/facts/batch", json=body).json()
    assert [e["field"] for e in problem["errors"]] == ["facts[1]"] and "value" in problem["errors"][0][
        "message"
    ]


@pytest.mark.parametrize("body", [b"{", b'{"reason": }'])
def test_a_body_that_is_no_json_changes_nothing_and_is_to_be_sent_again(
    operator: Client, body: bytes
) -> None:
    answer = operator.post("/v1/facts", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["detail"].startswith("The body is no JSON: ")
    assert answer.json()["detail"].endswith(". Nothing was changed. Correct it and send it again.")


def test_a_body_is_read_strictly(operator: Client) -> None:
    for wrong in ({"fact_ids": ["1"]}, {"fact_ids": [1], "abstain": 0}, {"fact_ids": [1], "because": "r"}):
        assert operator.request("DELETE", "/v1/facts", json={"reason": "r", **wrong}).status_code == 400, (
            wrong
        )


def test_a_whole_number_may_have_a_point(operator: Client, fact_id: int) -> None:
    body = {"fact_ids": [float(fact_id)], "reason": "r"}
    assert operator.request("DELETE", "/v1/facts", json=body).json()["fact_ids"] == [fact_id]
    body["fact_ids"] = [fact_id + 0.5]
    assert operator.request("DELETE", "/v1/facts", json=body).status_code == 400


def test_options_and_405_name_every_method(app: GatedApp, connect: Connect) -> None:
    admin = connect(app, "admin")
    for method in ("OPTIONS", "PUT"):
        answer = admin.request(method, "/v1/facts")
        assert {"GET", "HEAD", "POST", "DELETE"} <= set(answer.headers["allow"].split(", ")), method


def test_database_that_is_down_is_a_503(kb: KnowledgeBase, connect: Connect) -> None:
    app = create_app(kb)
    down = create_engine("postgresql+psycopg://nobody:secret@127.0.0.1:1/x")
    app.gate = replace(
        app.gate, admission=build_admission(Access(Store(kb.settings, down)), ["127.0.0.1"], Limiters())
    )
    answer = connect(app, "reader").get("/v1/facts")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["title"] == "Database unavailable" and "secret" not in answer.text


def leaves(error: type[KBError]) -> list[type[KBError]]:
    return [error, *(leaf for child in error.__subclasses__() for leaf in leaves(child))]


@pytest.mark.parametrize("path", ["/v1/facts", "/v1/uploads?name=x.txt"])
def test_who_hangs_up_in_a_body_is_no_fault_of_the_server(
    path: str, app: GatedApp, new_token: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {new_token('admin')}\r\n"
    with served(app) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(
                f"{head}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode()
            )
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
    assert [record for record in caplog.records if record.exc_info] == []


def test_every_error_has_a_status_that_http_knows() -> None:
    assert all(error.title for error in leaves(KBError))
    made = (Exception.__new__(error) for error in leaves(KBError))
    assert all(400 <= status_of(error) < 600 for error in made)


MADE = {name: make for name, make in vars(refusals).items() if hasattr(make, "__wrapped__")}
GIVEN = {"int": 3, "int | None": None, "float": 0.5, "str": "words", "str | None": None}
LISTS = {"Sequence[int]": [3, 5], "Sequence[str]": ["a", "b"]}


@pytest.mark.parametrize("name", MADE)
def test_a_client_rebuilds_an_error_with_its_kind_code_words_and_ids(name: str) -> None:
    of = signature(MADE[name]).parameters.values()
    made = MADE[name](*((GIVEN | LISTS)[one.annotation] for one in of))
    problem, _ = problem_of(made)
    rebuilt = error_of(problem)
    assert type(rebuilt) is type(made) and problem_of(rebuilt)[0] == problem
    assert made.code.lower() == name.replace("_", "")
    ids = [one.name for one in of if one.name.endswith("_ids")]
    assert all(getattr(made, one) == getattr(rebuilt, one) for one in ids)


def test_no_answer_goes_without_the_headers_that_protect_it(app: GatedApp, connect: Connect) -> None:
    client = connect(app, "reader")
    for path in ("/", "/v1/facts", "/nowhere", "/console/app.js", "/schema/openapi.json"):
        for answer in (client.get(path), client.get(path, headers={"Authorization": "Bearer no"})):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'") and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy


def test_openapi_page_uses_no_external_resource(reader: Client) -> None:
    assert "http" not in reader.get("/schema").headers.get("content-type", "").replace("html", "")
    assert reader.get("/schema").headers["content-type"].startswith("application/")
