"""The role under which the statements of a scoped caller run, so that the database shows it its corpora alone.

A caller with a right on some corpora only (`kb.principal`) gets connections on which this role is set, with its corpora
in the setting `colmlm.corpora`. The policies of row-level security, which the migrations make, let the role see the
rows that belong to these corpora; a table without a policy is not granted, so that what nobody thought of is refused.

The role owns nothing, cannot sign in, and is of one database, since a role belongs to the whole server. The first
scoped token makes it and turns row-level security on: a base without such a token is as it was before there were any.
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

# What a scoped caller reads: tables whose policies leave it the rows of its corpora, and of the service what belongs to
# no corpus. Of keysets and checkpoints only what lookups are answered from.
_OF_CORPORA = (
    "document", "fact", "fact_version", "fact_past", "fact_pair", "fact_key", "tombstone", "sentence", "corpus_review",
    "generation", "attribution", "feedback", "miss", "change", "retention_rule", "document_seen", "job", "forget_run",
)  # fmt: skip
_VIEWS = (
    "standing_pair",
)  # which ask their reader for its rights, so that they show no more than their tables
_OF_NO_CORPUS = {
    "keyset": "id, checkpoint_id, threshold, calibrated, state",
    "checkpoint": "id, name, dim",
}
_LOCK = 0x636F6C6D05  # of the advisory locks of this program
_READY = """
SELECT bool_and((c.relrowsecurity OR c.relkind = 'v') AND has_table_privilege(r.oid, c.oid, 'SELECT'))
FROM pg_class c LEFT JOIN pg_roles r ON r.rolname = scoped_role()
WHERE c.oid = ANY (SELECT to_regclass(name) FROM unnest(%s::text[]) AS name)
  AND pg_has_role(current_user, r.oid, 'MEMBER')
"""
_SET = "SELECT set_config('colmlm.corpora', %s, false), set_config('role', scoped_role(), false)"
_UNSET = "RESET ROLE; RESET colmlm.corpora"
_GONE = (errors.InvalidParameterValue, errors.InsufficientPrivilege, errors.UndefinedObject)


def limit_scoped_callers(engine: Engine) -> None:
    """Set the scoped role on connections that a scoped caller takes from this engine; reset it for other callers."""
    prepared = threading.Event()

    def checkout(connection: psycopg.Connection, record: ConnectionPoolEntry, _: object) -> None:
        wanted = scope_of_statements()
        if record.info.get("corpora") == wanted:
            return
        record.info["corpora"] = object()  # until it is known
        if wanted is None:
            _run(connection, _UNSET)
        else:
            if not prepared.is_set():
                prepare_role(connection)
                prepared.set()
            _set_scope(connection, wanted)
        record.info["corpora"] = wanted

    event.listen(engine, "checkout", checkout)
    event.listen(engine, "handle_error", _refuse_what_is_not_granted)


def _set_scope(connection: psycopg.Connection, corpora: Sequence[str]) -> None:
    """Set the scoped role and its corpora on a connection. Where somebody dropped the role, it is made again."""
    said = json.dumps(list(corpora))
    try:
        _run(connection, _SET, said)
    except _GONE:
        connection.rollback()
        prepare_role(connection)
        _run(connection, _SET, said)


def _run(connection: psycopg.Connection, statement: str, *values: str) -> None:
    """Run a statement whose settings outlast the transaction, and commit the transaction that it opened."""
    connection.execute(statement, values or None)
    if connection.pgconn.transaction_status == TransactionStatus.INTRANS:
        connection.commit()


def prepare_role(connection: psycopg.Connection) -> None:
    """Make the scoped role with its grants and turn row-level security on, unless that is done already.

    Raises `ScopesUnavailable` where the program's own role lacks the privileges, or cannot write.
    """
    row = connection.execute(_READY, [[*_OF_CORPORA, *_VIEWS]]).fetchone()
    if row is not None and row[0]:
        return
    try:
        with connection.transaction():
            _prepare(connection)
    except (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction) as error:
        raise refusals.scopes_unavailable(str(error).strip().partition("\n")[0]) from error


def _prepare(connection: psycopg.Connection) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    found = connection.execute("SELECT scoped_role(), current_schema()").fetchone()
    assert found is not None, "a statement without FROM gives a row"
    name, schema = map(sql.Identifier, found)
    member = connection.execute(
        "SELECT pg_has_role(current_user, oid, 'MEMBER') FROM pg_roles WHERE rolname = scoped_role()"
    ).fetchone()
    if member is None:
        connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(name))
    if member is None or not member[0]:
        connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(name))
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, name))
    for table in map(sql.Identifier, _OF_CORPORA):
        connection.execute(sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(table))
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(table, name))
    for view in map(sql.Identifier, _VIEWS):
        connection.execute(sql.SQL("GRANT SELECT ON {} TO {}").format(view, name))
    for of_service, columns in _OF_NO_CORPUS.items():
        granted = sql.SQL(", ").join(map(sql.Identifier, columns.split(", ")))
        granting = sql.SQL("GRANT SELECT ({}) ON {} TO {}")
        connection.execute(granting.format(granted, sql.Identifier(of_service), name))


def _refuse_what_is_not_granted(context: ExceptionContext) -> None:
    """Raise `NeedsAllCorpora` where the database denied a scoped caller a privilege."""
    is_denied = isinstance(context.original_exception, errors.InsufficientPrivilege)
    if is_denied and (corpora := scope_of_statements()) is not None:
        raise refusals.needs_all_corpora(corpora) from context.original_exception
