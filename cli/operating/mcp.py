"""`colmlm mcp`: gives assistants a knowledge base as tools, over stdio or HTTP."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.errors import FAULT, INTERRUPTED, explain
from colmlm.cli.options import examples, without_json
from colmlm.cli.output import note
from colmlm.cli.start.root import version
from colmlm.kb.access.records import ROLES, Right, TokenRecord

if TYPE_CHECKING:
    from colmlm.api.client.client import Client
    from colmlm.api.mcp.reading import AskingNear, Caller
    from colmlm.api.middleware.sign_on import SignOn

T = TypeVar("T")

EXAMPLES = examples(
    "colmlm mcp",
    "colmlm mcp --server https://kb.example.org --token-file reader.token",
    "colmlm mcp --read-only",
    "colmlm mcp --http --port 8485",
)
HOST, PORT = "127.0.0.1", 8485

_log = logging.getLogger(__name__)


@anywhere
@without_json
def mcp(
    base: Base,
    http: Annotated[
        bool,
        typer.Option("--http", help="Serve streamable HTTP on this machine, in place of stdin and stdout."),
    ] = False,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Of --http.")] = PORT,
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no tool that edits.")] = False,
) -> None:
    """Serve the Model Context Protocol: lookups, answers and edits as tools of assistants.

    An assistant starts this itself and talks to its stdin and stdout; what it may do is what you, or the token, may.
    Over HTTP each request needs a token: of --server the one of --token-file, else one of this base that may edit or
    audit, also an access token of the identity provider.
    """
    from colmlm.api.mcp.server import server_for

    _log_to_stderr()
    callers = _Callers(base, _sign_on_of(base) if http else None)
    own = callers.make_caller(base.tokens.own())
    if not http:
        _end_by_signals(base)
        server_for(lambda _: own, version=version(), read_only=read_only).run("stdio")
        return
    from colmlm.api.mcp.server import PATH, caller_of, serve
    from colmlm.cli.operating.serving import listen

    listener = listen(HOST, port)
    note(f"Serving MCP on http://{HOST}:{port}{PATH}; end with Ctrl-C.")
    serve(server_for(caller_of, version=version(), read_only=read_only), listener, callers.admit_caller)


class _Callers:
    """Makes the callers of a base. Those of this machine's base take turns, since they share its model."""

    def __init__(self, base: Base, sign_on: SignOn | None) -> None:
        self._base, self._sign_on = base, sign_on
        self._secret = secrets.token_bytes(32)
        self._turn = threading.Lock() if base.server is None else nullcontext()

    def make_caller(self, token: TokenRecord | None) -> Caller:
        """Make the caller for a token (None: this machine's user, who has every right). Raises `RightMissing`."""
        from colmlm.api.errors import right_missing
        from colmlm.api.mcp.reading import ALL_RIGHTS, Caller

        if token is not None and not token.may(Right.read):
            raise right_missing(token.role, Right.read)
        return Caller(
            base=cast("Client", self._base),  # both have the same verbs
            asking=cast("AskingNear", self._ask_nearby),
            secret=self._secret,
            rights=ALL_RIGHTS if token is None else ROLES[token.role],
            actor=self._base.actor(None),
            role="" if token is None else token.role,
            principal=None if token is None else token.principal,
            explain=_in_words,
            turn=self._turn,
        )

    def admit_caller(self, secret: str) -> Caller | None:
        """Give the caller with this token over HTTP; None if no token has this secret.

        With single sign-on it may be an access token, as for the API. Unlike a server, this process withholds no
        deleted texts, so a token of its own base needs the right `audit`. Raises `RightMissing`.
        """
        from colmlm.api.errors import right_missing
        from colmlm.api.middleware.sign_on import is_web_token

        if self._sign_on is not None and is_web_token(secret):
            token: TokenRecord | None = self._sign_on.of_bearer(secret)
        else:
            token = self._base.tokens.of_secret(secret)
        if token is not None and self._base.server is None and not token.may(Right.audit):
            raise right_missing(token.role, Right.audit)
        return None if token is None else self.make_caller(token)

    def _ask_nearby(self, ask: Callable[[Base], T]) -> T:
        return self._base.ask_server_first(ask, checkpoint=None, as_of=None, verbose=False)


def _sign_on_of(base: Base) -> SignOn | None:
    """Make the single sign-on of this machine's base, if the settings name a provider. A server has its own."""
    from colmlm.api.middleware.sign_on import build_sign_on

    return None if base.server is not None else build_sign_on(base.runtime.serving.sign_on, base.tokens)


def _end_by_signals(base: Base) -> None:
    """Let a signal end this process at once, although a thread reads stdin, which nothing can interrupt."""

    def end() -> None:
        base.close()
        os._exit(INTERRUPTED)

    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, lambda *_: threading.Thread(target=end).start())


def _in_words(error: Exception) -> str:
    failure = explain(error)
    if failure.exit_code == FAULT:
        _log.error("a tool failed", exc_info=error)
    return failure.line


def _log_to_stderr() -> None:
    """Log warnings to stderr, which clients keep: stdout belongs to the protocol."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
