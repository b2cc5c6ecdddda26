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
Rate = Annotated[int, Meta(ge=1, le=1_000_000, description="a number of requests a minute from 1 to 1000000")]
Tokens = Annotated[int, Meta(ge=0, le=10**9, description="a number of tokens")]
Rows = Annotated[int, Meta(ge=1, le=128, description="a number of prompts from 1 to 128")]
Waiting = Annotated[int, Meta(ge=0, le=256, description="a number of prompts from 0 to 256")]
Changes = Annotated[int, Meta(ge=0, le=10**12, description="a number of changes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Where a server listens, to whom it answers, and what it writes of that."""

    host: str = "127.0.0.1"
    port: Port = 8484
    allowed_hosts: tuple[HostName, ...] = ()
    cors_origins: tuple[Origin, ...] = ()
    rate_limit: Rate | None = None
    prompt_max_tokens: Tokens = 4096
    decoding_rows: Rows = 64
    decoding_queue: Waiting = 256
    decoding_wait_seconds: Seconds = 30.0
    ranking: Literal["key", "words", "reader"] | None = None
    ready_lag: Changes = 1000
    drain_seconds: Seconds = 30.0
    log_format: Literal["auto", "json", "text"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_listen: str | None = None

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
