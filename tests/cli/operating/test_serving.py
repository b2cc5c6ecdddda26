from __future__ import annotations

import json
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.operating.serving import TOKEN_FILE, access_token
from colmlm.kb import interpreter
from colmlm.kb.corpus.format import read_annotated
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.kb.store import database
from colmlm.kb.store.settings import Settings
from tests.cli.conftest import ROOT, RUN, Run, loaded, program


@pytest.fixture
def runtime(home: Path) -> Iterator[Runtime]:
    with Runtime.from_environment() as opened:
        yield opened


@pytest.mark.slow(reason="starts a server by the command")
def test_up_prepares_everything_and_a_second_time_changes_nothing(run: Run) -> None:
    first = run("up", "--no-serve", "--json")
    assert first.code == 0 and first.json["address"] is None
    parsed = [parsed.document for parsed in read_annotated(DEMO_CORPUS)]
    num_facts = sum(len(document.facts) for document in parsed if document is not None)
    keyset = first.json["keyset"]
    assert (keyset["num_keys"], keyset["state"], keyset["calibrated"]) == (num_facts, "active", True)
    changes = run("log", "list", "--json").json["changes"]
    second = run("up", "--no-serve", "--json").json
    assert second["token"] == first.json["token"]
    assert run("log", "list", "--json").json["changes"] == changes


def test_the_token_is_for_its_owner_alone(runtime: Runtime) -> None:
    token, file = access_token(runtime), runtime.settings.home / TOKEN_FILE
    assert file.read_text().strip() == token and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_token_the_database_does_not_know_is_replaced(runtime: Runtime) -> None:
    first = access_token(runtime)
    (runtime.settings.home / TOKEN_FILE).write_text("colmlm_of_another_database\n")
    second = access_token(runtime)
    assert second not in (first, "colmlm_of_another_database")


def test_a_taken_port_is_said_before_any_work(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words in (["up", "--port", port], ["serve", "--port", port]):
            ran = run(*words)
            assert ran.code == 2 and "another program uses this port" in ran.err and ran.err.count("\n") == 1
    assert run("corpus", "list", "--json").json["corpora"] == []


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The address of a server in a process of its own, which ends when told to, without a complaint."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = interpreter.command("-m", "colmlm.cli", "serve", "--port", port, *words)
    process = subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        assert "Serving on" in process.stderr.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert {json.loads(line)["level"] for line in log.splitlines()} <= {"info"}, log
    assert "colmlm_" not in log  # no token


def status_of(url: str, token: str | None) -> int:
    """The socket listens from the start, so a request waits until the application answers."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(url, headers=headers, timeout=60).status_code


@pytest.mark.slow(reason="starts a server by the command")
@pytest.mark.usefixtures("keyed")
def test_a_server_tells_commands_of_this_user_how_to_ask_it_while_it_runs(
    home: Path, runtime: Runtime
) -> None:
    file, question = home / "server.json", "What is the capital of Peru?"
    with serving("--no-model", "--no-worker") as address:
        assert status_of(f"{address}/healthz", None) == 200 and not file.exists()
        assert status_of(f"{address}/v1/facts", access_token(runtime)) == 200
        assert status_of(f"{address}/v1/facts", None) == 401
    with serving("--no-worker") as address:
        assert status_of(f"{address}/healthz", None) == 200
        told = json.loads(file.read_text())
        assert told["url"] == address and stat.S_IMODE(file.stat().st_mode) == 0o600
        assert status_of(f"{address}/v1/facts", told["token"]) == 200
        code = RUN.format(words=["lookup", question, "-v"])
        heavy = ("torch", "numpy", "sqlalchemy", "psycopg", "litestar", "faiss")
        assert loaded(code, heavy) == []
        assert f"Answered by the server at {address}." in program("lookup", question, "-v").stderr
    assert not file.exists()


@pytest.fixture
def embedded_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with an embedded database; not under tmp_path, which is closed to the user the server runs as."""
    with tempfile.TemporaryDirectory(prefix="colmlm-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("COLMLM_HOME", folder)
        monkeypatch.delenv("COLMLM_DATABASE_URL", raising=False)
        yield Path(folder)


@pytest.mark.slow(reason="starts a PostgreSQL of its own by the command")
def test_the_embedded_database_starts_stays_and_stops(embedded_home: Path) -> None:
    assert program("db", "status").returncode == 5
    assert json.loads(program("db", "up", "--json").stdout)["at_head"]
    assert json.loads(program("db", "status", "--json").stdout)["running"]
    assert json.loads(program("db", "status", "--url", "--json").stdout)["url"].startswith("postgresql://")
    assert program("facts", "list").returncode == 0
    assert program("db", "status").returncode == 0  # the command before was not the last user
    assert program("db", "down").stdout == "Stopped.\n"
    assert program("db", "status").returncode == 5
    assert program("db", "down").stdout.startswith("It is not running")


@pytest.mark.parametrize("command", ["migrate", "status", "up"])
def test_a_schema_from_before_the_first_migration_is_refused_with_the_way_there(
    run: Run, settings: Settings, command: str
) -> None:
    engine = database.connect_database(settings)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0012'"))
    engine.dispose()
    ran = run("db", command)
    assert ran.code == 5 and "still has 0012" in ran.out + ran.err and "Traceback" not in ran.err


def test_a_server_of_its_own_is_described_and_not_stopped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("db", "status", "--json").json["embedded"] is False
    assert run("db", "migrate", "--json").json["migrated"] is False
    assert run("db", "down").code == 2
    monkeypatch.setenv("COLMLM_DATABASE_URL", "postgresql://me:secret@nowhere.invalid/x")
    assert "secret" not in run("db", "status", "--url").out
    assert "secret" in run("db", "status", "--url", "--show-password").out
