"""`--server` and `--key-file`: which knowledge base elsewhere a command works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from cli.output import note

if TYPE_CHECKING:
    from cli.remote.knowledge_base import RemoteKnowledgeBase

LOOPBACK = ("127.0.0.1", "::1", "localhost")

Server = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", help="Look up at this server, and store the output there."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--key-file", exists=True, dir_okay=False, help="Holds the API key for --server."),
]


def open_remote(server: str, key_file: Path | None, checkpoint_id: str) -> RemoteKnowledgeBase:
    """The knowledge base at `server`, whose keys are of this checkpoint."""
    from cli.remote.knowledge_base import RemoteKnowledgeBase

    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise typer.BadParameter(
            "it must begin with http:// or https:// and name a host.", param_hint="--server"
        )
    if key_file is None:
        raise typer.BadParameter(
            "a server wants a key; make one with --role decoder.", param_hint="--key-file"
        )
    if not (key := key_file.read_text(encoding="utf-8").strip()).isascii() or not key:
        raise typer.BadParameter("the file holds no key.", param_hint="--key-file")
    if address.scheme == "http" and address.hostname not in LOOPBACK:
        note(f"The key goes to {address.hostname} unencrypted; use https beyond a network that you trust.")
    return RemoteKnowledgeBase.open(server, key, checkpoint_id=checkpoint_id)
