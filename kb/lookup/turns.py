"""Turns: of several processes one at a time builds, or writes elsewhere, what is kept of a keyset's index."""

from __future__ import annotations

from psycopg.errors import LockNotAvailable
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from colmlm.kb.errors import LockHeld

_WITHOUT_TIMEOUT = text(
    "SET LOCAL idle_in_transaction_session_timeout = 0"
)  # training and filling may take longer
_KEY = "hashtextextended('index of keyset ' || :keyset_id, 0)"
_TRY = text(f"SELECT pg_try_advisory_xact_lock({_KEY})")
_WAIT = text(f"SELECT pg_advisory_xact_lock({_KEY})")

_TRY_TO_ASK = text("SELECT pg_try_advisory_xact_lock(hashtextextended('asking for a shared snapshot', 0))")


def is_turn_to_ask(session: Session) -> bool:
    """Say whether it is this transaction's turn to ask for a shared snapshot, which then lasts to its end."""
    return bool(session.scalar(_TRY_TO_ASK))


def is_mine(session: Session, keyset_id: int) -> bool:
    """Say whether it is this transaction's turn, which then lasts to its end."""
    session.execute(_WITHOUT_TIMEOUT)
    return bool(session.scalar(_TRY, {"keyset_id": keyset_id}))


def wait_until_mine(session: Session, keyset_id: int) -> None:
    """Wait for this transaction's turn, which then lasts to its end. Raises `LockHeld` where that takes too long."""
    session.execute(_WITHOUT_TIMEOUT)
    try:
        session.execute(_WAIT, {"keyset_id": keyset_id})
    except OperationalError as error:
        if not isinstance(error.orig, LockNotAvailable):
            raise
        raise LockHeld(f"for the turn to write the index of keyset {keyset_id}") from error
