"""`RemoteBase`: a knowledge base behind its API for commands, which can also decode with a model of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import typer

from colmlm.api.client.api import refuse
from colmlm.api.client.client import Client
from colmlm.api.client.connection import Connection, Patience, TokenRefused
from colmlm.api.wire import is_loopback
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.output import note

if TYPE_CHECKING:
    from colmlm.cli.settings import UserSettings
    from colmlm.kb.evidence.generation import StoringDecoder
    from colmlm.kb.evidence.records import NewOutput, OutputTrace
    from colmlm.kb.facts.records import Source

T = TypeVar("T")


class RemoteBase(Client):
    """A base with the verbs of `LocalBase`, by requests to a server. The runtime decodes, and opens no database."""

    def __init__(self, connection: Connection, runtime: Runtime) -> None:
        super().__init__(connection, runtime.telling)
        self._runtime = runtime

    @property
    def server(self) -> str:
        return self.connection.url

    def actor(self, named: str | None) -> str:
        return named or ""

    def only_here(self, **given: object) -> None:
        refuse(**given)

    def use_checkpoint(self, path: Path | None) -> None:
        self.only_here(checkpoint=path)

    def use_ray(self, address: str | None, workers: int | None) -> None:
        self.only_here(ray=address, ray_workers=workers)

    def ask_server_first(
        self, ask: Callable[[Any], T], *, checkpoint: Path | None, as_of: int | None, verbose: bool
    ) -> T:
        found = ask(self)
        if verbose:
            self._runtime.telling.note(f"Answered by the server at {self.server}.")
        return found

    @contextmanager
    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> Iterator[StoringDecoder]:
        if there:
            refuse(checkpoint=checkpoint, as_of=as_of)
            yield self.decoder
            return
        from colmlm.cli.composition.generator import StoringGenerator
        from colmlm.kb.lookup.options import KEY

        runtime = Runtime.from_environment(checkpoint=checkpoint)
        loaded, outputs = runtime.checkpoint, OutputsElsewhere(self)
        self.lookups.require(loaded.checkpoint_id)
        if as_of is None:
            yield StoringGenerator(loaded, outputs, self.lookups, ranking=runtime.serving.ranking)
        else:
            yield StoringGenerator(loaded, outputs, self.lookups.as_of(as_of), as_of, ranking=KEY)


class NearBase(RemoteBase):
    """The base behind a server that runs on this home with the checkpoint that a command asks for."""

    def use_checkpoint(self, path: Path | None) -> None:
        """Do nothing, since the server has loaded this checkpoint."""

    @contextmanager
    def generator(
        self, checkpoint: Path | None, as_of: int | None, *, there: bool
    ) -> Iterator[StoringDecoder]:
        yield self.decoder


@dataclass(frozen=True, slots=True)
class OutputsElsewhere:
    """Stores outputs in the knowledge base of a server; a `cli.composition.generator.OutputStore`."""

    client: Client

    def store(self, generation: NewOutput) -> OutputTrace:
        return self.client.outputs.record_from_elsewhere(generation)

    def source(self, fact_id: int) -> Source | None:
        """Give None, since the server gives the source only once the output is stored."""
        return None

    def head_seq(self) -> int:
        return self.client.lookups.space().head_seq


PATIENCE = Patience(answer_seconds=600.0, attempts=6)  # a plan or an erasure may take minutes


def make_connection(server: str, token_file: Path | None, settings: UserSettings) -> Connection:
    """Make a connection to `server`, without a request yet."""
    scheme, host = _scheme_and_host(server)
    if scheme == "http" and not is_loopback(host):
        note(f"Your token's secret goes to {host} unencrypted; use https beyond a network that you trust.")
    if token_file is None and settings.key_file is not None:
        return Connection(server, _secret(settings.key_file, None, "COLMLM_KEY_FILE"), PATIENCE)
    return Connection(server, _secret(token_file, settings.token), PATIENCE)


@contextmanager
def token_file_named(token_file: Path | None) -> Iterator[None]:
    """Name the token's file in the error if the server refuses the token within the block."""
    try:
        yield
    except TokenRefused as error:
        raise TokenRefused(error.detail, f" in {token_file}" if token_file else "") from error


def _scheme_and_host(server: str) -> tuple[str, str]:
    try:
        address = urlsplit(server)
        scheme, host = address.scheme, address.hostname or ""
    except ValueError:
        scheme = host = ""
    if scheme not in ("http", "https") or not host:
        raise typer.BadParameter(
            f"{server!r} is not an address; write http:// or https:// and the host, as in http://127.0.0.1:8484.",
            param_hint="--server",
        )
    return scheme, host


def _secret(token_file: Path | None, named: str | None, hint: str = "--token-file") -> str:
    """Read a token's secret from `token_file`, which the option `hint` named, else take that of the environment."""
    if token_file is None and named is None:
        raise typer.BadParameter(
            "a server wants a token, and none is given. Name the file of its secret. An admin makes a token with "
            "`colmlm tokens create`.",
            param_hint=hint,
        )
    secret, where = named or "", "COLMLM_TOKEN, or the file that COLMLM_TOKEN_FILE names,"
    if token_file is not None:
        secret, where = _read_secret(token_file, hint), str(token_file)
    if not secret or not secret.isascii() or not secret.isprintable():
        problem = "is empty" if not secret else "does not hold the secret of a token"
        raise typer.BadParameter(f"{where} {problem}; put the secret there on one line.", param_hint=hint)
    return secret


def _read_secret(token_file: Path, hint: str) -> str:
    try:
        # What is no text is no secret either: the mark that stands for such a byte is not ASCII.
        return token_file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise typer.BadParameter(
            f"{token_file} cannot be read ({error.strerror}); name a file that you may read, with --token-file.",
            param_hint=hint,
        ) from error
