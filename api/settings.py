"""How the API is served: read from `COLMLM_*` once, by who composes the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from msgspec import Meta

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
Changes = Annotated[int, Meta(ge=0, le=10**12, description="a number of changes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where a server listens, to whom it answers, and what it writes of that."""

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

    def __post_init__(self) -> None:
        self.metrics_address()  # a wrong one should not wait for the server's start

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        """The settings `env` asks for. Raise `SettingsError`."""
        return read_settings(cls, env)

    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port of HOST:PORT, or of [HOST]:PORT for IPv6; None: the metrics are on no address of their own."""
        if self.metrics_listen is None:
            return None
        host, _, port = self.metrics_listen.rpartition(":")
        if not host.strip("[]") or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise SettingsError("COLMLM_METRICS_LISTEN", f"{self.metrics_listen!r} is not HOST:PORT")
        return host.strip("[]"), int(port)
