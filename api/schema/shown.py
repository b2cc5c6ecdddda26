"""What a key is shown of the knowledge base: all of it, or without the right to audit only what stands."""

from __future__ import annotations

from colmlm.api.errors import RightMissing
from colmlm.api.ports import Ports
from colmlm.api.routes.edits import WithKey
from colmlm.kb.access.api_keys import Right
from colmlm.kb.evidence.shown import Shown


def require_past(request: WithKey) -> None:
    """Raise `RightMissing` unless the key may ask for what was deleted, corrected or replaced."""
    if not request.user.may(Right.audit):
        raise RightMissing(request.user.role, Right.audit)


def shown_to(request: WithKey, ports: Ports) -> Shown:
    """The knowledge base as this key may read it."""
    return ports.kb.shown(past=request.user.may(Right.audit))
