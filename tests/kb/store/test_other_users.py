"""The embedded server of one user is closed to every other user of the machine, wherever its home lies."""

from __future__ import annotations

import grp
import os
import pwd
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text

from colmlm.kb import interpreter
from colmlm.kb.errors import DatabaseUnavailable
from colmlm.kb.store import database
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.private_directories import find_exposures
from colmlm.kb.store.settings import Settings
from tests.places import PYTHONPATH, ROOT

OWNER, STRANGER = "games", "nobody"  # accounts that every Linux system has
SIZES = (20, 90, 110)  # bytes of the path of a home; a socket's path may have 107
two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as two other users")

# It imports everything first, since the interpreter may lie where the user may not look.
_ACT = """
import grp, os, pwd, sys, time
from pathlib import Path
from colmlm.kb.store import database; from colmlm.kb.store.settings import Settings
from colmlm.kb.store.embedded_server import EmbeddedServer
from sqlalchemy import create_engine, text
import psycopg, encodings.idna
user, act, where = sys.argv[1:]
create_engine("postgresql+psycopg://x@/x").dialect.import_dbapi()
account = pwd.getpwnam(user)
os.setgroups([]); os.setgid(account.pw_gid); os.setuid(account.pw_uid)
try:
    if act == "ask":
        psycopg.connect(where, connect_timeout=5)
        print("let in")
    elif act == "stop":
        print(EmbeddedServer(Path(where)).stop())
    else:
        engine = database.connect_database(Settings(home=Path(where)))
        with engine.connect() as connection:
            print(connection.scalar(text("SELECT current_user")), engine.url.query["host"], flush=True)
            sys.stdin.read()
        engine.dispose()
except Exception as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory with a short path, in which every user can make a home."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="c", dir=memory if memory.is_dir() else "/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)
        for running in Path(folder).rglob("postmaster.pid"):
            EmbeddedServer(running.parent).stop()


def home_of(size: int, base: Path) -> Path:
    """A path of so many bytes."""
    return base / ("h" * (size - len(f"{base}/")))


@contextmanager
def acting(
    user: str, act: str, where: object, before: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of the user, and the line that it printed."""
    command = [*before, *interpreter.command("-c", _ACT, user, act, where)]
    env = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": "/tmp"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.communicate("")


def ask(user: str, url: str) -> str:
    with acting(user, "ask", url) as (_, said):
        return said


def owned(folder: Path, user: str) -> Path:
    folder.mkdir(exist_ok=True)
    os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    return folder


def rules(data: Path) -> list[str]:
    return [line for line in (data / "pg_hba.conf").read_text().splitlines() if line and line[0] != "#"]


@pytest.mark.slow(reason="starts PostgreSQL as several users")
@two_users
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("starter", [OWNER, "root"])
def test_nobody_else_is_let_in_wherever_the_home_lies(base: Path, size: int, starter: str) -> None:
    home = home_of(size, base)
    with acting(starter, "start", home) as (_, said):
        assert said.startswith("postgres /"), said
        data, directory = home / "postgres", Path(said.partition(" ")[2])
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert directory.owner() == data.owner() == (OWNER if starter == OWNER else "pgserver")
        assert all("peer" in rule for rule in rules(data))
        url = EmbeddedServer(data).url()
        assert url is not None and "Permission denied" in ask(STRANGER, url)
        assert ask("root", url) == ask(starter, url) == "let in"
        # Neither of the two locks alone keeps them out.
        directory.chmod(0o755)
        (directory / ".s.PGSQL.5432").chmod(0o777)
        if directory != data:
            assert "Peer authentication failed" in ask(STRANGER, url)


@two_users
def test_a_server_of_root_has_no_group_of_roots(base: Path) -> None:
    database.connect_database(Settings(home=base / "home")).dispose()
    pid = EmbeddedServer(base / "home" / "postgres").pid()
    process, account = psutil.Process(pid), pwd.getpwnam("pgserver")
    assert set(process.uids()) == {account.pw_uid} and set(process.gids()) == {account.pw_gid}
    groups = Path(f"/proc/{pid}/status").read_text().partition("Groups:")[2].splitlines()[0]
    assert groups.split() == []


@pytest.mark.slow(reason="starts PostgreSQL as several users")
@two_users
def test_what_a_stranger_puts_into_tmp_disturbs_nobody(base: Path) -> None:
    """A lock and a directory in `/tmp` under the names that a start would take."""
    taken = Path("/tmp/.lockfile")
    was_there = taken.exists()
    if not was_there:
        taken.touch()
        os.chown(taken, pwd.getpwnam(STRANGER).pw_uid, -1)
    taken.chmod(0o600)
    long, other = home_of(110, base), home_of(90, base)
    try:
        with acting(OWNER, "start", long) as (_, said), acting("root", "start", other) as (_, also):
            assert said.startswith("postgres /tmp/") and also.startswith("postgres /tmp/"), (said, also)
        directory = Path(said.partition(" ")[2])
        directory.rmdir()
        owned(directory, STRANGER).chmod(0o777)
        with acting(OWNER, "start", long) as (_, again):
            assert again.startswith("postgres /tmp/") and again != said
        assert list(directory.iterdir()) == []
        directory.rmdir()
    finally:
        taken.chmod(0o644)
        if not was_there:
            taken.unlink()


@two_users
def test_without_a_private_place_a_long_home_is_refused_and_nothing_is_made(base: Path) -> None:
    home, made = home_of(110, base), base / "tmp"
    if base.is_relative_to("/tmp"):
        pytest.skip("the home would lie in the directory that is mounted")
    made.mkdir()
    made.chmod(0o777)
    script = 'mount --bind "$0" /tmp && mount --bind "$0" /var/tmp && exec "$@"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(made)]
    with acting(OWNER, "start", home, before=command) as (process, said):
        pass
    if process.returncode:
        pytest.skip("no other /tmp can be mounted here")
    assert "DatabaseUnavailable" in said and "/tmp can be written by everybody (777)" in said
    assert "Nothing was created" in said and "at most 84 bytes" in said and "COLMLM_HOME" in said
    assert list(base.iterdir()) == [made] and list(made.iterdir()) == []


@pytest.mark.slow(reason="starts PostgreSQL as several users")
@two_users
def test_a_home_of_another_user_is_refused_with_the_cause(base: Path) -> None:
    home = owned(base / "home", OWNER)
    with acting(OWNER, "start", home), acting(STRANGER, "start", home) as (_, said):
        assert "DatabaseUnavailable" in said and f"its files are {OWNER}'s and this is {STRANGER}" in said
    with acting("root", "start", home) as (_, said):  # root runs it as its owner
        assert said.startswith("postgres /")
        assert EmbeddedServer(home / "postgres")._account().pw_name == OWNER
    with acting(OWNER, "start", home) as (_, said):
        assert said.startswith("postgres /"), said


_HIDE = """
import ctypes, os, pwd, sys, time
user, name = sys.argv[1:]
os.setgid(pwd.getpwnam(user).pw_gid); os.setuid(pwd.getpwnam(user).pw_uid)
prctl, set_name, set_dumpable = ctypes.CDLL(None).prctl, 15, 4
prctl(set_name, name.encode()); prctl(set_dumpable, 0)
print(flush=True); time.sleep(600)
"""


@contextmanager
def hidden(user: str, name: str) -> Iterator[int]:
    """The number of a user's process whose directory nobody but root may read, as of an ssh-agent."""
    with subprocess.Popen(interpreter.command("-c", _HIDE, user, name), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert psutil.Process(process.pid).name() == name
        try:
            yield process.pid
            assert process.poll() is None, "it was ended"
        finally:
            process.kill()


def note(data: Path, pid: int, started: float = 1.7e9) -> None:
    """Leave the `postmaster.pid` of a server that was killed, whose number is `pid`'s by now."""
    file = data / "postmaster.pid"
    file.write_text(f"{pid}\n{data}\n{started:.0f}\n5432\n{data}\n\n  1 2\nready\n")
    os.chown(file, data.stat().st_uid, data.stat().st_gid)


@pytest.mark.slow(reason="starts PostgreSQL as several users")
@two_users
def test_a_process_that_may_not_be_looked_at_is_neither_joined_nor_signalled(
    base: Path, tmp_path: Path
) -> None:
    """Its number is that of a killed server: the first process, and one of the server's own user."""
    data = (home := base / "home") / "postgres"
    with acting(OWNER, "start", home):
        pass
    with hidden(OWNER, "agent") as agent, hidden(OWNER, "postgres") as other_server:
        for pid in (1, agent, other_server):
            note(data, pid)
            with acting(OWNER, "stop", data) as (_, said):
                assert said == "False"
            note(data, pid)
            with acting(OWNER, "start", home) as (_, said):
                assert said == f"postgres {data}" and EmbeddedServer(data).pid() not in (None, pid)


@pytest.mark.slow(reason="starts PostgreSQL as several users")
@two_users
def test_root_that_may_not_look_at_others_processes_knows_its_server_from_others(base: Path) -> None:
    """As in a container, whose root has no `CAP_SYS_PTRACE`."""
    before, data = ("setpriv", "--bounding-set", "-sys_ptrace"), base / "home" / "postgres"
    with acting("root", "start", base / "home") as (_, said):
        server = EmbeddedServer(data).pid()
        with acting("root", "start", base / "home", before=before) as (_, again):
            assert again == said == f"postgres {data}"
        assert EmbeddedServer(data).pid() == server
        with acting("root", "stop", data, before=before) as (_, stopped):
            assert stopped == "True"
    with hidden(data.owner(), "postgres") as pid:
        note(data, pid)
        with acting("root", "stop", data, before=before) as (_, stopped):
            assert stopped == "False"


@pytest.fixture
def embedded(home: Path) -> Iterator[EmbeddedServer]:
    database.connect_database(Settings(home=home)).dispose()
    yield EmbeddedServer(home / "postgres")
    EmbeddedServer(home / "postgres").stop()


def answers(home: Path) -> bool:
    engine = database.connect_database(Settings(home=home))
    with engine.connect() as connection:
        found = bool(connection.scalar(text("SELECT true")))
    engine.dispose()
    return found


def test_a_server_of_an_earlier_release_that_trusts_everybody_is_mended_while_it_runs_and_as_it_starts(
    embedded: EmbeddedServer, home: Path
) -> None:
    everybody = "local all all trust\nhost all all 127.0.0.1/32 trust\n"
    for is_running in (True, False):
        (embedded.data / "pg_hba.conf").write_text(everybody)
        pid = embedded.pid()
        assert pid is not None
        os.kill(pid, signal.SIGHUP)
        if not is_running:
            embedded.stop()
        assert answers(home) and "trust" not in (embedded.data / "pg_hba.conf").read_text()
        engine = database.connect_database(Settings(home=home))
        with engine.connect() as connection:
            deadline = time.monotonic() + 30
            found = text("SELECT DISTINCT auth_method FROM pg_hba_file_rules")
            while (methods := list(connection.scalars(found))) != ["peer"]:
                assert time.monotonic() < deadline, methods
        engine.dispose()


def test_the_socket_stays_where_it_is_when_the_server_is_started_again(tmp_path: Path, home: Path) -> None:
    long = home.parent / ("h" * (110 - len(f"{home.parent}/"))) if len(str(home.parent)) < 100 else home
    found = []
    for _ in range(2):
        database.connect_database(Settings(home=long)).dispose()
        server = EmbeddedServer(long / "postgres")
        found.append(server.url())
        server.stop()
    assert found[0] == found[1] is not None


def test_a_lock_is_for_its_owner_alone_and_no_link_is_followed(home: Path, tmp_path: Path) -> None:
    home.mkdir()
    lock = home / "postgres.lock"
    lock.touch(0o644)
    assert answers(home) and stat.S_IMODE(lock.stat().st_mode) == 0o600
    EmbeddedServer(home / "postgres").stop()
    (kept := tmp_path / "kept").write_text("of somebody's")
    lock.unlink()
    lock.symlink_to(kept)
    with pytest.raises(DatabaseUnavailable, match=r"postgres\.lock"):
        database.connect_database(Settings(home=home))
    assert kept.read_text() == "of somebody's"


def test_files_of_a_start_that_was_killed_are_made_again(home: Path) -> None:
    (unfinished := home / "postgres.new").mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    assert answers(home) and not unfinished.exists()
    EmbeddedServer(home / "postgres").stop()


@pytest.mark.parametrize("name", ["a \"b\" $(touch c) `d`, %41 & 'e' # ü", os.fsdecode(b"caf\xe9")])
def test_a_home_with_any_characters_in_its_path_works(home: Path, name: str) -> None:
    odd = home / name
    odd.mkdir(parents=True)
    assert answers(odd) and answers(odd)
    assert EmbeddedServer(odd / "postgres").stop()


def test_rules_of_an_earlier_start_in_any_encoding_are_replaced(embedded: EmbeddedServer, home: Path) -> None:
    embedded.stop()
    (embedded.data / "pg_hba.conf").write_bytes(b"# caf\xe9\nlocal all all trust\n")
    assert answers(home) and all("peer" in rule for rule in rules(embedded.data))


def test_data_that_others_can_enter_are_closed_to_them_at_the_next_start(
    embedded: EmbeddedServer, home: Path
) -> None:
    directory = embedded.socket_directory()
    if directory != embedded.data:
        pytest.skip("the data hold no socket, since their path is long")
    embedded.data.chmod(0o750)
    assert next(iter(embedded.exposures())).path == embedded.data
    embedded.stop()
    assert answers(home) and stat.S_IMODE(embedded.data.stat().st_mode) == 0o700
    assert not any("entered" in exposure.cause for exposure in embedded.exposures())


def exposed(path: Path) -> list[str]:
    return [str(exposure) for exposure in find_exposures(path, {os.geteuid()})]


def test_each_directory_that_somebody_else_can_change_is_found(base: Path) -> None:
    place = base / "one" / "two"
    place.mkdir(parents=True)
    assert exposed(place / "missing") == []  # `base` is sticky, as /tmp
    place.parent.chmod(0o777)
    assert exposed(place) == [f"{place.parent} can be written by everybody (777)"]
    place.parent.chmod(0o1777)
    assert exposed(place) == [] and exposed(place.parent) == [
        f"{place.parent} can be written by everybody (1777)"
    ]
    (link := base / "link").symlink_to("one/../one")
    assert exposed(link / "two") == []
    place.parent.chmod(0o757)
    assert exposed(link / "two")[0].endswith("can be written by everybody (757)")


@two_users
def test_owners_and_groups_that_can_change_a_directory_are_found(base: Path) -> None:
    folder = owned(base / "theirs", STRANGER)
    assert exposed(folder) == [f"{folder} belongs to {STRANGER}"]
    (link := base / "link").symlink_to(base)
    os.chown(link, pwd.getpwnam(STRANGER).pw_uid, -1, follow_symlinks=False)
    assert exposed(link / "home") == [f"{link} belongs to {STRANGER}"]
    (shared := base / "shared").mkdir()
    shared.chmod(0o770)
    assert exposed(shared) == []  # a group of root alone
    os.chown(shared, 0, grp.getgrnam("tty").gr_gid)  # nobody is listed in it
    assert [exposure.to_group for exposure in find_exposures(shared, {0})] == [True]
    os.chown(shared, 0, pwd.getpwnam(STRANGER).pw_gid)
    (found,) = find_exposures(shared, {0})
    assert found.to_group and "its group" in found.cause and found.remedy == f"chmod g-w {shared}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of access control lists")
def test_a_directory_that_an_access_control_list_lets_others_write_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(0o700)
    user_obj, user, group_obj, mask, other, nobody = 1, 2, 4, 16, 32, 0xFFFFFFFF
    entries = (
        (user_obj, 7, nobody),
        (user, 7, 65534),
        (group_obj, 0, nobody),
        (mask, 7, nobody),
        (other, 0, nobody),
    )
    granted = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_access", granted)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    assert exposed(folder / "new") == [f"{folder} can be written through its access control list (770)"]
    folder.chmod(0o750)  # the remedy
    assert exposed(folder / "new") == []
