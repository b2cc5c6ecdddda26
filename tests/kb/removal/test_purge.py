"""What a purge claims of the files holds: whatever the values say, whoever else purges, and wherever one is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import OperationalError

from colmlm.kb import interpreter
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.jobs.worker import Worker
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.purge import PURGE_LOCK, TABLES, LevelNotReached, hold_purge_lock
from colmlm.kb.removal.scan import Matcher
from colmlm.kb.service import KnowledgeBase
from tests.gates import await_that
from tests.kb.corpora import document, fact_id, ingest
from tests.kb.removal.purging import HERE

BY = {"actor": "tester", "reason": "request"}
FIRST = f"Rewriting {TABLES[0]}"
CLEARING = "Clearing the write-ahead log: at"
PLANTED = b"planted in the log and nowhere else"

long_words = st.integers(2_000, 12_000).map(lambda length: "w" * length)
notices = st.sampled_from(["3 dead row versions cannot be removed yet.", "WARNING:  skipping", "2047 9 1"])
markup = st.sampled_from(
    ["<b>bold</b>", "_so_ **so** `so`", "&nbsp;&amp;", "'; DROP TABLE fact; --", "%s {0} $1 :x"]
)
controls = st.text(
    st.characters(categories=["Cc", "Cf", "Co", "Zs", "Lo"], exclude_characters="\0"), max_size=40
)
values = st.one_of(long_words, notices, markup, controls).filter(
    lambda value: value.strip() and MARK not in value
)


@pytest.mark.slow(reason="starts a PostgreSQL of its own and rewrites its tables")
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(["w" * 3_000])
@given(said=st.lists(values, min_size=1, max_size=8, unique=True))
def test_no_value_keeps_an_erasure_from_level_four(own_kb: KnowledgeBase, said: list[str]) -> None:
    number = own_kb.log.head_seq()
    erased = f"the unheard-of number {number}"
    ingest(
        own_kb,
        document(f"values {number}", *(piece for value in said for piece in (" It says ", (value, "What?")))),
        document(f"erased {number}", "Nobody knows ", (erased, "What does nobody know?"), "."),
    )
    report = Erasure(own_kb).erase([fact_id(own_kb, erased)], **BY, now=True)
    assert (report.level, report.asked_level) == (4, 4), report.levels


def test_statistics_of_a_table_that_became_empty_are_out_of_the_heap(own_kb: KnowledgeBase) -> None:
    """ANALYZE keeps what it knew of a table without rows."""
    names = [f"the forgotten {number}th question of them all" for number in range(6)]
    ingest(own_kb, *(document(f"q{n}", "It is ", (f"said {n}", name), ".") for n, name in enumerate(names)))
    ids = [fact_id(own_kb, f"said {n}") for n in range(6)]
    for one in ids:
        own_kb.facts.edit(one, f"otherwise {one}", question="What now?", anyway=True, **BY)
    with own_kb.engine.begin() as connection:
        connection.execute(text("ANALYZE fact_past"))
    assert in_files(own_kb, "base", names[2].encode())
    assert Erasure(own_kb).erase(ids, **BY, now=True).level == 4
    with own_kb.engine.connect() as connection:
        assert not connection.scalar(text("SELECT count(*) FROM fact_past"))
    assert not in_files(own_kb, "base", names[2].encode())


def test_a_file_that_a_crash_of_the_server_left_is_named(own_kb: KnowledgeBase) -> None:
    """A table that was being written when the server died is a file that nothing refers to, and nothing removes."""
    with own_kb.engine.connect() as connection:
        connection.execute(
            text(f"CREATE TABLE copy AS SELECT '{PLANTED.decode()}' FROM generate_series(1, 99)")
        )
        path = str(connection.scalar(text("SELECT pg_relation_filepath('copy')")))
        assert in_files(own_kb, "base", PLANTED)
        crash(own_kb, int(connection.scalar(text("SELECT pg_backend_pid()")) or 0))
        connection.invalidate()
    level = Erasure(own_kb).finish().levels[2]
    assert (level.state, path in level.left) == ("left", True), level
    for left in re.findall(r"base/\d+/\d+", level.left):
        (own_kb.settings.home / "postgres" / left).unlink()
    report = Erasure(own_kb).finish()
    assert report.level == 4, report.levels


def test_a_transaction_of_another_database_holds_rows_and_a_mere_snapshot_there_does_not(
    own_kb: KnowledgeBase,
) -> None:
    elsewhere = create_engine(own_kb.engine.url.set(database="template1"), poolclass=NullPool)
    with elsewhere.connect() as reader:
        reader.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        pid = reader.scalar(text("SELECT pg_backend_pid()"))
        assert Erasure(own_kb).finish().level == 4
        reader.execute(text("SELECT pg_current_xact_id()"))
        level = Erasure(own_kb).finish().levels[2]
        assert level.state == "left" and f"process {pid} " in level.left, level


@pytest.mark.slow(reason="starts a PostgreSQL of its own and rewrites its tables")
def test_level_four_is_not_claimed_while_segments_are_kept_for_reuse(own_kb: KnowledgeBase) -> None:
    """Somebody sets `wal_recycle` back all the time: the files decide, not the setting."""
    over = threading.Event()
    resetting = threading.Thread(target=reset_until, args=(own_kb, over))
    plant(own_kb)
    resetting.start()
    try:
        level = Erasure(own_kb).finish().level
        assert level == 3 or (level == 4 and not in_files(own_kb, "pg_wal", PLANTED))
    finally:
        over.set()
        resetting.join()
    assert Erasure(own_kb).finish().level == 4 and not in_files(own_kb, "pg_wal", PLANTED)


def test_segments_that_were_kept_for_reuse_meanwhile_are_cleared_by_the_next_pass(
    own_kb: KnowledgeBase,
) -> None:
    heard = []

    def reset_once(said: str) -> None:
        if "at segment" in said:
            heard.append(said)
        if "at segment" in said and len(heard) == 1:
            reset(own_kb)

    plant(own_kb)
    report = Erasure(own_kb).finish(on_step=reset_once)
    assert (report.level, len(heard)) == (4, 2) and not in_files(own_kb, "pg_wal", PLANTED)


@pytest.mark.slow(reason="starts a PostgreSQL of its own and rewrites its tables")
@pytest.mark.parametrize("before", [None, "on"])
def test_two_purges_at_once_reach_level_four_and_leave_the_setting_as_it_was(
    own_kb: KnowledgeBase, before: str | None
) -> None:
    with setting(own_kb, before):
        plant(own_kb)
        with purging(own_kb, FIRST) as first:
            await_line(first, HERE)
            with purging(own_kb) as second:
                await_line(second, "Removing keys")
                last = [first.communicate("\n")[0], second.communicate()[0]]
        assert [said.splitlines()[-1] for said in last] == ["4", "4"]
        assert recycling(own_kb) == before
        assert not in_files(own_kb, "pg_wal", PLANTED)


def test_a_purge_beside_one_that_does_not_end_says_so(own_kb: KnowledgeBase) -> None:
    told: list[str] = []
    with own_kb.engine.connect() as holder, own_kb.engine.connect() as connection:
        pid = holder.scalar(text("SELECT pg_backend_pid() FROM pg_advisory_lock(:key)"), {"key": PURGE_LOCK})
        with (
            pytest.raises(LevelNotReached) as stopped,
            hold_purge_lock(own_kb.engine, connection, told.append, seconds=0.1),
        ):
            raise AssertionError
        holder.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": PURGE_LOCK})
        with hold_purge_lock(own_kb.engine, connection, told.append):
            assert not holder.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": PURGE_LOCK})
    assert f"process {pid} " in stopped.value.left and len(told) == 1


KILLED = [
    ("Removing keys", None),
    ("Rewriting fact", None),
    ("Waiting for a checkpoint", "on"),
    (CLEARING, None),
    (CLEARING, "on"),
    (CLEARING, "off"),
]


@pytest.mark.slow(reason="starts a PostgreSQL of its own and rewrites its tables")
@pytest.mark.parametrize(("step", "before"), KILLED)
def test_a_purge_that_is_killed_leaves_nothing_to_the_next_erasure(
    own_kb: KnowledgeBase, step: str, before: str | None
) -> None:
    with setting(own_kb, before):
        with purging(own_kb, step) as killed:
            await_line(killed, HERE)
            at_kill = recycling(own_kb)
            killed.kill()
        assert (at_kill == before) == (step != CLEARING or before == "off")
        await_that(lambda: not is_purging(own_kb))
        Erasure(own_kb).finish(now=False)
        assert recycling(own_kb) == before
        with own_kb.engine.connect() as connection:
            await_that(lambda: connection.scalar(text("SHOW wal_recycle")) == (before or "on"))
        plant(own_kb)
        assert Erasure(own_kb).finish().level == 4 and not in_files(own_kb, "pg_wal", PLANTED)


@pytest.mark.parametrize(("step", "reached"), [("Rewriting fact", 2), (CLEARING, 3)])
def test_a_purge_whose_connection_breaks_reports_how_far_it_got(
    own_kb: KnowledgeBase, step: str, reached: int
) -> None:
    def break_off(said: str) -> None:
        if said.startswith(step):
            with own_kb.engine.connect() as connection:
                statement = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                connection.execute(text(statement))

    report = Erasure(own_kb).finish(on_step=break_off)
    assert (report.level, report.levels[reached].state) == (reached, "refused")
    assert recycling(own_kb) is None
    assert Erasure(own_kb).finish().level == 4


@pytest.mark.parametrize("now", [False, True])
def test_an_outage_after_an_erasure_leaves_its_report(own_kb: KnowledgeBase, now: bool) -> None:
    away = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none", poolclass=NullPool)
    report = Erasure(KnowledgeBase(own_kb.settings, away)).finish(now=now)
    assert report.level == 1 and report.levels[1].state == "refused"
    assert not now or [level.state for level in report.levels[2:]] == ["refused", "left"]


def test_workers_and_repairs_set_back_what_a_killed_purge_left(own_kb: KnowledgeBase) -> None:
    for mend in (lambda: Worker(own_kb, {}).run(once=True), own_kb.upkeep.repair):
        for spelt, before in (("fals", None), ("fal", "on"), ("off", "off")):
            with setting(own_kb, spelt):
                mend()
                assert recycling(own_kb) == before


def plant(kb: KnowledgeBase) -> None:
    """Say something in segments of the log that may be kept for reuse, the current one among them."""
    said = {"said": PLANTED.decode()}
    message = "SELECT pg_logical_emit_message(false, 'test', :said)"
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(3):
            connection.execute(text(f"{message}, pg_switch_wal()"), said)
        connection.execute(text(message), said)
        connection.execute(text("SELECT txid_current()"))  # its commit flushes the message
    assert in_files(kb, "pg_wal", PLANTED)


def in_files(kb: KnowledgeBase, folder: str, needle: bytes) -> list[str]:
    """Give the files of this folder of the server that hold the bytes."""
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if folder == "base":
            connection.execute(text("CHECKPOINT"))
    matcher, found = Matcher([needle]), []
    for path in sorted((kb.settings.home / "postgres" / folder).rglob("*")):
        if path.is_file() and matcher.find_in_file(path)[0]:
            found.append(path.name)
    return found


def recycling(kb: KnowledgeBase) -> str | None:
    """Give what postgresql.auto.conf says of `wal_recycle`."""
    statement = "SELECT setting FROM pg_file_settings WHERE name = 'wal_recycle'"
    with kb.engine.connect() as connection:
        return connection.scalar(text(statement))


def reset(kb: KnowledgeBase, change: str = "RESET wal_recycle") -> None:
    with kb.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f"ALTER SYSTEM {change}"))
        connection.execute(text("SELECT pg_reload_conf()"))
        time.sleep(0.1)  # the checkpointer reads it


def reset_until(kb: KnowledgeBase, over: threading.Event) -> None:
    while not over.wait(0.3):
        reset(kb)


@contextmanager
def setting(kb: KnowledgeBase, value: str | None) -> Iterator[None]:
    """Set `wal_recycle` in the block, as an operator does."""
    reset(kb, f"SET wal_recycle = {value}" if value else "RESET wal_recycle")
    try:
        yield
    finally:
        reset(kb)


def crash(kb: KnowledgeBase, pid: int) -> None:
    """Kill a process of the server, which then ends all others and recovers."""
    before = checkpointer(kb)
    os.kill(pid, signal.SIGKILL)
    await_that(lambda: checkpointer(kb) not in (before, None))


def checkpointer(kb: KnowledgeBase) -> int | None:
    """Give the process of the server that writes checkpoints, or None while the server recovers."""
    engine = create_engine(kb.engine.url, poolclass=NullPool)
    with suppress(OperationalError), engine.connect() as connection:
        return connection.scalar(text("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"))
    return None


def is_purging(kb: KnowledgeBase) -> bool:
    """Tell whether a statement of another connection still runs, or its lock is held: a server sees late that a process
    was killed.
    """
    statement = (
        "SELECT (SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query ~ '^(VACUUM|CHECKPOINT)') "
        "+ (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted)"
    )
    with kb.engine.connect() as connection:
        return bool(connection.scalar(text(statement)))


@contextmanager
def purging(kb: KnowledgeBase, *step: str) -> Iterator[subprocess.Popen[str]]:
    """Run a purge of this base in a process, which waits at the step until it is sent a line."""
    command = interpreter.command("-m", "tests.kb.removal.purging", kb.settings.home, *step)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def await_line(process: subprocess.Popen[str], start: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return
    raise AssertionError(f"it ended before {start}")
