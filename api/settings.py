"""How the API is served: read from `COLMLM_*` once, by who composes the program."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from msgspec import Meta

from colmlm.kb.access.records import ROLES, SCOPED_ROLES, Grant
from colmlm.kb.errors import SettingsError
from colmlm.kb.store.settings import Port, Seconds, read_settings

HostName = Annotated[str, Meta(pattern=r"^[^/*\s]+$", description="names of hosts, with commas between them")]
Origin = Annotated[
    str,
    Meta(pattern=r"^https?://[a-z0-9.-]+(:[0-9]{1,5})?$", description="origins like https://app.example.org"),
]  # as browsers write them, since they are compared as they are
Address = Annotated[
    str, Meta(pattern=r"^https?://\S+$", description="an address like https://docs.example.org/colmlm")
]
Rate = Annotated[int, Meta(ge=1, le=1_000_000, description="a number of requests a minute from 1 to 1000000")]
Tokens = Annotated[int, Meta(ge=0, le=10**9, description="a number of tokens")]
Rows = Annotated[int, Meta(ge=1, le=128, description="a number of prompts from 1 to 128")]
Waiting = Annotated[int, Meta(ge=0, le=256, description="a number of prompts from 0 to 256")]
ClaimName = Annotated[str, Meta(pattern=r"^\S{1,200}$", description="the name of a claim")]
Changes = Annotated[int, Meta(ge=0, le=10**12, description="a number of changes")]


LOOPBACK_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})
_MAPPED = re.compile(rf"(?P<group>.+)=(?P<role>{'|'.join(ROLES)})(?::(?P<corpora>.+))?")


def is_protected(address: str) -> bool:
    """Tell whether what is sent to this address can be read by nobody on the way: https, or http on loopback."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        return False
    if not host or parts.username is not None or parts.fragment:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOnSettings:
    """The provider of OpenID Connect whose people sign in, and what its groups may do. Off without an issuer."""

    issuer: str | None = None
    """The identity provider, as its tokens name it in `iss`: an address with https, or with http on loopback."""
    name: str = "single sign-on"
    """Name the provider for the console: *Sign in with NAME*."""
    client_id: str | None = None
    """The client at the provider that is this console. Unset, the console has no single sign-on."""
    client_secret: str | None = field(default=None, repr=False)
    """The secret of that client, if it has one."""
    console_url: Address | None = None
    """The console's address in browsers, such as `https://kb.example.org`. Unset, it is what a browser asked for."""
    scope: str = "openid email"
    """The scopes that the console asks for, with spaces between them."""
    audience: str | None = None
    """The audience (`aud`) of access tokens for the API. Unset, the API takes no token of the provider."""
    groups_claim: ClaimName = "groups"
    """The claim that has a person's groups. A dot leads into an object: `realm_access.roles`."""
    roles: tuple[str, ...] = ()
    """Map groups to roles, with commas between them: `GROUP=ROLE`, or `GROUP=ROLE:CORPUS+CORPUS`. The first that a
    person is in gives the role.
    """

    def __post_init__(self) -> None:
        if self.issuer is None:
            return
        if not is_protected(self.issuer) or "?" in self.issuer:
            cause = "has a query: leave it out" if "?" in self.issuer else "is no https, nor http on loopback"
            raise SettingsError("COLMLM_SIGN_ON_ISSUER", f"{self.issuer!r} {cause}")
        if self.client_id is None and self.audience is None:
            raise SettingsError(
                "COLMLM_SIGN_ON_CLIENT_ID",
                "neither it nor COLMLM_SIGN_ON_AUDIENCE is set, so nobody can sign in. Set one of them",
            )
        if "openid" not in self.scope.split():
            raise SettingsError("COLMLM_SIGN_ON_SCOPE", f"{self.scope!r} lacks the scope openid. Add it")
        if not self.grants():
            raise SettingsError("COLMLM_SIGN_ON_ROLES", "no group has a role. Set it to GROUP=ROLE")

    def grants(self) -> list[tuple[str, Grant]]:
        """Give each mapped group with its role and corpora. Raise `SettingsError` for a malformed mapping."""
        return [_read_grant(mapped) for mapped in self.roles]

    def grant_of(self, groups: Collection[str]) -> Grant | None:
        """Give the role and corpora of someone in these groups, or None if no group is mapped.

        The first mapped group gives the role. If it is limited to some corpora, other groups of that role add theirs.
        """
        found = [grant for group, grant in self.grants() if group in groups]
        same = [grant.corpora for grant in found if grant.role == found[0].role]
        if not found or found[0].corpora is None or None in same:
            return Grant(found[0].role) if found else None
        return Grant(found[0].role, tuple(sorted({corpus for corpora in same for corpus in corpora or ()})))


def _read_grant(mapped: str) -> tuple[str, Grant]:
    found = _MAPPED.fullmatch(mapped)
    if found is None:
        known = ", ".join(ROLES)
        raise SettingsError(
            "COLMLM_SIGN_ON_ROLES",
            f"{mapped!r} is not GROUP=ROLE or GROUP=ROLE:CORPUS. Write it so, with a role of {known}",
        )
    corpora = tuple(corpus for corpus in (found["corpora"] or "").split("+") if corpus) or None
    if corpora is not None and found["role"] not in SCOPED_ROLES:
        limited = ", ".join(SCOPED_ROLES)
        raise SettingsError(
            "COLMLM_SIGN_ON_ROLES",
            f"{mapped!r} names corpora, to which only {limited} can be kept. Leave them out, or name such a role",
        )
    return found["group"].strip(), Grant(found["role"], corpora)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Choose where a server listens, to whom it answers, and what it writes of that."""

    host: str = "127.0.0.1"
    """The address that the server listens on."""
    port: Port = 8484
    """The port that the server listens on."""
    allowed_hosts: tuple[HostName, ...] = ()
    """More names that requests may be for, with commas between them."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins whose pages may call the API, with commas between them."""
    docs_url: Address | None = None
    """The address at which you serve these pages (`make docs` builds them). The console then links to them."""
    rate_limit: Rate | None = None
    """Requests a minute of each token that has no limit of its own, in each process."""
    prompt_max_tokens: Tokens = 4096
    """The longest prompt in tokens, if the model reads so many."""
    decoding_rows: Rows = 64
    """How many prompts a server decodes together."""
    decoding_queue: Waiting = 256
    """How many more prompts may wait for that."""
    decoding_wait_seconds: Seconds = 30.0
    """How long each prompt waits at most."""
    ranking: Literal["key", "words", "reader"] | None = None
    """How the decoder's lookups rank facts if the caller names no ranking. Unset: `reader` for questions,
    `key` for other texts.
    """
    ready_lag: Changes = 1000
    """The lag of the index, in changes, above which `/readyz` answers 503."""
    drain_seconds: Seconds = 30.0
    """How long a server that is told to stop lets running requests finish."""
    log_format: Literal["auto", "json", "text"] = "auto"
    """`auto` writes text to a terminal and JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is logged."""
    metrics_listen: str | None = None
    """`HOST:PORT` of a second address that gives metrics without a token."""
    sign_on: SignOnSettings = field(default_factory=SignOnSettings)

    def __post_init__(self) -> None:
        self.metrics_address()  # a wrong one should not wait for the server's start

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        """Read the settings from the variables in `env`. Raise `SettingsError` for a wrong one."""
        return read_settings(cls, env)

    def metrics_address(self) -> tuple[str, int] | None:
        """Give host and port of `metrics_listen`, HOST:PORT or for IPv6 [HOST]:PORT; None if it is not set."""
        if self.metrics_listen is None:
            return None
        host, _, port = self.metrics_listen.rpartition(":")
        if not host.strip("[]") or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise SettingsError("COLMLM_METRICS_LISTEN", f"{self.metrics_listen!r} is not HOST:PORT")
        return host.strip("[]"), int(port)
