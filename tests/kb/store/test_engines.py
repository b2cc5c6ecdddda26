"""What every connection to the database is made by, and the URL as it may be shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo
from sqlalchemy import text

from colmlm.api.app import create_app
from colmlm.kb.errors import DatabaseUnavailable
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store import database
from colmlm.kb.store.database import connection_of
from colmlm.kb.store.engines import LIMITS_HERE, SECRETS, conninfo, format_database_url
from colmlm.kb.store.settings import Settings
from colmlm.kb.store.waits import Waits
from tests.gateways import gateway

POOLS = ("upkeep", "lookups", "door", "requests")
SAID = "-c synchronous_commit=off -c search_path=public,pg_catalog"


@contextmanager
def connections(settings: Settings) -> Iterator[dict[str, psycopg.Connection]]:
    """A connection of each kind that a server or a worker makes, by its pool's name."""
    with KnowledgeBase.open(settings) as kb:
        create_app(kb)  # which makes pools beside
        assert set(kb.pools) == set(POOLS)
        with psycopg.connect(conninfo(kb.engine, "worker")) as worker:
            found = {"worker": worker}
            for name, pool in kb.pools.items():
                driver = pool.raw_connection().driver_connection
                assert isinstance(driver, psycopg.Connection)
                found[name] = driver
            yield found


def shows(connection: psycopg.Connection, *names: str) -> list[str]:
    return [str(connection.execute(f"SHOW {name}").fetchall()[0][0]) for name in names]  # type: ignore[arg-type]


def with_query(settings: Settings, query: str) -> Settings:
    return replace(settings, database_url=f"{settings.database_url}&{query}")


def test_every_connection_notices_that_the_other_side_has_vanished(settings: Settings) -> None:
    with (
        gateway(str(settings.database_url)) as (_, url),
        connections(replace(settings, database_url=url)) as found,
    ):
        for name, connection in found.items():
            made_by = connection.info.get_parameters()
            assert {limit: made_by.get(limit) for limit in LIMITS_HERE} == LIMITS_HERE, name
            options = made_by["options"]
            for limit in ("idle=30", "interval=10", "count=3"):
                assert f"-c tcp_keepalives_{limit}" in options, name
            assert "-c tcp_user_timeout=60000" in options, name


def test_limits_that_the_url_or_the_environment_sets_are_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "33")
    monkeypatch.setenv("PGOPTIONS", "-c tcp_keepalives_idle=77")
    with connections(with_query(settings, "keepalives_idle=44&tcp_user_timeout=0")) as found:
        for connection in found.values():
            made_by = connection.info.get_parameters()
            assert (made_by["connect_timeout"], made_by["keepalives_idle"]) == ("33", "44")
            assert (made_by["tcp_user_timeout"], made_by["keepalives_count"]) == ("0", "3")
            assert made_by["options"].index("idle=30") < made_by["options"].index(
                "idle=77"
            )  # the last one holds


def test_options_of_the_url_hold_for_every_connection(settings: Settings) -> None:
    with connections(with_query(settings, f"options={SAID.replace(' ', '%20')}")) as found:
        for name, connection in found.items():
            assert shows(connection, "synchronous_commit", "search_path") == ["off", "public,pg_catalog"], (
                name
            )
        assert shows(found["door"], "statement_timeout", "lock_timeout") == ["3s", "1s"]
        assert shows(found["lookups"], "plan_cache_mode") == ["force_generic_plan"]


def test_what_the_program_relies_on_is_not_undone_by_the_url(settings: Settings) -> None:
    with connections(with_query(settings, "options=-c%20statement_timeout%3D0")) as found:
        assert shows(found["requests"], "statement_timeout") == ["1min"]


def test_every_parameter_that_libpq_takes_for_a_secret_is_hidden() -> None:
    marked = {one.keyword.decode() for one in Conninfo.get_defaults() if one.dispchar == b"*"}
    assert {"password", "sslpassword"} <= marked <= SECRETS


@pytest.mark.parametrize("place", ["userinfo", *sorted(SECRETS)])
def test_a_password_is_shown_from_no_place_in_the_url(place: str, tmp_path: Path) -> None:
    url = f"postgresql+psycopg://me@/nowhere?host={tmp_path}&{place}=hunter2"
    if place == "userinfo":
        url = f"postgresql+psycopg://me:hunter2@/nowhere?host={tmp_path}"
    assert (
        "hunter2" not in format_database_url(url)
        and "***" in format_database_url(url)
        and str(tmp_path) in format_database_url(url)
    )
    assert "hunter2" in format_database_url(url, with_secrets=True)
    with pytest.raises(DatabaseUnavailable) as caught:
        database.connect_database(Settings(home=tmp_path, database_url=url))
    assert "hunter2" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("secret", ["a b", "a+b", "a%20b", "ä:/?#[]@&=", "100%", 'it\'s "so" \\'])
def test_a_url_that_is_shown_with_its_password_can_be_pasted(secret: str) -> None:
    coded = quote(secret, safe="")
    said = f"options={quote(SAID)}&sslpassword={coded}"
    url = f"postgresql+psycopg://m%20e:{coded}@[::1]:5433/my%20base?{said}"
    found = conninfo_to_dict(format_database_url(url, with_secrets=True))
    assert (found["user"], found["password"], found["dbname"]) == ("m e", secret, "my base")
    assert (found["host"], found["port"]) == ("::1", "5433")
    assert (found["sslpassword"], found["options"]) == (secret, SAID)


@pytest.mark.parametrize("query", ["nonsense=1", "connect_timeout=soon"])
def test_a_url_that_asks_for_what_libpq_does_not_know_is_refused(query: str, settings: Settings) -> None:
    with pytest.raises(DatabaseUnavailable, match=query.partition("=")[0]):
        database.connect_database(with_query(settings, query))


def interrupted(driver: psycopg.Connection) -> PQGen[None]:
    """Send a statement, and be interrupted in a line of its own before the answer comes."""
    yield from ()
    driver.pgconn.send_query(b"SELECT pg_sleep(20)")
    raise KeyboardInterrupt


def test_an_interrupt_is_raised_as_itself_in_whatever_line_it_comes(settings: Settings) -> None:
    """A key pressed while the driver runs code of ours leaves it amid a statement, which nothing can roll back."""
    with KnowledgeBase.open(settings) as kb:
        pool = kb.beside("door", Waits(lock=30, statement=30), 1)
        with pytest.raises(KeyboardInterrupt), pool.sessions.begin() as session:
            connection = connection_of(session)
            connection.wait(interrupted(connection))
        with pool.sessions() as session:
            assert session.scalar(text("SELECT 1")) == 1
