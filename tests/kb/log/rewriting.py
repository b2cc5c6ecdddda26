"""Rewrites the change log so that all of its hashes fit."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select, text

from colmlm.kb.log import audit
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ChangeRow


def rewrite(kb: KnowledgeBase, edit: Callable[[ChangeRow], None]) -> None:
    """Changes entries of the log and recomputes every later hash, as the database's owner could."""
    with kb.sessions.begin() as session:
        session.execute(text("ALTER TABLE change DISABLE TRIGGER change_append_only"))
        prev_hash = audit.GENESIS
        for change in session.scalars(select(ChangeRow).order_by(ChangeRow.seq)):
            edit(change)
            change.prev_hash = prev_hash
            prev_hash = change.hash = audit.chain_hash(change)
        session.flush()
        session.execute(text("ALTER TABLE change ENABLE TRIGGER change_append_only"))


def forget(kb: KnowledgeBase, *names: str) -> None:
    """Removes these fields from all entries so far, as an older release would have written them."""

    def edit(change: ChangeRow) -> None:
        change.payload = {name: value for name, value in change.payload.items() if name not in names}

    rewrite(kb, edit)
