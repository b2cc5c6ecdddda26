"""The server that runs on this home, which commands of the same user ask in place of loading the model once more.

A server that has a model and listens on this machine alone tells of itself in the home: its address, a token of its own
(`api.door.local_token`), and what its answers depend on. A command asks it only where these are the command's own
settings, so that the answer is the one it would have found itself.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from colmlm.api.wire.loopback import is_loopback
from colmlm.cli.composition.runtime import Runtime, released_checkpoint
from colmlm.cli.composition.secret_file import held_secret, read_held_secret
from colmlm.cli.output import note

if TYPE_CHECKING:
    from colmlm.api.door.local_token import LocalToken
    from colmlm.cli.bases.remote import NearBase

SERVER_FILE = "server.json"
DECODING_SECONDS = 600.0


class RunningServer(msgspec.Struct, frozen=True):
    """What a server tells of itself. `answers_by` is a digest of the settings that its answers depend on."""

    url: str
    token: str
    answers_by: str

    def __repr__(self) -> str:
        return f"RunningServer({self.url!r})"


@contextmanager
def told_of(runtime: Runtime, listener: socket.socket, url: str) -> Iterator[LocalToken | None]:
    """Tells of a server while the block runs, and gives the token that it has to admit; None where nobody is told."""
    if not is_loopback(listener.getsockname()[0]):  # the token would be worth something on other machines
        yield None
        return
    from colmlm.api.door.local_token import LocalToken

    token, file = LocalToken(), runtime.settings.home / SERVER_FILE
    told = RunningServer(url, token.secret, _answers_by(runtime, None))
    with ExitStack() as telling:
        try:
            telling.enter_context(held_secret(file, msgspec.json.encode(told).decode()))
        except OSError as error:
            note(f"Commands on this machine can't ask this server: {file}: {error.strerror or error}.")
            yield None
            return
        yield token


def near_base(runtime: Runtime, checkpoint: Path | None) -> NearBase | None:
    """Gives the base of the server that runs on this home and answers as this process would, with this checkpoint."""
    if (said := read_held_secret(runtime.settings.home / SERVER_FILE)) is None:
        return None
    try:
        told = msgspec.json.decode(said, type=RunningServer)
    except msgspec.DecodeError:  # of another release
        return None
    if told.answers_by != _answers_by(runtime, checkpoint):
        return None
    from colmlm.api.client.connection import Connection, Patience
    from colmlm.cli.bases.remote import NearBase

    patience = Patience(
        connect_seconds=1.0, answer_seconds=DECODING_SECONDS, attempts=1
    )  # this process can do it too
    return NearBase(Connection(told.url, told.token, patience), runtime)


def _answers_by(runtime: Runtime, checkpoint: Path | None) -> str:
    found = checkpoint or runtime.user.checkpoint or released_checkpoint()
    settings, most = runtime.settings, runtime.serving.prompt_max_tokens
    depends_on = (
        settings.database_url, str(found.resolve()), settings.index_wait_seconds, most, settings.keep_answers,
    )  # fmt: skip
    return hashlib.sha256(repr(depends_on).encode()).hexdigest()
