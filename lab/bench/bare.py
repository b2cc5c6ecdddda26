"""The same work done by the bare libraries: by Faiss alone, and by PostgreSQL alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql
from sqlalchemy import text

from colmlm.kb.lookup.in_process import InProcess
from colmlm.kb.lookup.index import KeyIndex
from colmlm.kb.service import KnowledgeBase

_TABLES = ("document", "fact", "fact_version", "fact_key")
_ONE_ROW = "SELECT value FROM fact_version WHERE fact_id = %s AND to_seq IS NULL"


def index_of(kb: KnowledgeBase) -> KeyIndex:
    """Gives the Faiss index that this process answers from."""
    candidates = kb.searcher.current().candidates
    assert isinstance(candidates, InProcess)
    return candidates.index


def search(index: KeyIndex, queries: npt.NDArray[np.float32], threads: int = 1) -> npt.NDArray[np.int64]:
    """Gives the nearest id to each query, by Faiss alone with the same index and settings."""
    with index.threads(threads):
        _, ids = index.bare.search(queries, 1)
    found: npt.NDArray[np.int64] = ids[:, 0]
    return found


@contextmanager
def statement(kb: KnowledgeBase, query: str = _ONE_ROW) -> Iterator[Callable[..., object]]:
    """Yields a function that executes one prepared statement on a connection of its own, to time a round trip or a
    commit.
    """
    with kb.searcher.reader.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        yield lambda *values: driver.execute(query.encode(), values, prepare=True)


def add_seconds(index: KeyIndex, keys: npt.NDArray[np.float32]) -> float:
    """Gives the seconds that Faiss takes to add all keys in one call. It empties the index first, so call it last."""
    index.bare.reset()
    ids = np.arange(1, len(keys) + 1, dtype=np.int64)
    started = time.perf_counter()
    index.bare.add_with_ids(keys, ids)
    return time.perf_counter() - started


def copy_seconds(kb: KnowledgeBase, folder: Path) -> float:
    """Gives the seconds that COPY takes to write the same rows into copies of the tables, with the same indexes.

    The rows come from files in COPY's binary format, since no client could send them faster.
    """
    seconds = 0.0
    with kb.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        connection.execute(text("CREATE SCHEMA bare"))
        for table in map(sql.Identifier, _TABLES):
            file = folder / "rows.copy"
            out = sql.SQL("COPY (SELECT * FROM {}) TO STDOUT (FORMAT BINARY)").format(table)
            with file.open("wb") as stream, driver.cursor() as cursor, cursor.copy(out) as copy:
                for block in copy:
                    stream.write(block)
            driver.execute(sql.SQL("CREATE TABLE bare.{0} (LIKE {0} INCLUDING ALL)").format(table))
            driver.commit()
            into = sql.SQL("COPY bare.{} FROM STDIN (FORMAT BINARY)").format(table)
            started = time.perf_counter()
            with file.open("rb") as stream, driver.cursor() as cursor, cursor.copy(into) as copy:
                while block := stream.read(1 << 18):
                    copy.write(block)
            driver.commit()
            seconds += time.perf_counter() - started
            file.unlink()
        driver.execute("DROP SCHEMA bare CASCADE")
        driver.commit()
    return seconds


def kill_server(data: Path) -> None:
    """Kills the PostgreSQL server on this data directory, with all its processes, by SIGKILL."""
    postmaster = int((data / "postmaster.pid").read_text().split()[0])
    family = [postmaster, *_children(postmaster)]
    for process in family:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    while any(_is_running(process) for process in family):
        time.sleep(0.01)


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The process name, in parentheses, may hold blanks; the parent's id is the second field after it.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def _is_running(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
