"""`--server`: lets a command work in the same way with the knowledge base of this machine or of a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, cast

import typer

from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import program_options
from colmlm.kb.errors import NotHeeded

P = ParamSpec("P")

_HINTS = {"found": "PATH", "format_": "--format"}  # parameters whose option has another name


def anywhere(command: Callable[Concatenate[Base, P], None]) -> Callable[..., None]:
    """Wrap a command so that its first argument is the base that --server and --token-file name."""
    told = inspect.signature(command, eval_str=True)
    _, *own = told.parameters.values()

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        given = program_options()
        with base_of(given.server, given.token_file) as base, _options_named():
            command(base, *args, **kwargs)

    run.__signature__ = told.replace(parameters=own)  # type: ignore[attr-defined]  # what Typer reads
    run.takes_server = True  # type: ignore[attr-defined]  # what Command reads
    return run


@contextmanager
def base_of(server: str | None, token_file: Path | None) -> Iterator[Base]:
    """Give the base at `server` (None: that of the settings), without contacting it yet.

    An empty `server` means this process alone. Without any address, a server that runs on this home may answer too.
    """
    runtime = Runtime.from_environment()
    if address := runtime.user.server if server is None else server:
        from colmlm.cli.bases.remote import RemoteBase, make_connection, token_file_named

        file = token_file or runtime.user.key_file
        with make_connection(address, token_file, runtime.user) as connection, token_file_named(file):
            yield cast(Base, RemoteBase(connection, runtime))
        return
    if token_file is not None:
        raise typer.BadParameter("name the server that it is for.", param_hint="--server")
    runtime.user = replace(runtime.user, server=None)
    with runtime:
        yield Base(runtime, alone=server is not None)


@contextmanager
def _options_named() -> Iterator[None]:
    """Convert `NotHeeded` (a parameter has no effect on a server) to `BadParameter` with the name of the option."""
    try:
        yield
    except NotHeeded as error:
        hint = _HINTS.get(error.parameter, f"--{error.parameter.replace('_', '-')}")
        raise typer.BadParameter(error.why, param_hint=hint) from error
