"""Engines: how connections to the database are made and limited, and the database's URL without its secrets.

A machine that vanishes says nothing, and TCP alone waits for it for a quarter of an hour, or two hours. So each side
asks the other whether it is still there, unless the URL or libpq's environment says how. These limits have no effect on
a Unix socket.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, TypeVar
from urllib.parse import quote

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, TransactionStatus
from sqlalchemy import URL, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.engine.interfaces import DBAPIConnection, Dialect
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection

from colmlm.kb.errors import InvalidValue
from colmlm.kb.store.scoped_role import limit_scoped_callers

PAUSE_SECONDS = 1.0  # a connection used more recently than this is taken to be alive

# What gives up on a server that does not answer: a connection after 5 s, a statement after 25 s without a sign of life.
LIMITS_HERE = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
# What lets the server give up on this program, and with it on the locks that it holds, after a minute.
LIMITS_THERE = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

# The parameters of libpq that are secrets or lead to some, beside the password in its usual place.
SECRETS = frozenset(
    {"password", "sslpassword", "passfile", "scram_client_key", "scram_server_key", "oauth_client_secret"}
)
_HIDDEN = "***"


def engine_on(
    url: URL | str,
    application: str,
    options: str = "",
    *,
    silence_limit: float = math.inf,
    pings: bool = True,
    **settings: Any,
) -> Engine:
    """Give an engine whose connections have this application name, and these `options` beside those of the URL.

    With `pings`, a connection that was idle for a second is tested before use, so that a verb survives a restart of the
    server. A connection on which the server is silent for `silence_limit` seconds is closed.
    """
    engine = create_engine(
        url,
        poolclass=WatchedPool,
        hide_parameters=True,  # errors go to the log, parameters must not
        connect_args=_parameters(make_url(url), application, options),
        **settings,
    )
    _limit_silence(engine, silence_limit)
    if pings:
        _ping_after_a_pause(engine)
    refuse_bad_values(engine)
    limit_scoped_callers(engine)
    return engine


def conninfo(engine: Engine, application: str) -> str:
    """Give the connection string, with its password, by which libpq connects as this engine does."""
    _, found = engine.dialect.create_connect_args(engine.url)
    given = {**found, **_parameters(engine.url, application, "")}
    return make_conninfo(**{name: value for name, value in given.items() if name != "context"})


def format_database_url(url: URL | str, *, with_secrets: bool = False) -> str:
    """Format a database URL for libpq, with asterisks in place of the password unless `with_secrets`."""
    found = make_url(url).set(drivername="postgresql")
    where = found.set(query={}).render_as_string(hide_password=not with_secrets).replace(" ", "%20")
    said = "&".join(
        f"{name}={quote(value, safe='/,:') if with_secrets or name not in SECRETS else _HIDDEN}"
        for name, values in found.normalized_query.items()
        for value in values
    )
    return f"{where}?{said}" if said else where


def _parameters(url: URL, application: str, options: str) -> dict[str, str]:
    """Give the libpq parameters to add to the URL: application name, options, and the limits that the URL does not set.

    Of an option that is given twice PostgreSQL takes the last. So the URL's options override `LIMITS_THERE`, and
    `options`, on which the program relies, override the URL's.
    """
    said = _libpq_defaults() | {name: " ".join(v) for name, v in url.normalized_query.items()}
    limits = {name: value for name, value in LIMITS_HERE.items() if name not in said}
    there = " ".join(f"-c {name}={value}" for name, value in LIMITS_THERE.items())
    joined = " ".join(filter(None, (there, said.get("options"), options)))
    return {**limits, "application_name": application, "options": joined}


def _libpq_defaults() -> dict[str, str]:
    """Give libpq's defaults, with those of the environment, for parameters that a URL does not set."""
    return {found.keyword.decode(): found.val.decode() for found in Conninfo.get_defaults() if found.val}


def _limit_silence(engine: Engine, silence_limit: float) -> None:
    def connect(
        _: Dialect, __: ConnectionPoolEntry | None, arguments: list[Any], named: dict[str, Any]
    ) -> DBAPIConnection:
        made = TimedConnection.connect(*arguments, **named)
        made.silence_limit = silence_limit
        return made  # type: ignore[return-value]

    def checkin(connection: object, _: ConnectionPoolEntry) -> None:
        if isinstance(connection, TimedConnection):
            connection.silence_limit = silence_limit  # a transaction may have lifted it

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkin", checkin)


def _ping_after_a_pause(engine: Engine) -> None:
    def checkout(connection: DBAPIConnection, record: ConnectionPoolEntry, _: object) -> None:
        if time.monotonic() - record.info.get("used", 0.0) > PAUSE_SECONDS:
            try:
                engine.dialect.do_ping(connection)
            except psycopg.OperationalError as error:
                raise DisconnectionError from error  # makes the pool take another connection

    def checkin(_: object, record: ConnectionPoolEntry) -> None:
        record.info["used"] = time.monotonic()

    event.listen(engine, "checkout", checkout)
    event.listen(engine, "checkin", checkin)


# A connection pool that also counts the callers that wait for a connection.


class WatchedPool(QueuePool):
    """SQLAlchemy's connection pool, which counts its connections, and here also the callers that wait for one.

    `num_waiting` is the number of callers without a connection yet, because none is free or theirs is being opened or
    tested. A connection in use when the pool is disposed of is closed when it is returned.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.num_waiting = 0
        self._counting = threading.Lock()
        self._is_disposed = False

    def connect(self) -> PoolProxiedConnection:
        self._count_waiting(1)
        try:
            return super().connect()
        finally:
            self._count_waiting(-1)

    def dispose(self) -> None:
        self._is_disposed = True
        super().dispose()

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        if getattr(record.dbapi_connection, "is_cut_off", False):
            record.invalidate()
        super()._do_return_conn(record)
        if (
            self._is_disposed
        ):  # no caller takes it again, and SQLAlchemy would leave it to the garbage collector
            super().dispose()

    def _count_waiting(self, step: int) -> None:
        with self._counting:
            self.num_waiting += step


# Silence: how long a connection waits for an answer, where its statements are limited.
#
# The server ends such a statement in time and says so. Who hears nothing for longer than that will hear
# nothing at all: a line through a proxy may be dead though the system at its other end still confirms every
# packet, so that no keepalive fails.

T = TypeVar("T")

SPARE_SECONDS = 5.0  # for the way there and back, beyond the time that the server gives a statement


class TimedConnection(psycopg.Connection[Any]):
    """A connection that closes and raises `OperationalError` when the server was silent for `silence_limit` seconds.

    A commit is waited for without end, as PostgreSQL itself lets it wait for a standby: breaking it off would leave
    open whether it was done.
    """

    silence_limit: float = math.inf
    is_cut_off = False  # an interrupt left it amid a statement

    def wait(self, gen: PQGen[T], *how: Any, **named: Any) -> T:
        try:
            return super().wait(gen if math.isinf(self.silence_limit) else self._in_time(gen), *how, **named)
        except (KeyboardInterrupt, SystemExit):
            self.is_cut_off = self.closed or self.pgconn.transaction_status == TransactionStatus.ACTIVE
            raise

    def rollback(self) -> None:
        """Roll back, or close a connection that an interrupt left amid a statement: the server then rolls back."""
        self.close() if self.is_cut_off else super().rollback()

    def commit(self) -> None:
        silence_limit, self.silence_limit = self.silence_limit, math.inf
        try:
            super().commit()
        finally:
            self.silence_limit = silence_limit

    def _in_time(self, gen: PQGen[T]) -> PQGen[T]:
        """Run `gen`, which the driver resumes every 0.1 s. Raises `OperationalError` after `silence_limit`."""
        end = time.monotonic() + self.silence_limit
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    end = time.monotonic() + self.silence_limit
                elif time.monotonic() > end:
                    self.close()
                    raise psycopg.OperationalError(f"the server said nothing for {self.silence_limit:.0f} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            found: T = done.value
            return found


# Bad values: refuses what no column can hold, in whatever statement it is given, as an error of the tree.
#
# Verbs check what they are given where that has a name. This is behind all of them, so that none has to be
# thought of: it is the last place that an id beyond 64 bits, a negative limit, a NUL or a lone surrogate gets
# to.

MOST = 1_000_000_000  # items of a list that somebody may ask for at once

_NUMBER = "it is a number that is too large or too small. Give ids from 1 to 9223372036854775807"
_TEXT = "it holds a NUL character or a lone surrogate. Remove it"


def check_limit(limit: int, least: int = 1) -> None:
    """Raise `InvalidValue` where `limit`, a number of items, is not from `least` to `MOST`."""
    if not least <= limit <= MOST:
        raise InvalidValue("limit", f"it is {limit}. Give a number from {least} to {MOST:,}")


def refuse_bad_values(engine: Engine) -> None:
    """Make statements on this engine raise `InvalidValue` for values that no column can hold."""

    def refuse(context: ExceptionContext) -> None:
        if (refused := refusal_of_value(context.original_exception)) is not None:
            raise refused from context.original_exception

    event.listen(engine, "handle_error", refuse)


def refusal_of_value(error: BaseException) -> InvalidValue | None:
    """Give `InvalidValue` for an error about a value that the driver or database refused; None for any other error."""
    match error:
        case (
            errors.NumericValueOutOfRange()
            | errors.InvalidRowCountInLimitClause()
            | errors.InvalidRowCountInResultOffsetClause()
            | OverflowError()
        ):
            return InvalidValue("value", _NUMBER)
        case UnicodeEncodeError() | errors.CharacterNotInRepertoire() | errors.UntranslatableCharacter():
            return InvalidValue("value", _TEXT)
        case psycopg.DataError() if error.sqlstate is None and "NUL" in str(error):  # the driver's own check
            return InvalidValue("value", _TEXT)
    return None
