from __future__ import annotations

import os
from pathlib import Path

import pyrage
import pytest
from sqlalchemy import URL

from tests.cli.conftest import Run
from tests.servers import clone


def test_a_base_moves_house_without_what_was_erased_since(
    run: Run, atlas: list[int], server: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log = tmp_path / "monday.backup", tmp_path / "log.jsonl"
    keys = tmp_path / "then.keys"
    made = run("backup", "create", file, "--keys", keys, "--json").json
    key = made["key"]
    assert made["key_file"] == str(keys) and made["is_sealed"] and not made["is_encrypted"]
    assert made["rows"]["fact"] == 2
    assert run("backup", "create", file).code == 2
    assert run("backup", "verify", file).out.startswith("ok")
    run("erase", atlas[0], "--reason", "request of the person", "--yes")
    run("log", "export", "--changes", "--output", log)
    assert run("backup", "restore", file, "--change-log", log).code == 4
    with clone(server) as url:
        monkeypatch.setenv("COLMLM_DATABASE_URL", url)
        monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "new"))
        assert run("backup", "restore", file, "--reapply-deletes").code == 2
        refused = run("backup", "restore", file, "--change-log", log)
        assert refused.code == 1 and "--key any" in refused.err and key in refused.err
        unsealed = run("backup", "restore", file, "--change-log", log, "--key", key)
        assert unsealed.code == 1 and "--keys" in unsealed.err
        there = ("backup", "restore", file, "--keys", keys, "--change-log", log)
        dry = run(*there, "--key", "any", "--dry-run", "--json").json
        assert dry["dry_run"] and dry["erased_again"] == [atlas[0]]
        assert run("facts", "list", "--json").json["facts"] == []
        restored = run(*there, "--key", key).out
        assert "erased again: 1 (1)" in restored and "up to change 2, from log.jsonl" in restored
        assert [fact["fact_id"] for fact in run("facts", "list", "--json").json["facts"]] == atlas[1:]
        assert run("doctor", "--data").code == 0
    file.write_bytes(file.read_bytes()[:-1])
    damaged = run("backup", "verify", file, "--json")
    assert damaged.code == 1 and damaged.err.count("\n") == 1 and damaged.out == ""


def test_a_restore_without_the_newer_log_must_be_meant(
    run: Run, atlas: list[int], server: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log = tmp_path / "monday.backup", tmp_path / "log.jsonl"
    keys = tmp_path / "then.keys"
    made = run("backup", "create", file, "--keys", keys, "--json")
    assert "log export --changes" in made.err
    run("erase", atlas[0], "--reason", "request of the person", "--yes")
    run("log", "export", "--changes", "--output", log)
    with clone(server) as url:
        monkeypatch.setenv("COLMLM_DATABASE_URL", url)
        monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "new"))
        refused = run("backup", "restore", file, "--key", "any")
        assert (
            refused.code == 4 and "--change-log" in refused.err and "--without-later-erasures" in refused.err
        )
        dry = run("backup", "restore", file, "--keys", keys, "--key", "any", "--dry-run", "--json")
        assert dry.code == 4 and not dry.json["ok"] and "--change-log" in dry.err
        assert run("backup", "restore", file, "--change-log", log, "--key", "0" * 16).code == 1
        assert run("backup", "restore", file, "--change-log", log, "--without-later-erasures").code == 2
        assert run("backup", "restore", file, "--without-later-erasures").code == 2  # nobody to ask
        assert run("facts", "list", "--json").json["facts"] == []
        lost = (file, "--keys", keys, "--key", "any", "--without-later-erasures", "--yes", "--json")
        back = run("backup", "restore", *lost).json
        assert back["without_later_erasures"] and back["log_head"] is None and back["repeated"] == []
        assert [fact["fact_id"] for fact in run("facts", "list", "--json").json["facts"]] == atlas
    assert run("backup", "verify", file, "--key", made.json["key"]).code == 0
    assert run("backup", "verify", file, "--key", "0" * 16).code == 1


def test_an_encrypted_backup_is_restored_with_the_keys_of_today_and_shows_what_is_gone(
    run: Run, atlas: list[int], server: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, person = tmp_path / "identity.txt", pyrage.x25519.Identity.generate()
    identity.write_text(f"{person}\n")
    file, log = tmp_path / "monday.backup", tmp_path / "log.jsonl"
    assert run("backup", "create", file, "--recipient", "nobody").code == 1 and not file.exists()
    made = run("backup", "create", file, "--recipient", str(person.to_public()), "--json").json
    assert made["is_encrypted"] and made["key_file"] == str(Path(os.environ["COLMLM_HOME"]) / "sealing.keys")
    assert run("backup", "verify", file).code == 1
    assert "encrypted, texts sealed" in run("backup", "verify", file, "--identity", identity).out
    run("erase", atlas[0], "--reason", "request of the person", "--yes")
    run("log", "export", "--changes", "--output", log)
    with clone(server) as url:
        monkeypatch.setenv("COLMLM_DATABASE_URL", url)
        monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "new"))
        here = (
            "backup",
            "restore",
            file,
            "--keys",
            made["key_file"],
            "--change-log",
            log,
            "--key",
            made["key"],
        )
        assert "--identity" in run(*here).err
        restored = run(*here, "--identity", identity)
        assert restored.code == 0 and "sealed, its key was destroyed: document 1 (1)" in restored.out
        assert run("facts", "list", "--json").json["facts"] == [], "both facts were of that document"
        assert run("doctor", "--data").code == 0
