"""Finds the server that runs on this home, so that commands of its user need not load the model once more.

A server that has a model and listens on loopback alone writes a file in the home: its address, a token of its own
(`api.middleware.auth`), and a digest of the settings that its answers depend on. A command asks it only if the
command's settings have the same digest, so that the command's own process would give the same answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING, TextIO

import msgspec

from colmlm.api.wire import (
    MAX_QUERIES,
    DocumentToEncode,
    EncodedTexts,
    SpanToEncode,
    TextsToEncode,
    is_loopback,
)
from colmlm.cli.composition.runtime import Runtime, released_checkpoint
from colmlm.cli.output import note
from colmlm.kb.errors import KBError, KeysetMismatch, NoActiveKeyset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from colmlm.api.client.api import Api
    from colmlm.api.client.connection import Connection
    from colmlm.api.middleware.auth import LocalToken
    from colmlm.cli.bases.remote import NearBase
    from colmlm.kb.corpus.format import AnnotatedDocument
    from colmlm.kb.keys.records import CheckpointInfo
    from colmlm.kb.keys.rekey import Encoder

SERVER_FILE = "server.json"
DECODING_SECONDS = 600.0
ENCODING_SECONDS = 60.0


class RunningServer(msgspec.Struct, frozen=True):
    """The contents of a running server's file. `answers_by` is the SHA-256 of the settings that affect its answers."""

    url: str
    token: str
    answers_by: str

    def __repr__(self) -> str:
        return f"RunningServer({self.url!r})"


@contextmanager
def told_of(runtime: Runtime, listener: socket.socket, url: str) -> Iterator[LocalToken | None]:
    """For the block, write a loopback server's URL and new token to its home. Give the token; None if not written."""
    if not is_loopback(listener.getsockname()[0]):  # the token would be worth something on other machines
        yield None
        return
    from colmlm.api.middleware.auth import LocalToken

    token, file = LocalToken(), runtime.settings.home / SERVER_FILE
    told = RunningServer(url, token.secret, _settings_digest(runtime, None))
    with ExitStack() as telling:
        try:
            telling.enter_context(held_secret(file, msgspec.json.encode(told).decode()))
        except OSError as error:
            note(f"Commands on this machine can't ask this server: {file}: {error.strerror or error}.")
            yield None
            return
        yield token


def near_base(runtime: Runtime, checkpoint: Path | None) -> NearBase | None:
    """Give the base of this home's server if it has the same settings and this checkpoint; None without one."""
    if (connection := _near_connection(runtime, checkpoint, DECODING_SECONDS)) is None:
        return None
    from colmlm.cli.bases.remote import NearBase

    return NearBase(connection, runtime)


@contextmanager
def near_encoder(runtime: Runtime) -> Iterator[Encoder]:
    """Give an encoder that asks this home's server if that makes the same keys, or else the encoder of this process."""
    active = _active_checkpoint(runtime)
    connection = None if active is None else _near_connection(runtime, None, ENCODING_SECONDS)
    if active is None or connection is None:
        yield runtime.encoder
        return
    from colmlm.api.client.api import Api

    with connection:
        yield NearEncoder(active, Api(connection), lambda: runtime.encoder)


def _near_connection(runtime: Runtime, checkpoint: Path | None, seconds: float) -> Connection | None:
    if (said := read_held_secret(runtime.settings.home / SERVER_FILE)) is None:
        return None
    try:
        told = msgspec.json.decode(said, type=RunningServer)
    except msgspec.DecodeError:  # written by another version of the program
        return None
    if told.answers_by != _settings_digest(runtime, checkpoint):
        return None
    from colmlm.api.client.connection import Connection, Patience

    # this process can do it too
    patience = Patience(connect_seconds=1.0, answer_seconds=seconds, attempts=1)
    return Connection(told.url, told.token, patience)


def _active_checkpoint(runtime: Runtime) -> CheckpointInfo | None:
    """Give the active keyset's checkpoint; None if no keyset is active or the settings name another checkpoint."""
    try:
        active = runtime.kb.keysets.checkpoint(runtime.kb.keysets.active().keyset_id)
    except NoActiveKeyset:
        return None
    named = runtime.user.checkpoint
    is_meant = named is None or (active.path is not None and Path(active.path).resolve() == named.resolve())
    return active if is_meant else None


@dataclass(frozen=True, slots=True)
class NearEncoder:
    """An encoder that asks this home's server, and encodes with this process's own model if the server cannot.

    A `kb.keys.rekey.Encoder`. The server only encodes: this process itself stores its edits and their keys.
    """

    checkpoint: CheckpointInfo
    api: Api
    own: Callable[[], Encoder]

    def encode_questions(self, questions: Sequence[str]) -> NDArray[np.float32]:
        import numpy as np

        pieces = [questions[at : at + MAX_QUERIES] for at in range(0, len(questions), MAX_QUERIES)]
        made = [self._server_keys(TextsToEncode(questions=list(piece))) for piece in pieces]
        if None in made:
            return self._own().encode_questions(questions)
        rows = [row for piece in made if piece is not None for row in piece.questions]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.checkpoint.dim)

    def encode_documents(self, documents: Sequence[AnnotatedDocument]) -> list[NDArray[np.float32]]:
        import numpy as np

        found: list[NDArray[np.float32]] = []
        for document in documents:
            facts = [SpanToEncode(start=span.start, end=span.end) for span in document.facts]
            sent = DocumentToEncode(text=document.text, title=document.title or None, facts=facts)
            if (made := self._server_keys(TextsToEncode(documents=[sent]))) is None:
                return self._own().encode_documents(documents)
            found.append(np.array(made.documents[0], dtype=np.float32))
        return found

    def encode_contexts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._own().encode_contexts(texts)

    def _server_keys(self, texts: TextsToEncode) -> EncodedTexts | None:
        """Give the keys that the server makes of these texts; None if it fails or has another checkpoint."""
        try:
            made = self.api.ask("/encodings", EncodedTexts, texts)
        except (
            KBError
        ):  # as the server raised it, or the connection: this process tries it, and says what it meets
            return None
        return made if made.checkpoint_id == self.checkpoint.checkpoint_id else None

    def _own(self) -> Encoder:
        own = self.own()
        if own.checkpoint.checkpoint_id != self.checkpoint.checkpoint_id:
            raise KeysetMismatch(own.checkpoint.checkpoint_id, self.checkpoint.checkpoint_id)
        return own


def _settings_digest(runtime: Runtime, checkpoint: Path | None) -> str:
    found = checkpoint or runtime.user.checkpoint or released_checkpoint()
    settings, most = runtime.settings, runtime.serving.prompt_max_tokens
    depends_on = (
        settings.database_url, str(found.resolve()), settings.index_wait_seconds, most, settings.keep_answers,
    )  # fmt: skip
    return hashlib.sha256(repr(depends_on).encode()).hexdigest()


# Secrets in files of this user: private from the first byte, and complete as soon as they have their name.


def write_secret(file: Path, secret: str) -> None:
    """Write a secret to a file that only this user may read, in place of an earlier file."""
    _write_secret(file, secret).close()


@contextmanager
def held_secret(file: Path, secret: str) -> Iterator[None]:
    """Write a secret that is valid while the block runs, and remove it at the end.

    The file is locked while the block runs. The system releases the lock of a killed process, so a file without a lock
    was left by one.
    """
    held = _write_secret(file, secret)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            if os.path.samestat(file.stat(), os.fstat(held.fileno())):
                file.unlink()
        held.close()


def read_held_secret(file: Path) -> str | None:
    """Read a secret that this user alone may read, and whose writer still locks it; None without such a file."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # it is not there, or it is a link, or another user's
        return None
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as opened:
        about = os.fstat(descriptor)
        is_ours = about.st_uid == os.geteuid() and not about.st_mode & 0o077
        return opened.read() if is_ours and _is_held(opened) else None


def _is_held(opened: TextIO) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _write_secret(file: Path, secret: str) -> TextIO:
    """Write a secret to a temporary file, lock that, and rename it to `file`; give it open."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, scratch = mkstemp(dir=file.parent, prefix=f".{file.name}.")
    out = os.fdopen(descriptor, "w", encoding="utf-8")
    try:
        out.write(secret + "\n")
        out.flush()
        fcntl.flock(out, fcntl.LOCK_EX)
        Path(scratch).replace(file)
    except BaseException:  # also where it is interrupted: a secret must not stay in a file that nobody knows
        out.close()
        Path(scratch).unlink()
        raise
    return out
