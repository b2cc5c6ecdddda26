"""Logouts that an identity provider tells (OpenID Connect Back-Channel Logout 1.0): which end sessions, and of whom."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import jwt
import pytest
from sqlalchemy import text

from colmlm.api.app import create_app
from colmlm.api.middleware.auth import COOKIE
from colmlm.api.middleware.sign_on import ALGORITHMS
from colmlm.kb.access.records import Grant, Person
from colmlm.kb.errors import Conflict
from colmlm.kb.log.chain import list_denials
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Client, Connect, body_of
from tests.api.middleware.test_sign_on import (
    CLIENT,
    Make,
    app,
    client,
    key_pairs,
    of_public_key,
    served_keys,
    session_of_person,
    settings_of,
    tampered,
    unsigned,
)
from tests.fakes import FakeEncoder
from tests.identity_provider import AUDIENCE, KeyServer, SigningKey

__all__ = ["app", "client", "key_pairs", "served_keys"]  # fixtures

LOGOUT = "/session/logout"
EVENT = {"http://schemas.openid.net/event/backchannel-logout": {}}


def logout_claims(served: KeyServer, **changed: Any) -> dict[str, Any]:
    now = int(time.time())
    right = {"iss": served.issuer, "aud": CLIENT, "iat": now, "exp": now + 120, "jti": uuid4().hex}
    right |= {"sub": "7f3c", "sid": "of ann", "events": EVENT}
    return {name: value for name, value in (right | changed).items() if value is not None}


def sign_logout(key: SigningKey, served: KeyServer, **changed: Any) -> str:
    return key.sign(logout_claims(served, **changed), typ="logout+jwt")


@dataclass(frozen=True)
class Sessions:
    """Browser sessions of people at one served base, by name."""

    client: Client
    secrets: dict[str, str]

    def alive(self) -> set[str]:
        """Name the sessions that still open a page."""
        found = set()
        for name, secret in self.secrets.items():
            answer = self.client.get("/console/audit", headers={"Cookie": f"{COOKIE}={secret}"})
            assert answer.status_code in (200, 401)
            found |= {name} if answer.status_code == 200 else set()
        return found


@pytest.fixture
def sessions(client: Client, atlas: KnowledgeBase, served_keys: KeyServer) -> Sessions:
    """Two sessions of ann with a `sid`, one without, and one of another person."""
    secrets = {}
    for name, subject, sid in (
        ("ann", "7f3c", "of ann"),
        ("ann elsewhere", "7f3c", "elsewhere"),
        ("ann before", "7f3c", None),
        ("ben", "ben", "of ben"),
    ):
        person = Person(
            issuer=served_keys.issuer,
            subject=subject,
            name=f"{subject}@example.org",
            groups=("editors",),
            ends_at=datetime.now(UTC) + timedelta(minutes=10),
            session_id=sid,
        )
        secret = atlas.access.begin_session_of(person, Grant("operator"), name, None)
        assert secret is not None
        secrets[name] = secret
    return Sessions(client, secrets)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("named", "left"),
    [
        ({"sub": None}, {"ann elsewhere", "ann before", "ben"}),
        ({}, {"ann elsewhere", "ben"}),  # of the third it is not known that it is another
        ({"sid": None}, {"ben"}),
        ({"sub": None, "sid": "unknown"}, {"ann", "ann elsewhere", "ann before", "ben"}),
        ({"sub": "ben", "sid": "of ann"}, {"ann", "ann elsewhere", "ann before", "ben"}),
    ],
)
def test_a_logout_ends_the_sessions_that_it_names(
    sessions: Sessions,
    served_keys: KeyServer,
    key_pairs: dict[str, SigningKey],
    algorithm: str,
    named: dict[str, Any],
    left: set[str],
) -> None:
    assert sessions.alive() == set(sessions.secrets)
    token = sign_logout(key_pairs[algorithm], served_keys, **named)
    answer = sessions.client.post(LOGOUT, data={"logout_token": token})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    assert answer.content in (b"", b"null") and "set-cookie" not in answer.headers
    assert sessions.alive() == left


LOGOUT_REFUSED: dict[str, tuple[Make, str]] = {
    "forged": (
        lambda key, of: sign_logout(SigningKey.new(key.algorithm, key.key_id), of),
        "its signature does not fit",
    ),
    "unsigned": (lambda key, of: unsigned(logout_claims(of)), "it is not signed by one of"),
    "public key as a secret": (
        lambda key, of: of_public_key(key, logout_claims(of)),
        "it is not signed by one of",
    ),
    "shared secret": (
        lambda key, of: jwt.encode(logout_claims(of), "secret" * 8, "HS256", headers={"kid": "shared"}),
        "it is not signed by one of",
    ),
    "unknown key": (
        lambda key, of: key.sign(logout_claims(of), kid="new", typ="logout+jwt"),
        "its key is none of the provider's",
    ),
    "tampered": (
        lambda key, of: tampered(sign_logout(key, of, sub="ben"), sub="7f3c"),
        "its signature does not fit",
    ),
    "other issuer": (lambda key, of: sign_logout(key, of, iss="https://other.example"), "another issuer"),
    "other audience": (lambda key, of: sign_logout(key, of, aud="other"), "it is for another audience"),
    "audience of the API": (lambda key, of: sign_logout(key, of, aud=AUDIENCE), "it is for another audience"),
    "no audience": (lambda key, of: sign_logout(key, of, aud=None), "a claim is missing: aud"),
    "other client": (lambda key, of: sign_logout(key, of, azp="other"), "it is for another client"),
    "several clients": (lambda key, of: sign_logout(key, of, aud=[CLIENT, "other"]), "several audiences"),
    "expired": (lambda key, of: sign_logout(key, of, exp=int(time.time()) - 60), "it has expired"),
    "of the future": (lambda key, of: sign_logout(key, of, iat=int(time.time()) + 300), "not valid yet"),
    "no end": (lambda key, of: sign_logout(key, of, exp=None), "a claim is missing: exp"),
    "no beginning": (lambda key, of: sign_logout(key, of, iat=None), "a claim is missing: iat"),
    "too long": (lambda key, of: sign_logout(key, of, exp=int(time.time()) + 90_000), "longer than a day"),
    "no name": (lambda key, of: sign_logout(key, of, jti=None), "a claim is missing: jti"),
    "empty name": (lambda key, of: sign_logout(key, of, jti=""), "its jti or sid is no name"),
    "no events": (lambda key, of: sign_logout(key, of, events=None), "a claim is missing: events"),
    "other events": (lambda key, of: sign_logout(key, of, events={"urn:other": {}}), "name no logout"),
    "events of another form": (lambda key, of: sign_logout(key, of, events=list(EVENT)), "name no logout"),
    "event of another form": (
        lambda key, of: sign_logout(key, of, events=dict.fromkeys(EVENT, True)),
        "name no logout",
    ),
    "nonce": (lambda key, of: sign_logout(key, of, nonce="x"), "it has a nonce"),
    "nobody": (lambda key, of: sign_logout(key, of, sub=None, sid=None), "neither a person nor a session"),
    "empty person": (lambda key, of: sign_logout(key, of, sub=""), "its subject is no name"),
    "empty session": (lambda key, of: sign_logout(key, of, sid=""), "its jti or sid is no name"),
    "number as a session": (lambda key, of: sign_logout(key, of, sid=7), "its jti or sid is no name"),
    "access token": (lambda key, of: key.sign(logout_claims(of)), "it is of another type"),
    "ID token": (lambda key, of: key.sign(of.claims(aud=CLIENT), typ="JWT"), "a claim is missing: jti"),
    "no JSON": (lambda key, of: "eyJhbGciOiJSUzI1NiJ9.e30.x", "no signed JSON Web Token"),
    "empty": (lambda key, of: "", "no signed JSON Web Token"),
}


@pytest.mark.parametrize("name", LOGOUT_REFUSED)
def test_a_logout_that_is_not_right_ends_nothing(
    sessions: Sessions,
    atlas: KnowledgeBase,
    served_keys: KeyServer,
    key_pairs: dict[str, SigningKey],
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    make, cause = LOGOUT_REFUSED[name]
    token = make(key_pairs["RS256"], served_keys)
    answer = sessions.client.post(LOGOUT, data={"logout_token": token})
    problem = body_of(answer, 400)
    assert problem["type"] == "urn:colmlm:LogoutRefused" and cause in problem["detail"], problem
    assert answer.headers["cache-control"] == "no-store"
    assert sessions.alive() == set(sessions.secrets)
    with atlas.sessions() as session:
        (denial, *_) = list_denials(session)
        assert session.execute(text("SELECT count(*) FROM provider_logout")).scalar_one() == 0
    assert (denial.path, denial.status, denial.cause) == (LOGOUT, 400, "LogoutRefused")
    assert not token or token.split(".")[1] not in caplog.text + answer.text


def test_a_logout_counts_once_in_every_process(
    sessions: Sessions,
    atlas: KnowledgeBase,
    encoder: FakeEncoder,
    connect: Connect,
    served_keys: KeyServer,
    key_pairs: dict[str, SigningKey],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    token = sign_logout(key_pairs["ES256"], served_keys, sid=None)
    assert sessions.client.post(LOGOUT, data={"logout_token": token}).status_code == 200
    assert sessions.alive() == {"ben"}
    (said,) = [one for one in caplog.records if one.name == "colmlm.api.middleware.sign_on"]
    assert said.sessions == 3 and token not in caplog.text  # type: ignore[attr-defined]
    again = session_of_person(atlas, served_keys, state="again")
    other = connect(create_app(atlas, encoder, settings=settings_of(served_keys)))
    for server in (sessions.client, other):
        problem = body_of(server.post(LOGOUT, data={"logout_token": token}), 400)
        assert "it was used already" in problem["detail"]
    assert Sessions(other, {"again": again}).alive() == {"again"}


def test_a_session_that_the_provider_ended_is_not_begun_afterwards(
    sessions: Sessions, atlas: KnowledgeBase, served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    token = sign_logout(key_pairs["ES256"], served_keys, sid="late", sub=None)
    assert sessions.client.post(LOGOUT, data={"logout_token": token}).status_code == 200
    person = Person(
        issuer=served_keys.issuer,
        subject="7f3c",
        name="ann@example.org",
        groups=("editors",),
        ends_at=datetime.now(UTC) + timedelta(minutes=10),
        session_id="late",
    )
    with pytest.raises(Conflict, match="signed out at the identity provider"):
        atlas.access.begin_session_of(person, Grant("operator"), "late", None)
    assert sessions.alive() == set(sessions.secrets)


def test_a_form_without_one_logout_token_ends_nothing(
    sessions: Sessions, served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    token = sign_logout(key_pairs["ES256"], served_keys)
    for sent in (
        {},
        {"data": {"token": token}},
        {"data": {"logout_token": [token, token]}},
        {"json": {"logout_token": token}},
        {"params": {"logout_token": token}},
    ):
        problem = body_of(sessions.client.post(LOGOUT, **sent), 400)  # type: ignore[arg-type]
        assert problem["type"] == "urn:colmlm:LogoutRefused"
    assert sessions.client.post(LOGOUT, data={"logout_token": token * 50}).status_code == 413
    assert sessions.client.get(LOGOUT, params={"logout_token": token}).status_code == 401
    assert sessions.alive() == set(sessions.secrets)


def test_without_single_sign_on_nobody_is_logged_out(
    atlas: KnowledgeBase,
    encoder: FakeEncoder,
    connect: Connect,
    served_keys: KeyServer,
    key_pairs: dict[str, SigningKey],
) -> None:
    sent = {"logout_token": sign_logout(key_pairs["ES256"], served_keys)}
    assert connect(create_app(atlas, encoder)).post(LOGOUT, data=sent).status_code == 401
    for_programs = connect(create_app(atlas, encoder, settings=settings_of(served_keys, client_id=None)))
    assert for_programs.post(LOGOUT, data=sent).status_code == 404
