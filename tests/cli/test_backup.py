from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.cli.conftest import Run
from tests.conftest import clone


def test_a_base_moves_house_without_what_was_erased_since(
    run: Run, atlas: list[int], server: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, log = tmp_path / "monday.backup", tmp_path / "log.jsonl"
    assert run("backup", "create", file, "--json").json["rows"]["fact"] == 2
    assert run("backup", "create", file).code == 2
    assert run("backup", "verify", file).out.startswith("ok")
    run("erase", atlas[0], "--reason", "request of the person", "--yes")
    run("audit", "export", "--log", "--output", log)
    assert run("backup", "restore", file).code == 4
    with clone(server) as url:
        monkeypatch.setenv("COLMLM_DATABASE_URL", url)
        monkeypatch.setenv("COLMLM_HOME", str(tmp_path / "new"))
        assert run("backup", "restore", file, "--reapply-deletes").code == 2
        dry = run("backup", "restore", file, "--change-log", log, "--dry-run", "--json").json
        assert dry["dry_run"] and dry["erased_again"] == [atlas[0]]
        assert run("facts", "list", "--json").json["facts"] == []
        assert "erased again: 1 (1)" in run("backup", "restore", file, "--change-log", log).out
        assert [fact["fact_id"] for fact in run("facts", "list", "--json").json["facts"]] == atlas[1:]
        assert run("fsck").code == 0
    file.write_bytes(file.read_bytes()[:-1])
    damaged = run("backup", "verify", file, "--json")
    assert damaged.code == 1 and damaged.err.count("\n") == 1 and damaged.out == ""
