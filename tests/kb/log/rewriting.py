"""The log rewritten, so that it fits together all the same."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select, text

from colmlm.kb.log import audit
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import ChangeRow


def rewrite(kb: KnowledgeBase, edit: Callable[[ChangeRow], None]) -> None:
    """Change entries and every hash after them, as whoever owns the database could."""
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
    """Take these out of what all changes say so far: as a release wrote them that did not know of them."""

    def edit(change: ChangeRow) -> None:
        change.payload = {name: value for name, value in change.payload.items() if name not in names}

    rewrite(kb, edit)
