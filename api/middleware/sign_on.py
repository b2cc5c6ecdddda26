"""Single sign-on: people whom a provider of OpenID Connect vouches for, by a token for the API or in the console.

The provider is asked for its keys when a token first needs them, within a time. A token is believed if it is signed
with one of these keys by an asymmetric algorithm, and if it is meant for this server now. Its groups are looked up in
the settings with each request, so what a group may do is never kept.

The console signs in by the authorization code flow. What belongs to one sign-on is in a cookie of the browser that
began it: the state, the nonce, the verifier (PKCE), and the page to return to. The provider ends sessions by a logout
token (OpenID Connect Back-Channel Logout 1.0).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2
import jwt
import msgspec

from colmlm.api.errors import (
    Refused,
    identity_refused,
    logout_refused,
    not_signed_in,
    provider_unavailable,
    role_unmapped,
)
from colmlm.api.settings import SignOnSettings, is_protected
from colmlm.kb.access.access import Access
from colmlm.kb.access.records import Grant, Person, ProviderLogout, TokenRecord
from colmlm.kb.network.addresses import Deadline, DeadlineTransport

SIGN_ON_PATH, RETURN_PATH, LOGOUT_PATH = "/session/sign-on", "/session/return", "/session/logout"
ALGORITHMS = ("RS256", "ES256", "PS256", "EdDSA")
LEEWAY_SECONDS = 30  # seconds by which clocks may differ
LONGEST_TOKEN = 16 * 1024  # characters

_ANSWER_SECONDS = 5.0
_MOST_READ = 1024 * 1024  # bytes of an answer
_REFRESH, _KEPT = (
    600.0,
    3600.0,
)  # seconds after which keys are asked for again, and after which they are not believed
_PAUSE, _PAUSE_OF_FAILURE = 30.0, 5.0  # seconds between two requests for keys
_LEAST_RSA_BITS = 2048
_OF_ID_TOKENS = frozenset({"nonce", "at_hash", "c_hash", "s_hash", "events"})
_REQUIRED, _REQUIRED_OF_LOGOUT = (
    ("iss", "sub", "aud", "exp", "iat"),
    ("iss", "aud", "exp", "iat", "jti", "events"),
)
_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_LONGEST_LOGOUT = 24 * 3600  # seconds for which a logout token may count, since it is kept as long

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ProviderMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the parts of the provider's metadata that are used (OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)

    def addresses(self) -> list[str]:
        named = (self.authorization_endpoint, self.token_endpoint, self.jwks_uri)
        return [*named, *filter(None, (self.userinfo_endpoint, self.end_session_endpoint))]


class _KeySet(msgspec.Struct, frozen=True):
    keys: tuple[dict[str, Any], ...]


class _TokenResponse(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str | None = None


@dataclass(frozen=True, slots=True)
class ProviderState:
    """Hold the provider's metadata as of a moment, and its keys by id and algorithm."""

    metadata: ProviderMetadata
    keys: Mapping[tuple[str, str], jwt.PyJWK]
    at: float

    def knows(self, key_id: str | None) -> bool:
        return key_id is None or any(known == key_id for known, _ in self.keys)


@dataclass(slots=True)
class Provider:
    """A provider of OpenID Connect. Threads share it: one at a time asks it, while others use what is known."""

    issuer: str
    clock: Callable[[], float] = time.monotonic
    _state: ProviderState | None = field(default=None, init=False)
    _tried: float | None = field(default=None, init=False)
    _fault: str | None = field(default=None, init=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, init=False)

    def read_state(self, key_id: str | None = None) -> ProviderState:
        """Give the provider's metadata and keys, fetched again if they are old or lack the key `key_id`.

        Raises `ProviderUnavailable`.
        """
        held = self._state
        if held is not None and held.knows(key_id) and self.clock() - held.at < _REFRESH:
            return held
        is_needed = not self._is_believed(held) or not (held and held.knows(key_id))
        if not self._asking.acquire(blocking=is_needed):
            assert held is not None, "without it the lock is waited for"
            return held
        try:
            if self._state is held and self._may_ask():
                self._refresh_state()
        finally:
            self._asking.release()
        found = self._state
        if found is None or not self._is_believed(found):
            raise provider_unavailable(self._fault or "it was not asked yet")
        return found

    def _is_believed(self, state: ProviderState | None) -> bool:
        return state is not None and self.clock() - state.at < _KEPT

    def _may_ask(self) -> bool:
        pause = _PAUSE if self._fault is None else _PAUSE_OF_FAILURE
        return self._tried is None or self.clock() - self._tried >= pause

    def _refresh_state(self) -> None:
        """Fetch metadata and keys again. On a failure, note the fault and keep the former state."""
        self._tried = self.clock()
        try:
            self._state, self._fault = self.fetch(), None
        except Refused as refused:
            self._fault = str(getattr(refused, "cause", refused))
            _log.warning("the identity provider cannot be asked: %s", self._fault)

    def fetch(self) -> ProviderState:
        """Fetch the provider's metadata and keys, and check both. Raises `ProviderUnavailable`."""
        address = f"{self.issuer.removesuffix('/')}/.well-known/openid-configuration"
        metadata = _read_json(address, ProviderMetadata)
        if metadata.issuer != self.issuer:
            raise provider_unavailable(f"it calls itself {metadata.issuer!r}, not {self.issuer!r}")
        if open_to_read := next((one for one in metadata.addresses() if not is_protected(one)), None):
            raise provider_unavailable(f"its address {open_to_read!r} has no https")
        keys = _public_keys(_read_json(metadata.jwks_uri, _KeySet).keys)
        if not keys:
            raise provider_unavailable(f"it has no key for {', '.join(ALGORITHMS)}")
        return ProviderState(metadata, keys, self.clock())

    def verify_claims(
        self, token: str, audience: str, required: Sequence[str] = _REQUIRED
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give header and claims of a token that the provider signed for this audience, and that is valid now.

        The token must have the `required` claims. Raises `IdentityRefused` and `ProviderUnavailable`.
        """
        header, key_id, algorithm = self._read_header(token)
        key = self.read_state(key_id).keys.get((key_id, algorithm))
        if key is None:
            raise identity_refused("its key is none of the provider's")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=audience,
                issuer=self.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": list(required)},
            )
        except jwt.PyJWTError as error:
            raise identity_refused(_cause_of(error)) from error
        if "sub" in claims and not _is_name(claims["sub"]):
            raise identity_refused("its subject is no name")
        return header, claims

    def _read_header(self, token: str) -> tuple[dict[str, Any], str, str]:
        """Give header, key id and algorithm of a token that claims to be the provider's, before any key is sought."""
        if len(token) > LONGEST_TOKEN:
            raise identity_refused(f"it is longer than {LONGEST_TOKEN} characters")
        try:
            header = jwt.get_unverified_header(token)
            claimed = jwt.decode(token, options={"verify_signature": False})
        except jwt.PyJWTError as error:
            raise identity_refused("it is no signed JSON Web Token") from error
        if header.get("alg") not in ALGORITHMS:
            raise identity_refused(f"it is not signed by one of {', '.join(ALGORITHMS)}")
        if not header.get("kid"):
            raise identity_refused("it names no key")
        if claimed.get("iss") != self.issuer:
            raise identity_refused("another issuer made it")
        return header, header["kid"], header["alg"]


_CAUSES: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidIssuerError, "another issuer made it"),
    (jwt.InvalidSignatureError, "its signature does not fit"),
)


def _cause_of(error: jwt.PyJWTError) -> str:
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"a claim is missing: {error.claim}"
    return next((cause for kind, cause in _CAUSES if isinstance(error, kind)), "it is malformed")


def _is_name(claim: object) -> bool:
    """Tell whether a claim can name a person, a session or a token."""
    return isinstance(claim, str) and 0 < len(claim) <= 255


# The algorithms of a key's kind, and of its curve: what is not here is never used, as are keys of shared secrets.
_OF_KINDS = {("RSA", None): ("RS256", "PS256"), ("EC", "P-256"): ("ES256",), ("OKP", "Ed25519"): ("EdDSA",)}


def _public_keys(keys: tuple[dict[str, Any], ...]) -> dict[tuple[str, str], jwt.PyJWK]:
    """Give the keys that verify signatures, by id and algorithm. Keys for other purposes are left out."""
    found: dict[tuple[str, str], jwt.PyJWK] = {}
    for key in keys:
        key_id, kind = key.get("kid"), str(key.get("kty"))
        if not isinstance(key_id, str) or key.get("use", "sig") != "sig":
            continue
        for algorithm in _OF_KINDS.get((kind, None if kind == "RSA" else key.get("crv")), ()):
            if key.get("alg", algorithm) != algorithm:
                continue
            try:
                read = jwt.PyJWK(key, algorithm)
            except jwt.PyJWTError:
                continue
            if kind != "RSA" or read.key.key_size >= _LEAST_RSA_BITS:
                found[key_id, algorithm] = read
    return found


def _require_access_token(header: Mapping[str, Any], claims: Mapping[str, Any]) -> None:
    """Raise `IdentityRefused` where a token is no access token, as far as providers tell them apart.

    A header `typ` of `at+jwt` marks one (RFC 9068), or a claim `typ` of some providers. Otherwise a token is taken for
    one unless it has claims that only ID tokens have.
    """
    kind = str(header.get("typ", "JWT")).lower().removeprefix("application/")
    said = str(claims.get("typ", "")).lower()
    if kind == "at+jwt" or (kind == "jwt" and said == "bearer"):
        return
    if kind != "jwt" or said or claims.keys() & _OF_ID_TOKENS:
        raise identity_refused("it is no access token")


@dataclass(frozen=True, slots=True)
class SignOnAttempt:
    """A sign-on that a browser has begun, from its cookie: state, nonce and verifier, and the page to return to."""

    state: str
    nonce: str
    verifier: str
    back: str

    @classmethod
    def new(cls, back: str) -> SignOnAttempt:
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), back)

    def to_cookie(self) -> str:
        back = base64.urlsafe_b64encode(self.back.encode()).decode().rstrip("=")
        return ".".join((self.state, self.nonce, self.verifier, back))

    @classmethod
    def from_cookie(cls, text: str) -> SignOnAttempt | None:
        parts = text.split(".")
        if len(parts) != 4 or not all(parts[:3]):
            return None
        try:
            back = base64.urlsafe_b64decode(parts[3] + "=" * (-len(parts[3]) % 4)).decode()
        except ValueError:
            return None
        return cls(parts[0], parts[1], parts[2], back)


@dataclass(frozen=True, slots=True)
class SignOn:
    """Give the people of one provider tokens of this base, with what the settings grant to their groups."""

    settings: SignOnSettings
    provider: Provider
    access: Access

    def of_bearer(self, token: str) -> TokenRecord:
        """Give the token that the base has for the person to whom the provider gave this access token.

        Raises `IdentityRefused`, `RoleUnmapped` and `ProviderUnavailable`.
        """
        if self.settings.audience is None:
            raise not_signed_in()
        header, claims = self.provider.verify_claims(token, self.settings.audience)
        _require_access_token(header, claims)
        person = self._person_of(claims)
        found = self.access.of_person(person, self._grant_of(person.name, person.groups))
        return found if found is not None else _refuse_revoked()

    def of_session(self, token: TokenRecord) -> TokenRecord:
        """Give the token of a person's session with what is granted to the person's groups now.

        Raises `RoleUnmapped`, and `NotSignedIn` where another provider vouched for the person.
        """
        if token.issuer != self.settings.issuer or token.groups is None:
            raise not_signed_in()
        grant = self._grant_of(token.name, token.groups)
        return replace(token, role=grant.role, corpora=grant.corpora)

    def begin(self, server: str, back: str) -> tuple[str, SignOnAttempt]:
        """Give the provider's address that a browser has to visit, and the attempt to put into its cookie.

        `server` is the address of this server, such as `https://kb.example.org`.
        """
        endpoint, attempt = (
            self.provider.read_state().metadata.authorization_endpoint,
            SignOnAttempt.new(back),
        )
        challenge = base64.urlsafe_b64encode(hashlib.sha256(attempt.verifier.encode()).digest())
        asked = {
            "client_id": self.settings.client_id,
            "response_type": "code",
            "scope": self.settings.scope,
            "redirect_uri": server + RETURN_PATH,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": challenge.decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        return _with_query(endpoint, asked), attempt

    def finish(self, server: str, attempt: SignOnAttempt, said: Mapping[str, str], before: str | None) -> str:
        """Check the query `said` of the provider's redirect, begin a session in place of `before`, and give its secret.

        Raises `IdentityRefused`, `RoleUnmapped`, `SignOnRepeated`, `SignOnEnded` and `ProviderUnavailable`.
        """
        if not hmac.compare_digest(attempt.state.encode(), said.get("state", "").encode()):
            raise identity_refused("this browser did not begin this sign-on")
        if said.get("iss", self.settings.issuer) != self.settings.issuer:
            raise identity_refused("another issuer sent it")
        if "error" in said:
            raise identity_refused(f"it did not sign you in ({_code_of(said['error'])})")
        if not said.get("code"):
            raise identity_refused("it sent no code")
        traded = self._trade(said["code"], server + RETURN_PATH, attempt.verifier)
        claims = self._claims_of(traded, attempt.nonce)
        person = self._person_of(claims)
        grant = self._grant_of(person.name, person.groups)
        session = self.access.begin_session_of(person, grant, attempt.state, before)
        return session if session is not None else _refuse_revoked()

    def end_sessions(self, token: str) -> None:
        """End the browser sessions that the provider's logout token names, once. Raises `LogoutRefused`."""
        try:
            logout = self._logout_of(token)
        except Refused as refused:
            raise logout_refused(str(getattr(refused, "cause", refused))) from refused
        ended = self.access.end_sessions_of(logout)
        if ended is None:
            raise logout_refused("it was used already")
        _log.info("the identity provider ended sessions", extra={"sessions": ended})

    def _logout_of(self, token: str) -> ProviderLogout:
        """Check a logout token, and give the logout that it orders. Raises `IdentityRefused`."""
        client = self.settings.client_id or ""
        header, claims = self.provider.verify_claims(token, client, _REQUIRED_OF_LOGOUT)
        events, subject, session = claims["events"], claims.get("sub"), claims.get("sid")
        if str(header.get("typ", "JWT")).lower().removeprefix("application/") not in ("logout+jwt", "jwt"):
            raise identity_refused("it is of another type")
        _require_client(claims, client)
        if not isinstance(events, dict) or not isinstance(events.get(_LOGOUT_EVENT), dict):
            raise identity_refused("its events name no logout")
        if "nonce" in claims:
            raise identity_refused("it has a nonce")
        if subject is None and session is None:
            raise identity_refused("it names neither a person nor a session")
        if not _is_name(claims["jti"]) or not (session is None or _is_name(session)):
            raise identity_refused("its jti or sid is no name")
        ends, made = int(claims["exp"]), int(claims["iat"])
        if ends - made > _LONGEST_LOGOUT:
            raise identity_refused("it counts for longer than a day")
        return ProviderLogout(
            issuer=claims["iss"],
            logout_id=claims["jti"],
            subject=subject,
            session_id=session,
            ends_at=datetime.fromtimestamp(ends, UTC),
        )

    def sign_out_address(self, server: str) -> str | None:
        """Give the provider's address that ends its own session; None where it has none or does not answer."""
        try:
            endpoint = self.provider.read_state().metadata.end_session_endpoint
        except Refused:
            return None
        if endpoint is None:
            return None
        back = {"client_id": self.settings.client_id, "post_logout_redirect_uri": f"{server}/"}
        return _with_query(endpoint, back)

    def _trade(self, code: str, returned_to: str, verifier: str) -> _TokenResponse:
        """Trade an authorization code for the provider's tokens."""
        metadata, settings = self.provider.read_state().metadata, self.settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": returned_to,
            "code_verifier": verifier,
            "client_id": settings.client_id,
        }
        headers = {}
        if settings.client_secret is not None:
            if "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
                pair = f"{quote_plus(settings.client_id or '')}:{quote_plus(settings.client_secret)}"
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = settings.client_secret
        return _read_json(metadata.token_endpoint, _TokenResponse, form=form, headers=headers)

    def _claims_of(self, traded: _TokenResponse, nonce: str) -> dict[str, Any]:
        """Check the ID token and give its claims, with those of the user info if it lacks the claim of groups."""
        client = self.settings.client_id or ""
        header, claims = self.provider.verify_claims(traded.id_token, client)
        if str(header.get("typ", "JWT")).lower() != "jwt":
            raise identity_refused("it is no ID token")
        _require_client(claims, client)
        said = claims.get("nonce")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
            raise identity_refused("it is of another sign-on")
        endpoint = self.provider.read_state().metadata.userinfo_endpoint
        if _find_claim(claims, self.settings.groups_claim) is not None or not (
            endpoint and traded.access_token
        ):
            return claims
        bearing = {"authorization": f"Bearer {traded.access_token}"}
        more = _read_json(endpoint, dict[str, Any], headers=bearing)
        if more.get("sub") != claims["sub"]:
            raise identity_refused("its user info is of another person")
        return {**more, **claims}

    def _person_of(self, claims: Mapping[str, Any]) -> Person:
        email, subject = claims.get("email"), claims["sub"]
        is_verified = isinstance(email, str) and claims.get("email_verified") is True
        found = _find_claim(claims, self.settings.groups_claim)
        groups = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        return Person(
            issuer=claims["iss"],
            subject=subject,
            name=str(email) if is_verified and email else subject,
            groups=tuple(group for group in groups if isinstance(group, str)),
            ends_at=datetime.fromtimestamp(claims["exp"], UTC),
            session_id=claims["sid"] if _is_name(claims.get("sid")) else None,
        )

    def _grant_of(self, name: str, groups: tuple[str, ...]) -> Grant:
        if (grant := self.settings.grant_of(groups)) is None:
            raise role_unmapped(name, self.settings.groups_claim)
        return grant


def build_sign_on(settings: SignOnSettings, access: Access) -> SignOn | None:
    """Make the sign-on of these settings; None where they name no issuer. The provider is not asked yet."""
    if settings.issuer is None:
        return None
    return SignOn(settings, Provider(settings.issuer), access)


def is_web_token(secret: str) -> bool:
    """Tell whether a bearer's secret has the form of a JSON Web Token, which no secret of this program has."""
    return secret.count(".") == 2


def _refuse_revoked() -> NoReturn:
    raise identity_refused("an admin has revoked the token of this person")


def _require_client(claims: Mapping[str, Any], client: str) -> None:
    """Raise `IdentityRefused` where an ID token or a logout token, whose audience this client is in, is for another."""
    if claims.get("azp", client) != client:
        raise identity_refused("it is for another client")
    if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and "azp" not in claims:
        raise identity_refused("it is for several audiences and names no client")


def _find_claim(claims: Mapping[str, Any], name: str) -> object:
    """Give the value of the claim `name`, or of a nested one such as "realm.groups"; None where it is not there."""
    if name in claims:
        return claims[name]
    found: object = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _with_query(address: str, query: Mapping[str, str | None]) -> str:
    said = urlencode({name: value for name, value in query.items() if value is not None})
    return f"{address}{'&' if urlsplit(address).query else '?'}{said}"


# Requests to the provider: within a time, to protected addresses alone, and following no redirect.


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""


def _code_of(error: str) -> str:
    """Give the provider's error code if it has the form of one, since anybody may write anything into an address."""
    return error if error.isascii() and error.replace("_", "").isalnum() and len(error) <= 40 else "no code"


@cache
def _authorities() -> ssl.SSLContext:
    """Give the TLS context with the trusted certificate authorities; SSL_CERT_FILE may name others."""
    return httpx2.create_ssl_context()


def _read_json(
    address: str,
    kind: type[T],
    form: Mapping[str, str | None] | None = None,
    headers: Mapping[str, str] | None = None,
) -> T:
    """Send a request to one address, and decode the answer as JSON of this type. No error contains a secret.

    Raises `ProviderUnavailable`, and `IdentityRefused` where the provider refuses a form.
    """
    host, deadline = urlsplit(address).netloc, Deadline()
    deadline.begin(_ANSWER_SECONDS)
    transport = DeadlineTransport(deadline, _authorities() if address.startswith("https:") else False)
    told = {"accept": "application/json", "user-agent": "colmlm", **(headers or {})}
    try:
        with (
            httpx2.Client(trust_env=False, transport=transport, timeout=_ANSWER_SECONDS) as client,
            client.stream("GET" if form is None else "POST", address, data=form, headers=told) as response,
        ):
            body = b""
            for piece in response.iter_bytes():
                body += piece
                if len(body) > _MOST_READ:
                    raise provider_unavailable(f"the answer of {host} is larger than {_MOST_READ} bytes")
    except httpx2.TimeoutException as error:
        raise provider_unavailable(f"{host} gave no answer within {_ANSWER_SECONDS:g} seconds") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise provider_unavailable(f"{host}: {str(error) or type(error).__name__}") from error
    try:
        if form is not None and response.status_code in (400, 401):
            refusal = _code_of(msgspec.json.decode(body, type=_Refusal).error)
            raise identity_refused(f"it gave nothing for the code ({refusal})")
        if response.status_code != 200:
            raise provider_unavailable(f"{host} answered with status {response.status_code}")
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:  # its text may repeat what was sent
        raise provider_unavailable(f"the answer of {host} is not what it should be") from error
