"""People whom an identity provider vouches for: which of its tokens are believed, and what they may do then."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from sqlalchemy import text

from colmlm.api.app import create_app
from colmlm.api.errors import Refused
from colmlm.api.middleware.auth import COOKIE
from colmlm.api.middleware.gate import GatedApp
from colmlm.api.middleware.sign_on import ALGORITHMS, LONGEST_TOKEN, Provider
from colmlm.api.settings import ServerSettings, SignOnSettings
from colmlm.kb.access.records import Grant, Person
from colmlm.kb.errors import InvalidValue
from colmlm.kb.log.chain import list_denials
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import TEXT, Client, Connect, body_of
from tests.fakes import FakeEncoder
from tests.identity_provider import AUDIENCE, KeyServer, SigningKey, serving_keys

CLIENT = "colmlm-console"
ROLES = (
    "editors=operator",
    "atlas readers=reader:atlas",
    "almanac readers=reader:almanac",
    "checkers=auditor",
)


@pytest.fixture(scope="module")
def key_pairs() -> dict[str, SigningKey]:
    return {algorithm: SigningKey.new(algorithm) for algorithm in ALGORITHMS}


@pytest.fixture
def served_keys(key_pairs: dict[str, SigningKey]) -> Iterator[KeyServer]:
    with serving_keys(list(key_pairs.values())) as served:
        yield served


def settings_of(served: KeyServer, **changed: Any) -> ServerSettings:
    said = {"issuer": served.issuer, "client_id": CLIENT, "audience": AUDIENCE, "roles": ROLES} | changed
    return ServerSettings(sign_on=SignOnSettings(**said))


@pytest.fixture
def app(atlas: KnowledgeBase, encoder: FakeEncoder, served_keys: KeyServer) -> GatedApp:
    return create_app(atlas, encoder, settings=settings_of(served_keys))


@pytest.fixture
def client(app: GatedApp, connect: Connect) -> Client:
    return connect(app)


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_person_may_what_the_groups_are_granted(
    client: Client, served_keys: KeyServer, key_pairs: dict[str, SigningKey], algorithm: str
) -> None:
    headers = bearing(key_pairs[algorithm].sign(served_keys.claims()))
    own = body_of(client.get("/v1/tokens/own", headers=headers))
    assert (own["name"], own["role"], own["corpora"]) == ("ann@example.org", "operator", None)
    assert own["issuer"] == served_keys.issuer and own["prefix"] is None
    assert client.get("/v1/tokens", headers=headers).status_code == 200
    assert client.post("/v1/tokens", headers=headers, json={"name": "x"}).status_code == 403


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, None, "none", headers={"kid": "key of RS256", "typ": "at+jwt"})


def of_public_key(key: SigningKey, claims: dict[str, Any]) -> str:
    """Sign with the published key as if it were a shared secret, which PyJWT itself refuses to do."""
    public = key.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    parts = [{"alg": "HS256", "kid": key.key_id, "typ": "at+jwt"}, claims]
    said = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    digest = hmac.new(public, said, hashlib.sha256).digest()
    return f"{said.decode()}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def tampered(token: str, **changed: Any) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) | changed
    return f"{head}.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.{signature}"


Make = Callable[[SigningKey, KeyServer], str]
REFUSED: dict[str, tuple[Make, str]] = {
    "expired": (lambda key, of: key.sign(of.claims(exp=int(time.time()) - 60)), "it has expired"),
    "not yet valid": (lambda key, of: key.sign(of.claims(nbf=int(time.time()) + 300)), "it is not valid yet"),
    "of the future": (lambda key, of: key.sign(of.claims(iat=int(time.time()) + 300)), "it is not valid yet"),
    "no end": (lambda key, of: key.sign(of.claims(exp=None)), "a claim is missing"),
    "no beginning": (lambda key, of: key.sign(of.claims(iat=None)), "a claim is missing"),
    "no audience": (lambda key, of: key.sign(of.claims(aud=None)), "a claim is missing"),
    "nobody": (lambda key, of: key.sign(of.claims(sub=None)), "a claim is missing"),
    "empty name": (lambda key, of: key.sign(of.claims(sub="")), "its subject is no name"),
    "other issuer": (lambda key, of: key.sign(of.claims(iss="https://other.example")), "another issuer"),
    "issuer with a slash": (lambda key, of: key.sign(of.claims(iss=f"{of.issuer}/")), "another issuer"),
    "other audience": (lambda key, of: key.sign(of.claims(aud="other")), "it is for another audience"),
    "ID token": (lambda key, of: key.sign(of.claims(aud=CLIENT), typ="JWT"), "it is for another audience"),
    "ID token for the API": (
        lambda key, of: key.sign(of.claims(nonce="x"), typ="JWT"),
        "it is no access token",
    ),
    "ID token by its type": (
        lambda key, of: key.sign(of.claims(typ="ID"), typ="JWT"),
        "it is no access token",
    ),
    "logout token": (lambda key, of: key.sign(of.claims(), typ="logout+jwt"), "it is no access token"),
    "forged": (
        lambda key, of: SigningKey.new(key.algorithm, key.key_id).sign(of.claims()),
        "its signature does not fit",
    ),
    "no algorithm": (lambda key, of: unsigned(of.claims()), "it is not signed by one of"),
    "public key as a secret": (
        lambda key, of: of_public_key(key, of.claims()),
        "it is not signed by one of",
    ),
    "RS512": (
        lambda key, of: jwt.encode(of.claims(), key.private, "RS512", headers={"kid": key.key_id}),
        "it is not signed by one of",
    ),
    "algorithm of another key": (
        lambda key, of: key.sign(of.claims(), kid="key of ES256"),
        "its key is none of the provider's",
    ),
    "shared secret": (
        lambda key, of: jwt.encode(of.claims(), "secret" * 8, "HS256", headers={"kid": "shared"}),
        "it is not signed by one of",
    ),
    "weak key": (lambda key, of: key.sign(of.claims(), kid="weak"), "its key is none of the provider's"),
    "no key named": (lambda key, of: key.sign(of.claims(), kid=None), "it names no key"),
    "unknown key": (lambda key, of: key.sign(of.claims(), kid="new"), "its key is none of the provider's"),
    "key of its own": (
        lambda key, of: key.sign(of.claims(), kid="new", jwk=key.published(), jku="https://evil.example"),
        "its key is none of the provider's",
    ),
    "tampered groups": (
        lambda key, of: tampered(key.sign(of.claims(groups=["checkers"])), groups=["editors"]),
        "its signature does not fit",
    ),
    "tampered person": (
        lambda key, of: tampered(key.sign(of.claims()), sub="other"),
        "its signature does not fit",
    ),
    "no JSON": (lambda key, of: "eyJhbGciOiJSUzI1NiJ9.e30.x", "no signed JSON Web Token"),
    "too long": (lambda key, of: key.sign(of.claims(more="x" * LONGEST_TOKEN)), "it is longer than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_token_that_is_not_right_is_refused_and_not_logged(
    client: Client,
    atlas: KnowledgeBase,
    served_keys: KeyServer,
    key_pairs: dict[str, SigningKey],
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    make, cause = REFUSED[name]
    token = make(key_pairs["RS256"], served_keys)
    answer = client.get("/v1/facts", headers=bearing(token))
    problem = body_of(answer, 401)
    assert problem["type"] == "urn:colmlm:IdentityRefused" and cause in problem["detail"], problem
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert token.split(".")[1] not in caplog.text + answer.text
    with atlas.sessions() as session:
        (denial, *_) = list_denials(session)
    assert (denial.cause, denial.actor) == ("IdentityRefused", None)
    assert atlas.access.all() == []


def test_a_person_without_a_mapped_group_is_told_what_to_do(
    client: Client, served_keys: KeyServer, key_pairs: dict[str, SigningKey], atlas: KnowledgeBase
) -> None:
    for groups in (["others"], [], "others", None, {"editors": True}, [["editors"]], 7):
        token = key_pairs["ES256"].sign(served_keys.claims(groups=groups))
        problem = body_of(client.get("/v1/facts", headers=bearing(token)), 403)
        assert problem["type"] == "urn:colmlm:RoleUnmapped" and "COLMLM_SIGN_ON_ROLES" in problem["detail"]
    assert atlas.access.all() == []


def test_a_token_ends_when_its_group_is_unmapped(
    atlas: KnowledgeBase,
    encoder: FakeEncoder,
    connect: Connect,
    served_keys: KeyServer,
    key_pairs: dict[str, SigningKey],
) -> None:
    headers = bearing(key_pairs["PS256"].sign(served_keys.claims()))
    mapped = connect(create_app(atlas, encoder, settings=settings_of(served_keys)))
    assert mapped.get("/v1/changes", headers=headers).status_code == 200
    for roles, status in ((("checkers=auditor",), 403), (("editors=reader",), 403), (ROLES, 200)):
        app = create_app(atlas, encoder, settings=settings_of(served_keys, roles=roles))
        assert connect(app).get("/v1/changes", headers=headers).status_code == status, roles
    without = create_app(atlas, encoder)
    assert connect(without).get("/v1/changes", headers=headers).status_code == 401
    console_alone = create_app(atlas, encoder, settings=settings_of(served_keys, audience=None))
    assert connect(console_alone).get("/v1/changes", headers=headers).status_code == 401


def test_a_person_of_some_corpora_gets_nothing_of_others(
    client: Client, kb: KnowledgeBase, served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    def seen(groups: list[str]) -> tuple[list[str], int]:
        headers = bearing(key_pairs["EdDSA"].sign(served_keys.claims(groups=groups)))
        corpora = body_of(client.get("/v1/corpora", headers=headers))["items"]
        return [one["corpus"] for one in corpora], client.get("/v1/stats", headers=headers).status_code

    (document,) = kb.documents.find(corpus="atlas")
    assert seen(["atlas readers"]) == (["atlas"], 403)
    assert seen(["almanac readers"]) == ([], 403)
    assert seen(["almanac readers", "atlas readers"]) == (["atlas"], 403)
    assert seen(["almanac readers", "editors"]) == (["atlas"], 200)
    (token,) = kb.access.all()
    assert token.role == "operator" and token.corpora is None
    headers = bearing(key_pairs["EdDSA"].sign(served_keys.claims(groups=["almanac readers"])))
    path = f"/v1/documents/{document.document_id}"
    hidden = client.get(path, headers=headers)
    assert hidden.status_code == 404 and TEXT not in hidden.text


def test_edits_name_the_person_and_the_first_sign_on_is_a_change(
    client: Client, kb: KnowledgeBase, served_keys: KeyServer, key_pairs: dict[str, SigningKey], fact_id: int
) -> None:
    headers = bearing(key_pairs["RS256"].sign(served_keys.claims()))
    deleted = client.request("DELETE", f"/v1/facts/{fact_id}", headers=headers, json={"reason": "disputed"})
    assert deleted.status_code == 200, deleted.text
    (token,) = kb.access.all()
    first, change = kb.log.changes(after=kb.log.head_seq() - 2)
    assert (change.kind, change.actor, change.principal) == ("delete", "ann@example.org", token.principal)
    assert (first.kind, first.actor) == ("create-api-key", "ann@example.org")
    assert first.reason == "first sign-on of ann@example.org, operator"


def test_who_it_is_the_subject_tells_and_not_the_name(
    client: Client, kb: KnowledgeBase, served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    def own(**claims: Any) -> tuple[str, int]:
        headers = bearing(key_pairs["RS256"].sign(served_keys.claims(**claims)))
        found = body_of(client.get("/v1/tokens/own", headers=headers))
        return found["name"], found["key_id"]

    kb.access.create("taken@example.org", "admin")
    ann, ann_id = own()
    assert own(email="renamed@example.org") == (ann, ann_id)
    other, other_id = own(sub="other")  # has the address of another by now
    assert other.startswith("person ") and other_id != ann_id
    assert own(sub="unverified", email_verified=False)[0] == "unverified"
    assert own(sub="told", email_verified="true")[0] == "told"
    assert own(sub="taken", email="taken@example.org")[0].startswith("person ")
    assert own(sub="x" * 200, email=None)[0].startswith("person ")
    assert own(sub="line\nbreak", email=None)[0].startswith("person ")


def test_an_admin_ends_a_persons_access_at_once_and_gives_no_secret(
    client: Client, kb: KnowledgeBase, served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    headers = bearing(key_pairs["RS256"].sign(served_keys.claims()))
    assert client.get("/v1/facts", headers=headers).status_code == 200
    with pytest.raises(InvalidValue, match="has no secret"):
        kb.access.rotate("ann@example.org")
    kb.access.revoke("ann@example.org")
    problem = body_of(client.get("/v1/facts", headers=headers), 401)
    assert "an admin has revoked" in problem["detail"]


def test_a_secret_that_an_earlier_release_gave_a_person_opens_nothing(
    client: Client, kb: KnowledgeBase, served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    headers = bearing(key_pairs["RS256"].sign(served_keys.claims()))
    assert client.get("/v1/facts", headers=headers).status_code == 200
    with kb.engine.begin() as connection:
        digest = hashlib.sha256(b"colmlm_given").digest()
        connection.execute(text("UPDATE api_key SET key_hash = :digest"), {"digest": digest})
    assert client.get("/v1/facts", headers=bearing("colmlm_given")).status_code == 401


def test_the_rule_of_two_holds_for_people(
    two_tokens: None, kb: KnowledgeBase, encoder: FakeEncoder, connect: Connect, served_keys: KeyServer,
    key_pairs: dict[str, SigningKey], fact_id: int,
) -> None:  # fmt: skip
    client = connect(create_app(kb, encoder, settings=settings_of(served_keys, roles=("admins=admin",))))

    def settle(**claims: Any) -> int:
        token = key_pairs["RS256"].sign(served_keys.claims(groups=["admins"], **claims))
        return client.post(path, headers=bearing(token)).status_code

    token = key_pairs["RS256"].sign(served_keys.claims(groups=["admins"]))
    asked = {"fact_ids": [fact_id], "reason": "request"}
    made = client.post("/v1/erasures", headers=bearing(token), json=asked).json()
    path = f"/v1/erasures/{made['request']['erasure_request_id']}/approve"
    assert settle() == settle(email="another@example.org") == 409
    assert settle(sub="ben", email="ben@example.org") == 200


def test_the_provider_is_asked_seldom_and_a_new_key_is_found(
    served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    now = [0.0]
    provider = Provider(served_keys.issuer, clock=lambda: now[0])
    assert served_keys.asked == []
    provider.verify_claims(key_pairs["RS256"].sign(served_keys.claims()), AUDIENCE)
    key = SigningKey.new("ES256", "new")
    served_keys.keys = [key]

    def is_known() -> bool:
        try:
            provider.verify_claims(key.sign(served_keys.claims()), AUDIENCE)
        except Refused as refused:
            assert "its key is none of the provider's" in str(refused)
            return False
        return True

    assert [is_known() for _ in range(20)] == [False] * 20 and served_keys.asked.count("/jwks") == 1
    now[0] += 31
    assert is_known() and is_known() and served_keys.asked.count("/jwks") == 2
    with pytest.raises(Refused, match="its key is none"):  # the one before is not published any more
        provider.verify_claims(key_pairs["RS256"].sign(served_keys.claims()), AUDIENCE)


def test_foreign_tokens_do_not_make_the_server_ask(
    client: Client, served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    for name in ("other issuer", "no algorithm", "public key as a secret", "no JSON", "too long"):
        token = REFUSED[name][0](key_pairs["RS256"], served_keys)
        assert client.get("/v1/facts", headers=bearing(token)).status_code == 401
    assert served_keys.asked == []


def test_without_the_provider_known_keys_work_for_an_hour(
    served_keys: KeyServer, key_pairs: dict[str, SigningKey]
) -> None:
    now = [0.0]
    provider, token = (
        Provider(served_keys.issuer, clock=lambda: now[0]),
        key_pairs["RS256"].sign(served_keys.claims()),
    )
    provider.verify_claims(token, AUDIENCE)
    served_keys.status = 500
    now[0] = 3000
    provider.verify_claims(token, AUDIENCE)
    now[0] = 3601
    with pytest.raises(Refused, match="answered with status 500"):
        provider.verify_claims(token, AUDIENCE)


def test_without_the_provider_other_tokens_work(
    client: Client, served_keys: KeyServer, key_pairs: dict[str, SigningKey], new_token: Callable[[str], str]
) -> None:
    served_keys.status = 302  # is not followed
    token = key_pairs["RS256"].sign(served_keys.claims())
    answer = client.get("/v1/facts", headers=bearing(token))
    assert body_of(answer, 503)["type"] == "urn:colmlm:ProviderUnavailable" and answer.headers["retry-after"]
    assert "/elsewhere" not in served_keys.asked
    assert client.get("/v1/facts", headers=bearing(new_token("reader"))).status_code == 200
    page = client.get("/session/sign-on", follow_redirects=False)
    assert page.status_code == 503 and "cannot be asked" in page.text and "Secret of your token" in page.text


def test_a_provider_that_is_not_what_it_should_be_is_not_believed(served_keys: KeyServer) -> None:
    for changed, cause in (
        ({"issuer": "https://other.example"}, "it calls itself"),
        ({"jwks_uri": "http://keys.example.org/jwks"}, "has no https"),
        ({"token_endpoint": "file:///etc/passwd"}, "has no https"),
        ({"token_endpoint": 7}, "is not what it should be"),
        ({"more": "x" * 2_000_000}, "is larger than"),
    ):
        served_keys.changed = changed
        with pytest.raises(Refused, match=cause):
            Provider(served_keys.issuer).read_state()
    served_keys.changed, served_keys.keys = {}, []
    with pytest.raises(Refused, match="it has no key"):
        Provider(served_keys.issuer).read_state()


# The sessions of browsers.


def session_of_person(kb: KnowledgeBase, served: KeyServer, seconds: int = 600, state: str = "state") -> str:
    person = Person(
        issuer=served.issuer,
        subject="7f3c",
        name="ann@example.org",
        groups=("editors",),
        ends_at=datetime.now(UTC) + timedelta(seconds=seconds),
    )
    secret = kb.access.begin_session_of(person, Grant("operator"), state, None)
    assert secret is not None
    return secret


def test_a_session_ends_with_what_the_provider_said_and_has_the_rights_of_now(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect, served_keys: KeyServer
) -> None:
    def status(secret: str, **changed: Any) -> int:
        client = connect(create_app(atlas, encoder, settings=settings_of(served_keys, **changed)))
        client.cookies.set(COOKIE, secret)
        return client.get("/console/audit").status_code

    secret = session_of_person(atlas, served_keys)
    assert status(secret) == 200
    assert status(secret, roles=("editors=reader",)) == 403
    assert status(secret, roles=("others=admin",)) == 403
    assert status(secret, issuer="https://other.example") == 401
    assert status(session_of_person(atlas, served_keys, seconds=0, state="other")) == 401
    client = connect(create_app(atlas, encoder))
    client.cookies.set(COOKIE, secret)
    assert client.get("/console/audit").status_code == 401
    atlas.access.revoke("ann@example.org")
    assert status(secret) == 401


def test_a_person_whose_group_was_unmapped_is_told_at_the_door(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect, served_keys: KeyServer
) -> None:
    client = connect(create_app(atlas, encoder, settings=settings_of(served_keys, roles=("others=admin",))))
    client.cookies.set(COOKIE, session_of_person(atlas, served_keys))
    shown = client.get("/console/facts")
    assert shown.status_code == 403 and "no group that has a role" in shown.text
    assert "Sign in with single sign-on" in shown.text


def test_a_server_of_the_release_before_finds_no_session_of_a_person(
    kb: KnowledgeBase, served_keys: KeyServer
) -> None:
    secret = session_of_person(kb, served_keys)
    with kb.engine.connect() as connection:
        stored = connection.execute(text("SELECT secret_hash FROM browser_session")).scalar_one()
    assert secret.startswith("person-") and stored != hashlib.sha256(secret.encode()).digest()


def test_a_sign_on_leads_to_the_provider_and_back_to_pages_of_the_console_only(
    client: Client, served_keys: KeyServer
) -> None:
    shown = client.get("/console/facts?text=Lima")
    assert shown.status_code == 401 and "/session/sign-on?back=%2Fconsole%2Ffacts%3Ftext%3DLima" in shown.text
    seen = set()
    for back in ("/console/facts", "https://evil.example", "//evil.example", "/\\evil.example"):
        answer = client.get("/session/sign-on", params={"back": back}, follow_redirects=False)
        assert answer.status_code == 303
        address, _, query = answer.headers["location"].partition("?")
        asked = dict(pair.split("=") for pair in query.split("&"))
        assert address == f"{served_keys.issuer}/auth" and asked["code_challenge_method"] == "S256"
        assert asked["redirect_uri"] == "http%3A%2F%2F127.0.0.1%3A8484%2Fsession%2Freturn"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=lax" in cookie.lower() and "Path=/session" in cookie
        state, nonce, verifier, kept = cookie.partition("=")[2].partition(";")[0].split(".")
        assert (
            asked["state"] == state and asked["nonce"] == nonce and verifier not in answer.headers["location"]
        )
        digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        assert asked["code_challenge"] == digest
        kept_path = base64.urlsafe_b64decode(kept + "=" * (-len(kept) % 4)).decode()
        assert kept_path == (back if back.startswith("/console") else "/")
        seen |= {state, nonce, verifier}
    assert len(seen) == 12


def test_a_return_that_this_browser_did_not_ask_for_is_refused(
    client: Client, served_keys: KeyServer, kb: KnowledgeBase
) -> None:
    def refused(query: dict[str, str]) -> str:
        answer = client.get("/session/return", params=query)
        assert answer.status_code == 401 and COOKIE not in answer.headers.get("set-cookie", "")
        return answer.text

    assert "did not begin" in refused({"code": "x", "state": "y"})

    def begun() -> str:
        answer = client.get("/session/sign-on", follow_redirects=False)
        return str(answer.headers["set-cookie"]).partition("=")[2].partition(".")[0]

    begun()
    assert "did not begin" in refused({"code": "x", "state": "y"})
    begun()
    assert "did not begin" in refused({"code": "x"})
    assert "another issuer" in refused({"code": "x", "state": begun(), "iss": "https://other.example"})
    denied = refused({"error": "access_denied", "state": begun()})
    assert "access_denied" in denied
    shown = refused({"error": "<script>", "state": begun()})
    assert "script>" not in shown and "no code" in shown
    assert "it sent no code" in refused({"state": begun()})
    client.cookies.set("colmlm_sign_on", "a.b")
    assert "did not begin" in refused({"code": "x", "state": "a"})
    assert kb.access.all() == [] and "/token" not in served_keys.asked


def test_without_single_sign_on_its_paths_are_closed(
    atlas: KnowledgeBase, encoder: FakeEncoder, connect: Connect, served_keys: KeyServer
) -> None:
    client = connect(create_app(atlas, encoder))
    assert "Sign in with" not in client.get("/console/facts").text
    for path in ("/session/sign-on", "/session/return"):
        assert client.get(path).status_code == 401
    for_programs = connect(create_app(atlas, encoder, settings=settings_of(served_keys, client_id=None)))
    assert for_programs.get("/session/sign-on").status_code == 404
    assert "Sign in with" not in for_programs.get("/console/facts").text
