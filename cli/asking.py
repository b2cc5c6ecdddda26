"""Requires a reason, or somebody who can be asked, before a command does what is not easily undone."""

from __future__ import annotations

import sys

import typer

from colmlm.cli.options import wants_json


def is_attended() -> bool:
    """Tell whether stdin is a terminal, so that somebody can be asked."""
    return sys.stdin.isatty()


def require_somebody(answered: bool, what: str) -> None:
    """Raise `BadParameter` where --yes was not given and nobody can be asked; `what` completes "pass it to"."""
    if not answered and (wants_json() or not is_attended()):
        raise typer.BadParameter(f"there is nobody to ask; pass it to {what}.", param_hint="--yes")


def require_reason(reason: str | None, *, unless: bool = False) -> None:
    """Raise `BadParameter` where no reason was given, `unless` the command changes nothing."""
    if reason is None and not unless:
        raise typer.BadParameter("say why.", param_hint="--reason")
