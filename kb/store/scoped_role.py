"""The role under which the statements of a scoped caller run, so that the database shows it its corpora alone.

A caller with a right on some corpora only (`kb.principal`) gets connections on which this role is set, with its corpora
in the setting `colmlm.corpora`. The policies of row-level security, which the migrations make, let the role see the
rows that belong to these corpora; a table without a policy is not granted, so that what nobody thought of is refused.

The role owns nothing and cannot sign in. It is made, and granted what it may read, when the first scoped caller asks.
Callers of all corpora keep the program's own role, and pay nothing for this.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import psycopg
from psycopg import errors, sql
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.pool import ConnectionPoolEntry

from colmlm.kb.errors import refusals
from colmlm.kb.principal import scope_of_statements

ROLE = "colmlm_scoped"
SETTING = "colmlm.corpora"
# What a scoped caller reads: tables whose policies leave it the rows of its corpora, and of the service what belongs to
# no corpus. Of keysets and checkpoints only what lookups are answered from.
_OF_CORPORA = (
    "document", "fact", "fact_version", "fact_past", "fact_pair", "fact_key", "tombstone", "sentence", "corpus_review",
    "generation", "attribution", "feedback", "miss", "change",
)  # fmt: skip
_OF_NO_CORPUS = {
    "keyset": "id, checkpoint_id, threshold, calibrated, state",
    "checkpoint": "id, name, dim",
}
_LOCK = 0x636F6C6D05  # of the advisory locks of this program
_SET = "SELECT set_config('role', %s, false), set_config(%s, %s, false)"


def limit_scoped_callers(engine: Engine) -> None:
    """Set the role on connections that a scoped caller takes from this engine, and take it off for others."""
    preparing, prepared = threading.Lock(), threading.Event()

    def checkout(connection: psycopg.Connection, record: ConnectionPoolEntry, _: object) -> None:
        wanted = scope_of_statements()
        if record.info.get("corpora") == wanted:
            return
        if wanted is not None and not prepared.is_set():
            with preparing:
                _prepare_role(connection)
                prepared.set()
        _set_scope(connection, wanted)
        record.info["corpora"] = wanted

    event.listen(engine, "checkout", checkout)
    event.listen(engine, "handle_error", _refuse_what_is_not_granted)


def _set_scope(connection: psycopg.Connection, corpora: Sequence[str] | None) -> None:
    if corpora is None:
        _run(connection, _SET, "none", SETTING, "[]")
    else:
        _run(connection, _SET, ROLE, SETTING, json.dumps(corpora))


def _run(connection: psycopg.Connection, statement: str, *values: str) -> None:
    """Run a statement whose settings outlast the transaction, on a connection that is in none."""
    connection.execute(statement, values)
    if connection.pgconn.transaction_status == TransactionStatus.INTRANS:
        connection.commit()


def _prepare_role(connection: psycopg.Connection) -> None:
    """Make the role where it is not there, and grant it what it may read. Raises `ScopesUnavailable`."""
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            found = "SELECT pg_has_role(current_user, rolname, 'MEMBER') FROM pg_roles WHERE rolname = %s"
            member = connection.execute(found, [ROLE]).fetchone()
            name = sql.Identifier(ROLE)
            if member is None:
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(name))
            if member is None or not member[0]:
                connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(name))
            connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(_schema(connection), name))
            for table in _OF_CORPORA:
                connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(sql.Identifier(table), name))
            for table, columns in _OF_NO_CORPUS.items():
                granting = sql.SQL("GRANT SELECT ({}) ON {} TO {}")
                named = sql.SQL(", ").join(map(sql.Identifier, columns.split(", ")))
                connection.execute(granting.format(named, sql.Identifier(table), name))
    except errors.InsufficientPrivilege as error:
        raise refusals.scopes_unavailable(ROLE, str(error).strip()) from error


def _schema(connection: psycopg.Connection) -> sql.Identifier:
    row = connection.execute("SELECT current_schema()").fetchone()
    assert row is not None, "a statement without FROM gives a row"
    return sql.Identifier(row[0])


def _refuse_what_is_not_granted(context: ExceptionContext) -> None:
    """Say of what the role was not granted that it needs a right on all corpora."""
    is_denied = isinstance(context.original_exception, errors.InsufficientPrivilege)
    if is_denied and (corpora := scope_of_statements()) is not None:
        raise refusals.needs_all_corpora(corpora) from context.original_exception
