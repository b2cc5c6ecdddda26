"""Settings to a running database at head: embedded or by URL, twice at once, and after violence."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import psutil
import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import URL, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from colmlm.kb import interpreter
from colmlm.kb.errors import MigrationNeeded
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.tables import TableRow
from colmlm.lab.faults.migration import write_later_release
from tests.gates import await_that, watched
from tests.kb.corpora import PERU, ingest
from tests.places import PYTHONPATH, ROOT
from tests.servers import clone


def test_migrations_and_tables_agree(server: URL):
    from alembic import command

    with clone(server) as url:
        engine = create_engine(url)
        config = database.alembic_config()
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            command.check(config)
            names = set(inspect(connection).get_table_names())
        engine.dispose()
    of_procrastinate = {name for name in names if name.startswith("procrastinate_")}
    assert of_procrastinate and names - of_procrastinate == {"alembic_version", *TableRow.metadata.tables}


def test_migrations_are_numbered_in_the_order_that_they_name():
    script = ScriptDirectory(str(database.MIGRATIONS))
    assert database.schema_revisions() == tuple(step.revision for step in script.walk_revisions())


def test_the_queues_tables_are_those_of_the_installed_release():
    scripts = files("procrastinate.sql") / "migrations"
    newest = max(script.name for script in scripts.iterdir() if script.name.endswith(".sql"))
    assert newest == import_module("colmlm.migrations.versions.0030_baseline").LAST


def test_a_downgrade_is_refused_and_changes_nothing(kb: KnowledgeBase):
    from alembic import command

    ingest(kb, PERU)
    config = database.alembic_config()
    with pytest.raises(NotImplementedError, match="drop the database"), kb.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert database.is_at_head(kb.engine) and kb.upkeep.fsck().ok


def test_two_starts_at_once_migrate_once(server: URL):
    with clone(server, "template1") as url:
        engines = [create_engine(url) for _ in range(2)]
        failures: list[BaseException] = []

        def start(number: int) -> None:
            try:
                database.migrate_database(engines[number])
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=start, args=[n]) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [] and database.is_at_head(engines[0])
        for engine in engines:
            engine.dispose()


def test_indexes_on_facts_are_built_while_edits_go_on_and_after_a_failed_start(server: URL, tmp_path: Path):
    *_, head = write_later_release(later := tmp_path / "later")
    with clone(server) as url:
        engine = create_engine(url)
        broken = "fact_later_idx"
        with engine.begin() as connection:
            connection.execute(
                text("INSERT INTO fact (ordinal, question, created_seq) VALUES (0, 'Who?', 1)")
            )
            connection.execute(text(f"CREATE INDEX {broken} ON fact (question)"))
            connection.execute(
                text(f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{broken}'::regclass")
            )
        engines = [engine, create_engine(url)]
        starts = [threading.Thread(target=database.migrate_database, args=[one, later]) for one in engines]
        # CONCURRENTLY waits for it, and keeps no other edit waiting
        with engine.begin() as connection, watched(url) as reached:
            connection.execute(text("UPDATE fact SET answer = 'One'"))
            for start in starts:
                start.start()
            await_that(reached)
            with engine.begin() as other:
                other.execute(text("SET LOCAL lock_timeout = '20s'"))
                other.execute(text("INSERT INTO fact (ordinal, question, created_seq) VALUES (0, 'Why?', 1)"))
        for start in starts:
            start.join()
        with engine.connect() as connection:
            invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
            assert database.revision_of(engine) == head and connection.scalar(text(invalid)) == 0
            assert connection.scalar(text("SELECT count(*) FROM later_account")) == 2
            defined = connection.scalar(text(f"SELECT pg_get_indexdef('{broken}'::regclass)"))
            assert "(answer, id)" in defined
        for one in engines:
            one.dispose()


@pytest.mark.parametrize(
    ("found", "remedy"),
    [("0012", "a build of colmlm 0.1 that still has 0012"), ("9999", "A later release has migrated it")],
)
def test_a_schema_that_no_migration_leads_from_is_refused_with_the_way_there(
    kb: KnowledgeBase, found: str, remedy: str
):
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": found})
    for refused in (database.migrate_database, database.require_head):
        with pytest.raises(MigrationNeeded, match=remedy):
            refused(kb.engine)
    assert database.revision_of(kb.engine) == found
    assert database.can_serve(kb.engine) is (found == "9999")


def test_an_empty_database_needs_migrating(server: URL, settings: Settings):
    with clone(server, "template1") as url, pytest.raises(MigrationNeeded, match="none"):
        KnowledgeBase.open(replace(settings, database_url=url))


def test_the_change_log_cannot_be_rewritten(kb: KnowledgeBase, subtests: pytest.Subtests):
    ingest(kb, PERU)
    for statement in ("UPDATE change SET actor = 'nobody'", "DELETE FROM change", "TRUNCATE change"):
        refused = pytest.raises(DBAPIError, match="append-only")
        with subtests.test(statement=statement), refused, kb.engine.begin() as connection:
            connection.execute(text(statement))


_HOLD = """
import sys; from pathlib import Path
from colmlm.kb.store import database; from colmlm.kb.store.settings import Settings
engine = database.connect_database(Settings(home=Path(sys.argv[1])))
with engine.connect() as connection:
    print(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar(), flush=True)
    sys.stdin.read()
engine.dispose()
"""


def _holder(home: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = interpreter.command("-c", _HOLD, home)
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline().strip()
    return process


@pytest.mark.slow(reason="kills PostgreSQL and waits for its return")
def test_the_embedded_server_outlives_killed_clients_and_its_own_kill(home: Path):
    """One test, since each start of a server costs seconds."""
    with _holder(home) as first:
        server_pid = int((home / "postgres" / "postmaster.pid").read_text().split()[0])
        first.send_signal(signal.SIGKILL)
    assert psutil.pid_exists(server_pid), "a killed client takes no server with it"
    with _holder(home) as second:
        assert int((home / "postgres" / "postmaster.pid").read_text().split()[0]) == server_pid
        slow, *_ = psutil.Process(server_pid).children()
        slow.suspend()  # while a child of the dead server lives, no other one can start: it is ended
        os.kill(server_pid, signal.SIGKILL)
        second.communicate("")
    with _holder(home) as third:
        restarted = psutil.Process(int((home / "postgres" / "postmaster.pid").read_text().split()[0]))
        assert restarted.pid != server_pid
        third.communicate("")
    restarted.wait(30)  # the clients that were killed count as gone, so the last one stopped it


def test_a_connection_that_is_out_when_its_pool_is_disposed_of_is_closed_when_it_comes_back(
    kb: KnowledgeBase,
):
    with kb.engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        kb.engine.dispose()
        assert not driver.closed
    assert driver.closed
