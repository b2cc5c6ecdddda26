"""References: foreign keys of rows that are inserted in bulk, checked at once instead of row by row.

The server checks a foreign key by a statement for each row: it locks what the row refers to against deletion, where
that is there. What this transaction inserted itself needs no such lock, since nobody else sees it, and the rest is
locked by one statement for all rows: whoever deletes meanwhile meets the same.

Constraints of other kinds are checked as ever. A role that may not switch the checks has each row checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from colmlm.kb.store.database import connection_of

# Rows from which on it is worth two statements more, and that the server plans anew what it had planned.
MANY = 1_000

_MAY = (
    b"SELECT has_parameter_privilege('session_replication_role', 'SET')"
    b" AND current_setting('session_replication_role') = 'origin'"
)
_AT_ONCE = b"SET LOCAL session_replication_role = replica"
_BY_ROW = b"SET LOCAL session_replication_role = origin"


@contextmanager
def checked_at_once(session: Session, rows: int) -> Iterator[bool]:
    """Inserts so many rows within the block without a check of each, and says whether that is so.

    Whoever inserts them has to show that what they refer to is there until this transaction ends. No trigger of an
    ordinary kind runs for them.
    """
    connection = connection_of(session)
    at_once = rows >= MANY and bool((connection.execute(_MAY).fetchone() or (False,))[0])
    if at_once:
        connection.execute(_AT_ONCE)
    yield at_once
    if at_once:  # where the block failed, the end of the transaction does it
        connection.execute(_BY_ROW)
