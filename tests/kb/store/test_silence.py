"""Whoever waits for a database that says nothing any more gives up in time, and goes on when it is back."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from colmlm.kb import interpreter
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.engines import SPARE_SECONDS, TimedConnection
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits, lift_statement_limit
from tests.fakes import FakeEncoder
from tests.gateways import Gateway, gateway
from tests.kb.corpora import CAPITAL, PERU, ask, ingest
from tests.places import PYTHONPATH, ROOT
from tests.servers import DEBIANS

LONGEST = 40.0  # seconds within which whoever waits has given up: without a limit it would be hours


@contextmanager
def through_a_gateway(settings: Settings) -> Iterator[tuple[KnowledgeBase, Gateway]]:
    """A knowledge base that is reached by a way that can be hushed, and whose statements may take a second."""
    with gateway(str(settings.database_url)) as (gate, url):
        near = replace(
            settings,
            database_url=f"{url}?connect_timeout=2",
            statement_timeout_seconds=1,
            lock_timeout_seconds=0,
        )
        with KnowledgeBase.open(near) as kb:
            yield kb, gate


@pytest.mark.slow(reason="waits for the limit of a connection that says nothing")
def test_a_lookup_ends_where_the_line_carries_nothing_and_answers_when_it_does_again(
    settings: Settings,
) -> None:
    encoder = FakeEncoder()
    with through_a_gateway(settings) as (kb, gate), ThreadPoolExecutor(1) as aside:
        ingest(kb, PERU)
        kb.keysets.rekey(encoder)
        assert ask(kb, encoder, CAPITAL)[0].hits
        with (
            gate.hushed(),
            pytest.raises(OperationalError, match="timeout"),
        ):  # said nothing, and then took no connection
            aside.submit(ask, kb, encoder, CAPITAL).result(LONGEST)
        assert ask(kb, encoder, CAPITAL)[0].hits[0].value == "Lima"


def test_a_request_ends_where_the_line_carries_nothing(settings: Settings) -> None:
    with through_a_gateway(settings) as (kb, gate), ThreadPoolExecutor(1) as aside:
        door = kb.beside("door", Waits(lock=0.5, statement=0.5), 1)
        with door.sessions() as session:
            session.execute(text("SELECT 1"))
            with gate.hushed(), pytest.raises(OperationalError, match="said nothing for"):
                aside.submit(session.execute, text("SELECT 2")).result(LONGEST)
        with door.sessions() as session:
            assert session.scalar(text("SELECT 3")) == 3


def test_a_commit_and_what_may_take_its_time_are_waited_for(settings: Settings) -> None:
    with through_a_gateway(settings) as (kb, gate), ThreadPoolExecutor(2) as aside:
        limited = kb.beside("limited", Waits.of(kb.settings), 2)
        with limited.sessions() as one, limited.sessions() as other:
            one.execute(text("CREATE TABLE noted (n int)"))
            lift_statement_limit(other)
            with gate.hushed():
                waiting = [aside.submit(one.commit), aside.submit(other.execute, text("SELECT 1"))]
                time.sleep(Waits.of(kb.settings).silence_limit + 1)
                assert not any(each.done() for each in waiting)
            for each in waiting:
                each.result(LONGEST)
        with limited.sessions() as session:
            session.execute(text("SELECT FROM noted"))
            driver = session.connection().connection.driver_connection
            assert isinstance(driver, TimedConnection) and driver.silence_limit == 1 + SPARE_SECONDS


_VANISHING = """
import sys, threading, time
from pathlib import Path
from sqlalchemy import text
from tests.networks import cut_line, enter_own_network
enter_own_network()
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.settings import Settings
from tests.fakes import FakeEncoder
from tests.gateways import gateway
from tests.kb.corpora import CAPITAL, ask

def ended(work):
    def run():
        try:
            work()
        except Exception as error:
            print(type(error).__name__, flush=True)
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread

with gateway(sys.argv[1]) as (_, url):
    kb = KnowledgeBase.open(Settings(home=Path(sys.argv[2]), database_url=url))
    assert ask(kb, FakeEncoder(), CAPITAL)[0].hits
    connection = kb.engine.connect()
    waiting = ended(lambda: connection.execute(text("SELECT pg_sleep(100000)")))
    time.sleep(1)
    cut_line()
    asking = ended(lambda: ask(kb, FakeEncoder(), CAPITAL))
    waiting.join(), asking.join()
"""


@pytest.mark.slow(reason="waits for the limit of a connection that says nothing")
def test_a_lookup_and_a_statement_without_a_limit_end_where_the_machine_has_vanished(
    kb: KnowledgeBase,
) -> None:
    ingest(kb, PERU)
    kb.keysets.rekey(FakeEncoder())
    url, home = kb.engine.url.render_as_string(hide_password=False), kb.settings.home
    command = interpreter.command("-c", _VANISHING, url, home)
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    ran = subprocess.run(
        command, env=environment, cwd=ROOT, timeout=2 * LONGEST, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["OperationalError"] * 2, ran.stderr


_DYING = """
import sys, time
from pathlib import Path
from urllib.parse import quote
from sqlalchemy import text
from tests.networks import cut_line, enter_own_network
enter_own_network()
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits
from tests.debian_servers import DebianServer, debian_folder

LIMITS = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
soon = "-c tcp_keepalives_idle=1 -c tcp_keepalives_interval=1 -c tcp_user_timeout=2000"
with debian_folder() as folder:
    server = DebianServer(folder / "server")
    server.create("fsync = off", "listen_addresses = '127.0.0.1'")
    server.start()
    try:
        url = "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
        engine = database.connect_database(Settings(home=Path(sys.argv[1]), database_url=url))
        second = database.second_engine(engine, "door", Waits(1, 1), 1)
        for made in (engine, database.reading_engine(engine, Waits(1, 1)), second):
            with made.connect() as connection:
                print(*(connection.scalar(text(f"SHOW {limit}")) for limit in LIMITS))
        url += f"?options={quote(soon)}"
        engine = database.connect_database(Settings(home=Path(sys.argv[1]), database_url=url))
        holder = database.second_engine(engine, "requests", Waits(10, 60), 1).connect()
        holder.execute(text("SELECT pg_advisory_xact_lock(4711)"))
        held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"
        print(len(server.execute(held)))
        cut_line()
        until = time.monotonic() + 30
        while (still := server.execute(held)) and time.monotonic() < until:
            time.sleep(0.2)
        print(len(still), flush=True)
    finally:
        server.kill()
"""


@pytest.mark.slow(reason="waits for the limit of a connection that says nothing")
@pytest.mark.skipif(not DEBIANS.is_dir(), reason=f"no PostgreSQL 15 in {DEBIANS}")
def test_a_server_gives_up_a_program_that_vanished_with_its_locks(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = interpreter.command("-c", _DYING, tmp_path)
    ran = subprocess.run(
        command, env=environment, cwd=ROOT, timeout=2 * LONGEST, capture_output=True, text=True, check=False
    )
    assert ran.stdout.splitlines() == ["30 10 3 60000"] * 3 + ["1", "0"], ran.stdout + ran.stderr
