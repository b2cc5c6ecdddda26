"""Connects to a server with a token, both from the options of a command or from the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from colmlm.api.client.connection import Connection, Patience
from colmlm.api.wire.loopback import is_loopback
from colmlm.cli.output import note

if TYPE_CHECKING:
    from colmlm.cli.settings import UserSettings

PATIENCE = Patience(answer_seconds=600.0, attempts=6)  # a plan or an erasure may take minutes


def connected(server: str, token_file: Path | None, settings: UserSettings) -> Connection:
    """Makes a connection to `server`, without a request yet."""
    scheme, host = _parts(server)
    if scheme == "http" and not is_loopback(host):
        note(f"Your token's secret goes to {host} unencrypted; use https beyond a network that you trust.")
    return Connection(server, _secret(token_file or settings.key_file, settings.token), PATIENCE)


def _parts(server: str) -> tuple[str, str]:
    try:
        address = urlsplit(server)
        scheme, host = address.scheme, address.hostname or ""
    except ValueError:
        scheme = host = ""
    if scheme not in ("http", "https") or not host:
        raise typer.BadParameter(
            "it must begin with http:// or https:// and name a host.", param_hint="--server"
        )
    return scheme, host


def _secret(token_file: Path | None, named: str | None) -> str:
    if token_file is None and named is None:
        raise typer.BadParameter(
            "a server wants a token; an admin makes one with colmlm tokens create.", param_hint="--token-file"
        )
    secret = named or "" if token_file is None else token_file.read_text(encoding="utf-8").strip()
    if not secret or not secret.isascii() or not secret.isprintable():
        where = "COLMLM_TOKEN" if token_file is None else "the file"
        raise typer.BadParameter(f"{where} holds no secret of a token.", param_hint="--token-file")
    return secret
