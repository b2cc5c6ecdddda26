"""Runs migrations on the connection that `kb.store.database` hands over, or on the database that `COLMLM_*` names."""

from __future__ import annotations

import os
import re

from alembic import context
from sqlalchemy import Connection

from colmlm.kb.store.database import connect_database
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import TableRow

_PARTITION = re.compile(r"fact_key_\d+")
_OF_PROCRASTINATE = "procrastinate_"


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Leave out the partitions of keys, which are created and dropped with keysets, and procrastinate's tables."""
    if kind != "table" or name is None:
        return True
    return not (_PARTITION.fullmatch(name) or name.startswith(_OF_PROCRASTINATE))


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=TableRow.metadata,
        include_name=_is_ours,
        compare_type=True,
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    with connect_database(Settings.from_environment(os.environ)).connect() as own:
        _run(own)
