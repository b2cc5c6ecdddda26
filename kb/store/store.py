"""Store: one database and the settings it is used with. Everything below the service takes a Store or a Session."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Engine, RootTransaction, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from colmlm.kb.errors import refusals
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import limit_statements


class Store:
    """Settings, an engine, sessions on it, and edits that are committed together. Threads may share one."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self._use(engine)

    def _use(self, engine: Engine) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine, expire_on_commit=False)
        self.group_commit = GroupCommit(engine)

    @contextmanager
    def reports(self) -> Iterator[Session]:
        """Give a session for reports, which read much of the base. Its statements end at `report_timeout_seconds`."""
        with self.sessions() as session:
            limit_statements(session, self.settings.report_timeout_seconds)
            yield session


# Standbys: servers that follow a primary, and so may still have what was deleted there.
#
# A standby is for failing over to, for backups and for audits; nothing is answered from one. A server that
# was promoted is a primary. A primary never becomes a standby under a connection, since it has to be
# restarted for that.

_IS_STANDBY = text("SELECT pg_is_in_recovery()")


def is_standby(engine: Engine) -> bool:
    """Say whether the server of this engine follows a primary."""
    with engine.connect() as connection:
        return bool(connection.scalar(_IS_STANDBY))


def require_primary(session: Session) -> None:
    """Raise `StandbyAsked` where this session's server is a standby, which may still have what the primary deleted."""
    if session.scalar(_IS_STANDBY):
        raise refusals.standby_asked()


def is_read_only(session: Session) -> bool:
    """Say whether this transaction can write nothing: on a standby, or by a setting of its role or database."""
    return bool(session.scalar(text("SHOW transaction_read_only")) == "on")


# Group commit: edits that threads of a process make at once are committed together, and each stays its own
# change.
#
# A change holds the log's lock until the disk has it, so edits one after another wait for the disk one after
# another. Here an edit whose turn comes while others wait hands its open transaction on to the next, which
# edits behind a savepoint, and the last one commits for all. An edit that fails is rolled back alone. None
# returns before the commit.
#
# That pays where the disk is slow. Where it is not, edits by transactions of their own overlap: what one
# computes, with what the database does for another. So it is done where commits take a millisecond and more.

MOST = 32  # edits of one commit, since the first of them waits for the last
WORTH_SECONDS = 0.001  # that a commit has to take, lately, for others to be worth waiting for
LATELY = 0.2  # the weight of the last commit in that
PATIENCE_SECONDS = 0.1  # how long an edit waits for its turn, before it goes alone


class GroupCommit:
    """Runs transactions of edits, and commits those of several threads together. A thread alone waits for nobody."""

    def __init__(self, engine: Engine, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.patience_seconds = patience_seconds
        self.worth_seconds = WORTH_SECONDS
        self._commit_seconds = 0.0
        self._engine = engine
        self._mutex = threading.Lock()
        self._is_taken = False
        self._waiting: deque[_Turn] = deque()

    @contextmanager
    def begin(self) -> Iterator[Session]:
        """Give a session whose work is committed when the block has ended, maybe together with edits of other threads.

        The first lock that the block takes must be the log's, since a group has that already and others are taken
        before it. Raises what the block or the commit raises; after a failed commit nothing of the group is stored.
        """
        group = self._join() if self._commit_seconds >= self.worth_seconds else None
        if group is None:
            with Session(self._engine, expire_on_commit=False) as session:
                yield session
                self._time_commit(session.commit)
            return
        try:
            with group.member() as session:
                yield session
        finally:
            self._pass_on(group)
        group.wait()

    @property
    def num_waiting(self) -> int:
        """The number of edits that wait for their turn."""
        return len(self._waiting)

    def _join(self) -> _Group | None:
        """Wait for a turn, and give the group to edit in; None where none comes in `patience_seconds`."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return _Group(self._engine)
            self._waiting.append(turn := _Turn())
        if not turn.has_come.wait(self.patience_seconds):
            with self._mutex:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    return None
        return turn.group

    def _pass_on(self, group: _Group) -> None:
        """Hand the group to the next waiting edit. Where none may join, commit, and give the next a new group."""
        with self._mutex:
            if self._waiting and group.admits_another:
                self._waiting.popleft().come(group)
                return
        self._time_commit(group.end)  # whoever arrives meanwhile waits, and makes the next group
        with self._mutex:
            self._is_taken = bool(self._waiting)
            if self._waiting:
                self._waiting.popleft().come(_Group(self._engine))

    def _time_commit(self, commit: Callable[[], None]) -> None:
        started = time.monotonic()
        commit()
        self._commit_seconds += LATELY * (time.monotonic() - started - self._commit_seconds)


class _Turn:
    """The place of an edit in the queue. `come` gives it the group to edit in and wakes its thread."""

    def __init__(self) -> None:
        self.has_come = threading.Event()
        self.group: _Group | None = None

    def come(self, group: _Group) -> None:
        self.group = group
        self.has_come.set()


class _Group:
    """One transaction, whose members edit in it one after another."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transaction: RootTransaction | None = None
        self._members = 0
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    @property
    def admits_another(self) -> bool:
        """Tell whether another edit may join: 1 to `MOST` - 1 have succeeded, and the connection is not broken."""
        return 0 < self._members < MOST and self._failure is None

    @contextmanager
    def member(self) -> Iterator[Session]:
        """Give a session for one edit in the transaction. Where the block fails, only that edit is rolled back."""
        if self._transaction is None:
            self._transaction = self._engine.connect().begin()
        connection = self._transaction.connection
        if self._members:
            session = Session(connection, expire_on_commit=False, join_transaction_mode="create_savepoint")
        else:  # the first needs no savepoint: where it fails, there is nothing else
            session = Session(connection, expire_on_commit=False, join_transaction_mode="rollback_only")
        try:
            with session, session.begin():
                yield session
        except DBAPIError as failure:
            if failure.connection_invalidated:  # what the others did is gone with it
                self._failure = failure
            raise
        self._members += 1

    def end(self) -> None:
        """Commit the edits of the members, and give the connection back. `wait` raises the error of a failed commit."""
        try:
            if self._transaction is not None:
                with self._transaction.connection:  # closing it rolls back what is not committed
                    if self._members and self._failure is None:
                        self._transaction.commit()
        except BaseException as failure:  # noqa: BLE001 - it is raised again where each of them waits
            self._failure = failure
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Wait until the transaction is committed. Raises the error of a failed commit."""
        self._ended.wait()
        if self._failure is not None:
            raise self._failure
