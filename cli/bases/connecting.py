"""Connects to a server with a token, both from the options of a command or from the settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import typer

from colmlm.api.client.connection import Connection, Patience, TokenRefused
from colmlm.api.wire import is_loopback
from colmlm.cli.output import note

if TYPE_CHECKING:
    from colmlm.cli.settings import UserSettings

PATIENCE = Patience(answer_seconds=600.0, attempts=6)  # a plan or an erasure may take minutes


def connected(server: str, token_file: Path | None, settings: UserSettings) -> Connection:
    """Make a connection to `server`, without a request yet."""
    scheme, host = _parts(server)
    if scheme == "http" and not is_loopback(host):
        note(f"Your token's secret goes to {host} unencrypted; use https beyond a network that you trust.")
    return Connection(server, _secret(token_file or settings.key_file, settings.token), PATIENCE)


@contextmanager
def token_file_named(token_file: Path | None) -> Iterator[None]:
    """Name the file of the token where the server refuses what was read from it."""
    try:
        yield
    except TokenRefused as error:
        raise TokenRefused(error.detail, f" in {token_file}" if token_file else "") from error


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
    secret, where = named or "", "COLMLM_TOKEN, or the file that COLMLM_TOKEN_FILE names,"
    if token_file is not None:
        secret, where = _read(token_file), str(token_file)
    if not secret or not secret.isascii() or not secret.isprintable():
        problem = "is empty" if not secret else "does not hold the secret of a token"
        raise typer.BadParameter(
            f"{where} {problem}; put the secret there on one line.", param_hint="--token-file"
        )
    return secret


def _read(token_file: Path) -> str:
    try:
        # What is no text is no secret either: the mark that stands for such a byte is not ASCII.
        return token_file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise typer.BadParameter(
            f"{token_file} cannot be read ({error.strerror}).", param_hint="--token-file"
        ) from error
