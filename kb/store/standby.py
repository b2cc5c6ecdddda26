"""Standbys: servers that follow a primary, and so may still have what was deleted there.

A standby is for failing over to, for backups and for audits; nothing is answered from one. A server that was promoted
is a primary. A primary never becomes a standby under a connection, since it has to be restarted for that.
"""

from __future__ import annotations

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from colmlm.kb.errors import StandbyAsked

_IS_STANDBY = text("SELECT pg_is_in_recovery()")


def is_standby(engine: Engine) -> bool:
    """Says whether the server of this engine follows a primary."""
    with engine.connect() as connection:
        return bool(connection.scalar(_IS_STANDBY))


def require_primary(session: Session) -> None:
    """Raises `StandbyAsked` unless what is deleted by now is deleted for this session."""
    if session.scalar(_IS_STANDBY):
        raise StandbyAsked


def is_read_only(session: Session) -> bool:
    """Says whether this transaction can write nothing: of a standby, or of a role or a database that only reads."""
    return bool(session.scalar(text("SHOW transaction_read_only")) == "on")
