"""Holds work up at one place in the database, or fails it there: a test can look, interrupt or kill meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, NullPool, create_engine, text

from colmlm.kb.service import KnowledgeBase

Reached = Callable[[], bool]
LOCK = 0x67617465
PATIENCE = 120.0  # seconds after which an awaited event counts as one that never comes

_WAITS = text("""
SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
               WHERE NOT l.granted AND a.datname = current_database())
""")


AGAIN_SECONDS = 20.0


@contextmanager
def table_locked(url: str, table: str) -> Iterator[Reached]:
    """Keeps others from reading or writing the table in the block. Yields a check of whether somebody waits for it."""
    with _connected(url) as holder, _connected(url) as watcher:
        holder.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield lambda: _somebody_waits(watcher)


@contextmanager
def watched(url: str) -> Iterator[Reached]:
    """Yields a check of whether somebody waits for a lock."""
    with _connected(url) as watcher:
        yield lambda: _somebody_waits(watcher)


@contextmanager
def gate(url: str, before: str, when: str = "true") -> Iterator[Reached]:
    """Holds up any transaction in the block before this on a row ("INSERT ON generation") where `when` (SQL) holds.

    Yields a check of whether a transaction waits there.
    """
    with _connected(url) as holder, _connected(url) as watcher:
        holder.execute(text(f"SELECT pg_advisory_xact_lock({LOCK})"))
        with _trigger(url, before, f"IF {when} THEN PERFORM pg_advisory_xact_lock({LOCK}); END IF"):
            try:
                yield lambda: _somebody_waits(watcher)
            finally:
                holder.rollback()


@contextmanager
def full_disk(url: str, before: str, when: str = "true") -> Iterator[None]:
    """Fails any transaction in the block before this on a row where `when` (SQL) holds: the database's disk is full."""
    with _trigger(url, before, f"IF {when} THEN RAISE 'no space left' USING ERRCODE = 'disk_full'; END IF"):
        yield


@contextmanager
def _trigger(url: str, before: str, action: str) -> Iterator[None]:
    """Runs an action in PL/pgSQL before this is done to a row, in the block."""
    body = f"BEGIN {action}; RETURN NEW; END"
    with _connected(url) as connection:
        _do(connection, f"CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
        _do(connection, f"CREATE TRIGGER gate BEFORE {before} FOR EACH ROW EXECUTE FUNCTION gate()")
        try:
            yield
        finally:
            _do(connection, "DROP FUNCTION gate CASCADE")


@contextmanager
def interrupted(reached: Reached, by: signal.Signals = signal.SIGINT) -> Iterator[None]:
    """Sends this process the signal once `reached` is true, which must happen within the block.

    It is sent again every `AGAIN_SECONDS`, as a person does: Python drops an interrupt that comes within a finalizer.
    """
    is_over = threading.Event()
    sent: list[bool] = []

    def watch() -> None:
        while not is_over.wait(0.01):
            if reached():
                sent.append(True)
                os.kill(os.getpid(), by)
                while not is_over.wait(AGAIN_SECONDS):
                    os.kill(os.getpid(), by)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
    assert sent, "it never came to that"


@contextmanager
def index_held_up(kb: KnowledgeBase) -> Iterator[None]:
    """Holds up this process's index: a thread begins to catch up and waits for a locked table."""
    assert kb.settings.database_url is not None
    catching_up = threading.Thread(target=kb.lookups.catch_up)
    try:
        with table_locked(kb.settings.database_url, "tombstone") as reached:
            catching_up.start()
            await_that(reached)
            yield
    finally:
        catching_up.join()


def await_that(reached: Reached) -> None:
    """Waits until `reached` is true."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def _somebody_waits(watcher: Connection) -> bool:
    with watcher.begin():
        return bool(watcher.scalar(_WAITS))


def _do(connection: Connection, statement: str) -> None:
    with connection.begin():
        connection.execute(text(statement))
