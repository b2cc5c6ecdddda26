"""Changes the change log without its trigger: by hand, or so that all of its hashes fit."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, select, text

from colmlm.kb.log import audit
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ChangeRow


def _switch(connection: Connection, how: str) -> None:
    """Switches the triggers off or on that refuse to rewrite the log."""
    for trigger in ("change_append_only", "change_only_blanked"):
        connection.execute(text(f"ALTER TABLE change {how} TRIGGER {trigger}"))


def tamper(kb: KnowledgeBase, *statements: str) -> None:
    """Carries out statements that the trigger of the log would refuse."""
    with kb.engine.begin() as connection:
        _switch(connection, "DISABLE")
        for statement in statements:
            connection.execute(text(statement))
        _switch(connection, "ENABLE")


def rewrite(kb: KnowledgeBase, edit: Callable[[ChangeRow], None]) -> None:
    """Changes entries of the log and recomputes every later hash, as the database's owner could."""
    with kb.sessions.begin() as session:
        _switch(session.connection(), "DISABLE")
        prev_hash = audit.GENESIS
        for change in session.scalars(select(ChangeRow).order_by(ChangeRow.seq)):
            edit(change)
            change.prev_hash = prev_hash
            prev_hash = change.hash = audit.chain_hash(change)
        session.flush()
        _switch(session.connection(), "ENABLE")


def forget(kb: KnowledgeBase, *names: str) -> None:
    """Removes these fields from all entries so far, as an older release would have written them."""

    def edit(change: ChangeRow) -> None:
        change.payload = {name: value for name, value in change.payload.items() if name not in names}

    rewrite(kb, edit)
