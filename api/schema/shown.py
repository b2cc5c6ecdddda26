"""Limits what a token is shown: without the right `audit`, deleted, corrected and replaced texts are withheld."""

from __future__ import annotations

from colmlm.api.errors import RightMissing
from colmlm.api.ports import Ports
from colmlm.api.routes.edits import WithToken
from colmlm.kb.access.tokens import Right
from colmlm.kb.evidence.shown import Shown


def require_past(request: WithToken) -> None:
    """Raises `RightMissing` unless the token may read deleted, corrected and replaced texts."""
    if not request.user.may(Right.audit):
        raise RightMissing(request.user.role, Right.audit)


def shown_to(request: WithToken, ports: Ports) -> Shown:
    """Gives the view of the knowledge base that this token may read."""
    return ports.kb.shown(past=request.user.may(Right.audit))
