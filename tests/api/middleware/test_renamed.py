"""A path that was renamed answers under its former name as under the present one: the same route, the same checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from colmlm.api.app import create_app
from colmlm.api.middleware.gate import PRESENT, GatedApp
from colmlm.api.middleware.limiters import Tuning
from colmlm.api.settings import ServerSettings
from colmlm.kb.access.records import ROLES
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import ORIGIN, Client, Connect

FORMER = [(former, present) for former, present in PRESENT.items() if former.startswith("/v1/")]
NEW = {"name": "curator", "role": "operator"}
STOPPED = Tuning(clock=lambda: 100.0)  # by which no bucket fills again, however long a test takes


def said(answer: httpx.Response) -> object:
    """The status and body of an answer, without the id of the request."""
    body = answer.json()
    return answer.status_code, {**body, "request_id": None} if isinstance(body, dict) else body


def asked(client: Client, path: str, **headers: str) -> list[object]:
    """The answers of every route under a path, as of one request each that changes nothing."""
    wanted = (
        ("GET", "", None), ("POST", "", {}), ("POST", "/999/rotate", {}), ("DELETE", "/999", None),
        ("GET", "/999", None), ("PUT", "", None), ("GET", "?limit=0", None), ("GET", "/nowhere/1", None),
    )  # fmt: skip
    return [said(client.request(how, path + rest, json=body, headers=headers)) for how, rest, body in wanted]


@pytest.mark.parametrize(("former", "present"), FORMER)
def test_every_role_gets_the_same_under_both_names(
    former: str,
    present: str,
    app: GatedApp,
    connect: Connect,
    new_token: Callable[[str], str],
    subtests: pytest.Subtests,
) -> None:
    client = connect(app)
    for role in (None, *ROLES):
        with subtests.test(role=role):
            if role is not None:
                client.headers["Authorization"] = f"Bearer {new_token(role)}"
            client.get(present)  # the first use of a token is written, and later ones are not
            assert asked(client, former) == asked(client, present)
            statuses = {client.get(path).status_code for path in (former, present)}
            reads = {"admin"} if present.startswith("/console") else {"admin", "operator", "auditor"}
            assert statuses == {200 if role in reads else 401 if role is None else 403}


@pytest.mark.parametrize(("former", "present"), FORMER)
def test_only_own_hosts_are_served_under_either_name(
    former: str, present: str, app: GatedApp, connect: Connect
) -> None:
    client = connect(app, "admin")
    assert asked(client, former, Host="evil.example") == asked(client, present, Host="evil.example")
    assert client.get(former, headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(("former", "present"), FORMER)
def test_requests_under_both_names_count_as_one(
    former: str, present: str, kb: KnowledgeBase, connect: Connect
) -> None:
    client = connect(create_app(kb, tuning=STOPPED, settings=ServerSettings(rate_limit=3)), "admin")
    paths = (former, present, former, present, former)
    assert [client.get(path).status_code for path in paths] == [200, 200, 200, 429, 429]


def test_an_edit_sent_again_under_the_other_name_is_done_once(
    app: GatedApp, connect: Connect, atlas: KnowledgeBase
) -> None:
    admin = connect(app, "admin")
    once = {"Idempotency-Key": "make-curator"}
    made = admin.post("/v1/keys", json=NEW, headers=once)
    assert made.status_code == 201 and set(made.json()) == {"key", "token"}
    again = admin.post("/v1/tokens", json=NEW, headers=once)
    assert (again.status_code, again.json()["type"]) == (409, "urn:colmlm:AnswerGone")
    path, twice = f"/{made.json()['key']['key_id']}", {"Idempotency-Key": "end-curator"}
    ended = admin.delete(f"/v1/tokens{path}", headers=twice)
    replayed = admin.delete(f"/v1/keys{path}", headers=twice)
    assert ended.content == replayed.content and replayed.headers["idempotency-replayed"] == "true"
    with atlas.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM api_key WHERE name = 'curator'")) == 1


def test_only_the_former_name_says_what_is_called_otherwise_now(app: GatedApp, connect: Connect) -> None:
    admin = connect(app, "admin")
    for path in ("/v1/keys", "/v1/keys/999/rotate", "/v1/keys/%0d%0aSet-Cookie:%20a=b"):
        headers = admin.get(path).headers
        assert headers["deprecation"].startswith("@") and "set-cookie" not in headers
        assert headers["link"] == '</v1/tokens>; rel="successor-version"'
    for path in ("/v1/tokens", "/v1/keysets", "/v1/keysmith"):
        assert not {"deprecation", "link"} & set(admin.get(path).headers)
    assert admin.get("/v1/keysets").status_code == 200


@pytest.mark.parametrize(("former", "present"), FORMER)
def test_slashes_too_many_change_nothing_under_either_name(
    former: str, present: str, app: GatedApp, connect: Connect
) -> None:
    admin = connect(app, "admin")
    for spelled in ("/v1//{}", "//v1/{}", "/v1/{}/", "/v1///{}//"):
        before, now = (spelled.format(path.removeprefix("/v1/")) for path in (former, present))
        answers = [admin.request("GET", f"{ORIGIN}{path}") for path in (before, now)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert "deprecation" in answers[0].headers and "deprecation" not in answers[1].headers
        assert asked(admin, f"{ORIGIN}{before}") == asked(admin, f"{ORIGIN}{now}")


def test_the_description_has_the_present_names_alone(description: dict[str, Any]) -> None:
    paths = description["paths"]
    assert "/v1/tokens" in paths and not [
        path for path in paths if path.startswith(("/v1/keys/", "/v1/keys?"))
    ]
    assert "/v1/keys" not in paths


def test_pages_answer_under_their_former_names(app: GatedApp, connect: Connect) -> None:
    admin = connect(app, "admin")
    pages = [admin.get(path) for path in ("/console/keys", "/console/tokens")]
    assert [page.status_code for page in pages] == [200, 200]
    assert all("<h1" in page.text and "Make the token" in page.text for page in pages)
