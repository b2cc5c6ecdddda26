"""The gate: no route without a token, nothing without the right, no write by a cookie from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from itertools import product

import pytest
from litestar import Litestar, get
from sqlalchemy import text
from sqlalchemy.orm import Session

from colmlm.api.app import create_app
from colmlm.api.errors import respond
from colmlm.api.middleware.auth import COOKIE, PROBES, STATIC_PATH, require_right
from colmlm.api.middleware.gate import GatedApp, build_gate
from colmlm.api.middleware.limiters import Limiters
from colmlm.api.settings import ServerSettings
from colmlm.kb.access.records import ROLES
from colmlm.kb.access.tokens import revoke_token, rotate_token
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import ORIGIN, Client, Connect

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def paths(app: GatedApp) -> list[str]:
    """Every route of the app, with 1 for its ids and a script for its names."""
    found = [re.sub(r"{\w+_id}", "1", route.path_format) for route in app.routed.routes]  # type: ignore[attr-defined]
    assert len(found) > 15
    return [re.sub(r"{\w+}", "app.js", path) for path in found]


def test_every_route_wants_a_token(app: GatedApp, connect: Connect) -> None:
    client = connect(app)
    asked = [*paths(app), "/nowhere", "/v1/nowhere", "/v1", "/console/nowhere"]
    for path, method in product(asked, METHODS):
        if not (method in ("GET", "HEAD") and (path.startswith(STATIC_PATH) or path in PROBES)):
            answer = client.request(method, path)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"


def test_only_named_files_are_open(app: GatedApp, connect: Connect) -> None:
    client = connect(app)
    assert client.get(f"{STATIC_PATH}style.css").headers["content-type"].startswith("text/css")
    for name in ("views.py", "..%2Fviews.py", "%2e%2e/views.py", ""):
        assert client.get(f"{STATIC_PATH}{name}").status_code in (401, 404), name


def test_wrong_credentials_are_nobody(app: GatedApp, connect: Connect) -> None:
    client = connect(app)
    for header in (
        "Bearer wrong",
        "Bearer ",
        "Bearer",
        "Basic dXNlcjpwYXNz",
        "",
        "bearer \xe9",
        "Bearer " + "x" * 5000,
    ):
        answer = client.get("/v1/facts", headers={"Authorization": header.encode("latin-1")})
        assert answer.status_code == 401, header


def test_wrong_bearer_does_not_fall_back_to_the_cookie(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client = connect(app)
    assert sign_in(client, new_token("reader")) == 303 and client.get("/v1/facts").status_code == 200
    assert client.get("/v1/facts", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_revoked_token_stops_at_once(app: GatedApp, atlas: KnowledgeBase, reader: Client) -> None:
    assert reader.get("/v1/facts").status_code == 200
    with Session(atlas.engine) as session, session.begin():
        revoke_token(session, "the reader")
    assert reader.get("/v1/facts").status_code == 401


def test_route_that_names_no_right_is_the_admins(
    kb: KnowledgeBase, connect: Connect, new_token: Callable[[str], str]
) -> None:
    @get("/forgotten", sync_to_thread=False)
    def forgotten() -> str:
        return "secret"

    client = connect(
        GatedApp(
            build_gate(kb, ServerSettings(), Limiters()),
            Litestar([forgotten], guards=[require_right], exception_handlers={Exception: respond}),
        )
    )
    tokens = {role: {"Authorization": f"Bearer {new_token(role)}"} for role in ROLES}
    statuses = {role: client.get("/forgotten", headers=token).status_code for role, token in tokens.items()}
    assert statuses == {**dict.fromkeys(ROLES, 403), "admin": 200}


def test_only_own_names_are_served_even_with_a_token(reader: Client) -> None:
    own = ("127.0.0.1", "localhost:1", "LOCALHOST:8484", "[::1]:8484")
    foreign = ("evil.example", "127.0.0.1.evil.example", "evil.example:8484", "[::1", "evil@127.0.0.2", "")
    statuses = {
        host: reader.get("/v1/facts", headers={"Host": host}).status_code for host in (*own, *foreign)
    }
    assert statuses == {**dict.fromkeys(own, 200), **dict.fromkeys(foreign, 421)}


NO_HOSTS = (
    "x@localhost",
    "x:y@localhost:8484",
    "@localhost",
    "localhost@",
    "localhost:0",
    "localhost:65536",
    "localhost:99999999",
    "localhost:+80",
    "localhost:80:80",
    "localhost:",
    "localhost/",
    "localhost?",
    "localhost#",
    "localhost,evil.example",
    "local host",
    "local\thost",
    "[::1]x",
    "::1",
)


def test_a_host_header_holds_a_name_and_a_port_and_nothing_else(reader: Client) -> None:
    answers = {host: reader.get("/v1/facts", headers={"Host": host}).status_code for host in NO_HOSTS}
    assert answers == dict.fromkeys(NO_HOSTS, 421)
    two = [("Host", "localhost"), ("Host", "localhost")]
    assert reader.get("/v1/facts", headers=two).status_code == 421


def test_a_host_can_be_allowed(kb: KnowledgeBase, connect: Connect) -> None:
    app = create_app(kb, settings=ServerSettings(allowed_hosts=("kb.example.org",)))
    answer = connect(app, "reader").get("/v1/facts", headers={"Host": "kb.example.org"})
    assert answer.status_code == 200


def sign_in(client: Client, secret: str, origin: str | None = ORIGIN) -> int:
    headers = {} if origin is None else {"Origin": origin}
    return client.post("/session", data={"key": secret}, headers=headers, follow_redirects=False).status_code


def test_signing_in_sets_a_cookie_that_scripts_cannot_read(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client = connect(app)
    answer = client.post(
        "/session", data={"key": new_token("reader")}, headers={"Origin": ORIGIN}, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "domain" not in cookie
    assert client.get("/").status_code == 200
    client.post("/console/sign-out", headers={"Origin": ORIGIN}, follow_redirects=False)
    assert client.get("/").status_code == 401


def test_signing_out_ends_the_session_for_whoever_has_its_cookie(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str], atlas: KnowledgeBase
) -> None:
    client, secret = connect(app), new_token("reader")
    assert sign_in(client, secret) == 303
    kept = client.cookies[COOKIE]
    assert kept != secret and not kept.startswith("colmlm_")
    with atlas.engine.connect() as connection:
        told = connection.scalar(text("SELECT browser_session::text FROM browser_session"))
    assert kept not in str(told) and secret not in str(told)
    stolen = {"Cookie": f"{COOKIE}={kept}"}
    assert client.get("/v1/facts", headers=stolen).status_code == 200
    client.post("/console/sign-out", headers={"Origin": ORIGIN}, follow_redirects=False)
    client.cookies.clear()
    assert client.get("/v1/facts", headers=stolen).status_code == 401
    assert client.get("/v1/facts", headers={"Authorization": f"Bearer {secret}"}).status_code == 200


def test_the_secret_itself_is_no_session(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    client, secret = connect(app), new_token("reader")
    assert client.get("/v1/facts", headers={"Cookie": f"{COOKIE}={secret}"}).status_code == 401
    assert sign_in(client, secret) == 303
    bearer = {"Authorization": f"Bearer {client.cookies[COOKIE]}"}
    assert client.get("/v1/facts", headers=bearer).status_code == 401


@pytest.mark.parametrize("how", ["revoked", "rotated", "expired", "out of date"])
def test_a_session_ends_with_its_token_and_by_itself(
    how: str, app: GatedApp, connect: Connect, new_token: Callable[[str], str], atlas: KnowledgeBase
) -> None:
    client = connect(app)
    assert sign_in(client, new_token("reader")) == 303 and client.get("/v1/facts").status_code == 200
    with Session(atlas.engine) as session, session.begin():
        match how:
            case "revoked":
                revoke_token(session, "the reader")
            case "rotated":
                rotate_token(session, "the reader", grace=timedelta(hours=1))
            case "expired":
                session.execute(text("UPDATE api_key SET expires_at = now()"))
            case "out of date":
                session.execute(text("UPDATE browser_session SET expires_at = now()"))
    assert client.get("/v1/facts").status_code == 401


def test_signing_in_again_ends_the_session_before(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str], atlas: KnowledgeBase
) -> None:
    client, secret = connect(app), new_token("reader")
    held = []
    for _ in range(2):
        assert sign_in(client, secret) == 303
        held.append(client.cookies[COOKIE])
    client.cookies.clear()
    answers = [client.get("/v1/facts", headers={"Cookie": f"{COOKIE}={one}"}) for one in held]
    assert [answer.status_code for answer in answers] == [401, 200]


def test_wrong_token_shows_the_form_again(app: GatedApp, connect: Connect) -> None:
    answer = connect(app).post("/session", data={"key": "<script>"}, headers={"Origin": ORIGIN})
    assert answer.status_code == 401
    assert "does not work" in answer.text and "<script>" not in answer.text
    assert "set-cookie" not in answer.headers


def test_cookie_writes_only_from_the_own_origin(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str], fact_id: int
) -> None:
    client, secret = connect(app), new_token("operator")
    body = {"fact_ids": [fact_id], "reason": "forged"}
    assert sign_in(client, secret) == 303
    for origin in (
        None,
        "null",
        "http://evil.example",
        "https://127.0.0.1:8485",
        "http://127.0.0.1",
        "file://",
    ):
        assert sign_in(client, secret, origin) == 403, origin
        headers = {} if origin is None else {"Origin": origin}
        assert client.request("DELETE", "/v1/facts", json=body, headers=headers).status_code == 403, origin
        assert client.get("/v1/facts", headers=headers).status_code == 200, origin
    assert client.request("DELETE", "/v1/facts", json=body, headers={"Origin": ORIGIN}).status_code == 200


def test_a_refused_origin_names_both_headers_and_the_proxy(
    app: GatedApp, connect: Connect, new_token: Callable[[str], str]
) -> None:
    headers = {"Origin": "https://kb.example.org"}
    answer = connect(app).post("/session", data={"key": new_token("reader")}, headers=headers)
    assert answer.status_code == 403 and "https://kb.example.org" in answer.text
    assert "A proxy must pass Host" in answer.text


def test_bearer_needs_no_origin(operator: Client, fact_id: int) -> None:
    answer = operator.request("DELETE", f"/v1/facts/{fact_id}", json={"reason": "wrong"})
    assert answer.status_code == 200
