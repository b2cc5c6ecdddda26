"""A knowledge base that a language model reads and people can edit. Programs begin with `connect`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, overload

if TYPE_CHECKING:
    from pathlib import Path

    from colmlm.cli.bases.local_base import LocalBase

__all__ = ["connect"]


@overload
def connect(*, home: Path | None = None, checkpoint: Path | None = None) -> LocalBase: ...


@overload
def connect(server: str, *, token: str, checkpoint_id: str | None = None) -> LocalBase: ...


def connect(
    server: str | None = None,
    *,
    token: str | None = None,
    checkpoint_id: str | None = None,
    home: Path | None = None,
    checkpoint: Path | None = None,
) -> LocalBase:
    """Open the knowledge base of this machine, or the one that is served at an address; both have the same verbs.

    On this machine the settings are those of the environment (`COLMLM_*`), where `home` and `checkpoint` do not
    override them, and the database is started where it does not run. A server is asked at once: it has to answer, to
    know the token, and where `checkpoint_id` is named its keys have to be of that. Close it, or use it in a `with`.

    Raises `kb.errors.KBError`: `DatabaseUnavailable` or `MigrationNeeded` here, `ServerUnreachable`, `TokenRefused` or
    `KeysetMismatch` there; `NotHeeded` for a server without a token.
    """
    if server is not None:
        from colmlm.api.client.client import Client
        from colmlm.kb.errors import NotHeeded

        if not token:
            raise NotHeeded("token", "a server wants one; an admin makes it with colmlm tokens create.")
        return cast("LocalBase", Client.open(server, token, checkpoint_id=checkpoint_id))
    from colmlm.cli.bases.local_base import LocalBase
    from colmlm.cli.composition.runtime import Runtime
    from colmlm.kb.progress import Telling

    base = LocalBase(Runtime.from_environment(home=home, checkpoint=checkpoint, telling=Telling()))
    base.runtime.open()
    return base
