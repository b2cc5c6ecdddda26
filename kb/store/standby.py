"""Standbys: servers that follow a primary, and so may still have what was deleted there.

A standby is for failing over to, for backups and for audits; nothing is answered from one. A server that was promoted
is a primary. A primary never becomes a standby under a connection, since it has to be restarted for that.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlalchemy.sql import func

from colmlm.kb.errors import StandbyAsked


def is_standby(session: Session) -> bool:
    """Says whether the server of this session follows a primary."""
    return bool(session.scalar(select(func.pg_is_in_recovery())))


def require_primary(session: Session) -> None:
    """Raises `StandbyAsked` unless what is deleted by now is deleted for this session."""
    if is_standby(session):
        raise StandbyAsked
