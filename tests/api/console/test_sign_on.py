"""Single sign-on at a real provider: people sign in and out of the console, and programs bear its access tokens."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from playwright.sync_api import Browser, BrowserContext, Page, expect

from colmlm.api.app import create_app
from colmlm.api.console.pages import SIGN_ON_COOKIE
from colmlm.api.middleware.auth import COOKIE
from colmlm.api.settings import ServerSettings, SignOnSettings
from colmlm.kb.service import KnowledgeBase
from tests.api.conftest import Connect, body_of
from tests.api.console.conftest import PATIENCE
from tests.api.serving import served
from tests.fakes import FakeEncoder
from tests.places import ROOT

ENVIRONMENTS = os.environ.get("FOREIGN_CLIENTS")
SCRIPT = ROOT / "tests/acceptance/clients/oidc_provider.mjs"
CLIENT_SECRET = "s3cret-of-the-console"
SOON = 12  # seconds of a session that a test waits for
PEOPLE = {
    "edith": {"groups": ["editors", "others"]},
    "rita": {"groups": ["readers"]},
    "otto": {"groups": ["atlas readers"]},
    "nora": {"groups": ["others"]},
    "brief": {"groups": ["readers"], "seconds": SOON},
}
ROLES = ("editors=operator", "readers=reader", "atlas readers=reader:atlas")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.registry,
    pytest.mark.slow(reason="installs and runs an identity provider"),
    pytest.mark.skipif(
        ENVIRONMENTS is None, reason="FOREIGN_CLIENTS names no folder to install clients into"
    ),
]


@dataclass(frozen=True)
class RunningProvider:
    """A provider, and the console that it knows by its address."""

    issuer: str
    address: str
    listener: socket.socket

    def settings(self, **changed: Any) -> ServerSettings:
        said = {
            "issuer": self.issuer,
            "name": "Example",
            "client_id": "console",
            "client_secret": CLIENT_SECRET,
            "audience": "colmlm-api",
            "scope": "openid email groups",
            "roles": ROLES,
        }
        return ServerSettings(sign_on=SignOnSettings(**(said | changed)))


@pytest.fixture(scope="module")
def folder() -> Path:
    """A folder with the provider's package."""
    if shutil.which("npm") is None:
        pytest.skip("no npm on the PATH")
    folder = Path(str(ENVIRONMENTS)).absolute() / "oidc-provider"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules/oidc-provider").exists():
        install = ["npm", "install", "--no-fund", "--no-audit", "oidc-provider"]
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode and any(
            fault in done.stderr for fault in ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED")
        ):
            pytest.skip("npm reaches no registry")
        assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.fixture
def provider(folder: Path) -> Iterator[RunningProvider]:
    # A script of this language finds packages beside itself only.
    script = shutil.copy(SCRIPT, folder / "provider.mjs")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        told = json.dumps({"console": address, "people": PEOPLE, "secret": CLIENT_SECRET})
        with subprocess.Popen(
            ["node", script, told],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as running:
            try:
                assert running.stdout is not None
                yield RunningProvider(json.loads(running.stdout.readline())["issuer"], address, listener)
            finally:
                running.kill()


@pytest.fixture
def console(provider: RunningProvider, almanac: KnowledgeBase, encoder: FakeEncoder) -> Iterator[str]:
    with served(create_app(almanac, encoder, settings=provider.settings()), provider.listener) as address:
        yield address


@pytest.fixture
def new_context(browser: Browser, console: str) -> Iterator[Callable[[], BrowserContext]]:
    """A function that opens browser contexts, which reach this machine alone."""
    opened: list[BrowserContext] = []

    def open_context() -> BrowserContext:
        made = browser.new_context(base_url=console)
        made.set_default_timeout(PATIENCE)
        made.route(
            lambda url: urlsplit(url).hostname not in ("127.0.0.1", "localhost"), lambda route: route.abort()
        )
        opened.append(made)
        return made

    yield open_context
    for made in opened:
        made.close()


def sign_on(page: Page, person: str, path: str = "/console/facts?text=Lima") -> None:
    page.goto(path)
    page.get_by_role("link", name="Sign in with Example").click()
    log_in(page, person)


def log_in(page: Page, person: str) -> None:
    """Sign in at the provider, which believes any password, and agree that it tells the client."""
    page.get_by_placeholder("Enter any login").fill(person)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


def test_a_person_signs_on_sees_the_pages_of_the_role_and_signs_off(
    new_context: Callable[[], BrowserContext], console: str, provider: RunningProvider, kb: KnowledgeBase
) -> None:
    context = new_context()
    page = context.new_page()
    sign_on(page, "edith")
    expect(page).to_have_url(f"{console}/console/facts?text=Lima")
    expect(page.get_by_role("cell", name="Lima", exact=True)).to_have_count(2)
    expect(page.locator(".who")).to_contain_text("edith@example.org")
    expect(page.get_by_role("navigation", name="Pages")).to_contain_text("Audit")
    expect(page.get_by_role("navigation", name="Pages")).not_to_contain_text("Tokens")
    (session,) = [cookie for cookie in context.cookies() if cookie["name"] == COOKIE]  # type: ignore[typeddict-item]
    assert session["httpOnly"] and session["sameSite"] == "Strict"  # type: ignore[typeddict-item]
    assert SIGN_ON_COOKIE not in {cookie["name"] for cookie in context.cookies(f"{console}/session")}  # type: ignore[typeddict-item]
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Yes, sign me out").click()
    expect(page.get_by_role("link", name="Sign in with Example")).to_be_visible()
    expect(page).to_have_url(f"{console}/")
    signed_out = httpx.get(f"{console}/console/facts", cookies={COOKIE: session["value"]})  # type: ignore[typeddict-item]
    assert signed_out.status_code == 401
    page.get_by_role("link", name="Sign in with Example").click()
    expect(
        page.get_by_placeholder("Enter any login")
    ).to_be_visible()  # the provider's session has ended, too
    (token,) = kb.access.all()
    assert (token.name, token.role, token.issuer) == ("edith@example.org", "operator", provider.issuer)


def test_a_reader_and_a_reader_of_one_corpus_see_what_is_theirs(
    new_context: Callable[[], BrowserContext],
) -> None:
    page = new_context().new_page()
    sign_on(page, "rita", "/console/corpora")
    expect(page.get_by_role("link", name="almanac")).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages")).not_to_contain_text("Audit")
    page.goto("/console/audit")
    expect(page.get_by_role("alert")).to_contain_text("Use a token")
    scoped = new_context().new_page()
    sign_on(scoped, "otto", "/console/corpora")
    expect(scoped.get_by_role("link", name="atlas")).to_be_visible()
    expect(scoped.locator("main")).not_to_contain_text("almanac")
    expect(scoped.get_by_role("navigation", name="Pages").get_by_role("link")).to_have_text(
        ["Ask", "Facts", "Corpora", "Review"]
    )
    scoped.goto("/console/facts?text=Lima")
    expect(scoped.get_by_role("cell", name="Lima", exact=True)).to_have_count(1)


def test_a_person_without_a_role_is_told_what_to_do(
    new_context: Callable[[], BrowserContext], kb: KnowledgeBase
) -> None:
    page = new_context().new_page()
    sign_on(page, "nora")
    expect(page.get_by_role("alert")).to_contain_text("names no group that has a role here")
    assert COOKIE not in {cookie["name"] for cookie in page.context.cookies()}  # type: ignore[typeddict-item]
    assert kb.access.all() == []


def test_a_session_is_over_when_the_id_token_is(new_context: Callable[[], BrowserContext]) -> None:
    page = new_context().new_page()
    sign_on(page, "brief")
    expect(page.get_by_role("cell", name="Lima", exact=True)).to_have_count(2)
    for _ in range(SOON):
        page.wait_for_timeout(1500)
        page.reload()
        if page.get_by_role("link", name="Sign in with Example").is_visible():
            break
    expect(page.get_by_label("Secret of your token")).to_be_visible()
    page.get_by_role("link", name="Sign in with Example").click()  # the provider still knows who it is
    expect(page.get_by_role("cell", name="Lima", exact=True)).to_have_count(2)


def test_who_logs_out_at_the_provider_has_no_session_here(
    new_context: Callable[[], BrowserContext],
    console: str,
    provider: RunningProvider,
    kb: KnowledgeBase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    page, elsewhere, others = (new_context().new_page() for _ in range(3))
    for one, person in ((page, "edith"), (elsewhere, "edith"), (others, "rita")):
        sign_on(one, person)
        expect(one.get_by_role("cell", name="Lima", exact=True)).to_have_count(2)
    (session,) = [one for one in page.context.cookies() if one["name"] == COOKIE]  # type: ignore[typeddict-item]
    page.goto(f"{provider.issuer}/session/end")
    page.get_by_role("button", name="Yes, sign me out").click()
    expect(page.get_by_role("heading", name="Sign-out Success")).to_be_visible()
    page.goto(f"{console}/console/facts?text=Lima")
    expect(page.get_by_role("link", name="Sign in with Example")).to_be_visible()
    ended = httpx.get(f"{console}/console/facts", cookies={COOKIE: session["value"]})  # type: ignore[typeddict-item]
    assert ended.status_code == 401
    for one in (elsewhere, others):  # sessions of their own at the provider
        one.reload()
        expect(one.get_by_role("cell", name="Lima", exact=True)).to_have_count(2)
    (said,) = [one for one in caplog.records if one.name == "colmlm.api.middleware.sign_on"]
    assert said.sessions == 1  # type: ignore[attr-defined]
    assert [one for one in kb.log.denials() if one.cause == "LogoutRefused"] == []
    page.get_by_role("link", name="Sign in with Example").click()
    log_in(page, "edith")
    expect(page.get_by_role("cell", name="Lima", exact=True)).to_have_count(2)


def test_what_one_sign_on_used_begins_no_other_session(
    new_context: Callable[[], BrowserContext],
    console: str,
    kb: KnowledgeBase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    context = new_context()
    before = kb.access.begin_session(_token(kb), None)
    context.add_cookies([{"name": COOKIE, "value": before, "url": console}])
    page = context.new_page()
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.goto("/session/sign-on?back=/console/facts")
    (attempt,) = [
        cookie for cookie in context.cookies(f"{console}/session") if cookie["name"] == SIGN_ON_COOKIE
    ]  # type: ignore[typeddict-item]
    kept = {SIGN_ON_COOKIE: attempt["value"]}  # type: ignore[typeddict-item]
    log_in(page, "edith")
    expect(page).to_have_url(f"{console}/console/facts")
    (asked,) = [url for url in seen if "/auth?" in url]
    (returned,) = [url for url in seen if "/session/return?" in url]

    def refused(url: str, cookies: dict[str, str], status: int = 401) -> str:
        answer = httpx.get(url, cookies=cookies)
        assert answer.status_code == status and COOKIE not in answer.cookies, answer.text
        return answer.text

    # The session that the browser had was ended, and none that was planted lives on.
    assert httpx.get(f"{console}/console/facts", cookies={COOKIE: before}).status_code == 401
    # A browser that did not begin it, as one that a link of somebody else leads here.
    assert "did not begin" in refused(returned, {})
    # Another code for the same state, which the provider gives to who asks it twice.
    other = _return_of(page, asked)
    assert parse_qs(urlsplit(other).query)["code"] != parse_qs(urlsplit(returned).query)["code"]
    assert "has begun a session already" in refused(other, kept, 409)
    # The same code again, in the browser that began it.
    assert "invalid_grant" in refused(returned, kept)
    # A code that somebody else got for a sign-on of theirs.
    theirs = new_context().new_page()
    theirs.goto("/session/sign-on")
    codes = _codes_of(theirs)
    log_in(theirs, "rita")
    expect(theirs).to_have_url(f"{console}/console/ask")
    state = parse_qs(urlsplit(returned).query)["state"][0]
    (code,) = codes
    assert "invalid_grant" in refused(
        f"{console}/session/return?{urlencode({'code': code, 'state': state})}", kept
    )
    said = " ".join(
        one.getMessage() for one in caplog.records if one.name != "httpx"
    )  # the client of this test
    for secret in (CLIENT_SECRET, code, *attempt["value"].split(".")[:3]):  # type: ignore[typeddict-item]
        assert secret not in said


def _token(kb: KnowledgeBase) -> Any:
    secret, _ = kb.access.create("planted", "reader")
    token = kb.access.of_secret(secret)
    assert token is not None
    return token


def _codes_of(page: Page) -> list[str]:
    """Give a list that gets the codes with which the provider sends this page back."""
    codes: list[str] = []

    def hear(url: str) -> None:
        if "/session/return?" in url:
            codes.extend(parse_qs(urlsplit(url).query)["code"])

    page.on("request", lambda request: hear(request.url))
    return codes


def _return_of(page: Page, asked: str) -> str:
    """Give the address that the provider sends this browser to, which asks it this again."""
    cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies(asked)}  # type: ignore[typeddict-item]
    return httpx.get(asked, cookies=cookies).headers["location"]


def access_token(page: Page, provider: RunningProvider, person: str) -> dict[str, str]:
    """Give the tokens that a program of this person gets, by the authorization code flow with PKCE."""
    verifier, back = "v" * 64, "http://127.0.0.1/program"
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    asked = {
        "client_id": "program",
        "response_type": "code",
        "scope": "openid read",
        "redirect_uri": back,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "nonce": "n",
    }
    found: list[str] = []
    page.context.route(
        f"{back}?*", lambda route: (found.append(route.request.url), route.fulfill(body="<p>Done</p>"))
    )
    page.goto(f"{provider.issuer}/auth?{urlencode(asked)}")
    log_in(page, person)
    expect(page.get_by_text("Done")).to_be_visible()
    form = {
        "grant_type": "authorization_code",
        "code": parse_qs(urlsplit(found[0]).query)["code"][0],
        "redirect_uri": back,
        "client_id": "program",
        "code_verifier": verifier,
    }
    traded: dict[str, str] = httpx.post(f"{provider.issuer}/token", data=form).raise_for_status().json()
    return traded


def test_a_program_bears_an_access_token_and_nothing_else(
    new_context: Callable[[], BrowserContext],
    provider: RunningProvider,
    console: str,
    almanac: KnowledgeBase,
    encoder: FakeEncoder,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def get(path: str, token: str) -> httpx.Response:
        return httpx.get(console + path, headers={"Authorization": f"Bearer {token}"})

    got = access_token(new_context().new_page(), provider, "otto")
    token, claims = got["access_token"], jwt.decode(got["access_token"], options={"verify_signature": False})
    header = jwt.get_unverified_header(token)
    assert header["typ"] == "at+jwt" and claims["groups"] == ["atlas readers"]
    own = body_of(get("/v1/tokens/own", token))
    assert (own["name"], own["role"], own["corpora"]) == ("otto", "reader", ["atlas"])
    corpora = body_of(get("/v1/corpora", token))["items"]
    assert [one["corpus"] for one in corpora] == ["atlas"] and get("/v1/stats", token).status_code == 403
    asked = httpx.post(f"{console}/v1/facts", headers={"Authorization": f"Bearer {token}"}, json={})
    assert asked.status_code == 403
    other_key = rsa.generate_private_key(65537, 2048)
    head, _, signature = token.split(".")
    raised = (
        base64.urlsafe_b64encode(json.dumps(claims | {"groups": ["editors"]}).encode()).decode().rstrip("=")
    )
    for wrong, cause in (
        (got["id_token"], "it is for another audience"),
        (jwt.encode(claims, other_key, "RS256", headers=header), "its signature does not fit"),
        (f"{head}.{raised}.{signature}", "its signature does not fit"),
        (jwt.encode(claims, None, "none", headers={**header, "alg": "none"}), "it is not signed by one of"),
    ):
        problem = body_of(get("/v1/facts", wrong), 401)
        assert problem["type"] == "urn:colmlm:IdentityRefused" and cause in problem["detail"]
    unmapped = create_app(almanac, encoder, settings=provider.settings(roles=("editors=operator",)))
    answer = connect(unmapped).get("/v1/facts", headers={"Authorization": f"Bearer {token}"})
    assert body_of(answer, 403)["type"] == "urn:colmlm:RoleUnmapped"
    assert token not in caplog.text and got["id_token"] not in caplog.text
    # For the console the same provider's ID token of another client is no sign-on, nor is the token of the API.
    assert get("/v1/facts", got["id_token"]).status_code == 401
