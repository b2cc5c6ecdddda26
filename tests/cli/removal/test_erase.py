"""`colmlm erase` and `colmlm erase scan`, on the server that other tests share: so without --now."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from sqlalchemy import NullPool, create_engine, text

from colmlm.cli.composition.runtime import Runtime
from colmlm.kb.evidence.records import NewOutput
from colmlm.kb.facts.redaction import MARK
from tests.cli.conftest import QUESTIONS, TEXT, Run

BECAUSE = ("--reason", "request of the person")


@pytest.mark.slow(reason="rewrites the files of a base")
def test_erase_says_what_it_did_and_how_far_it_got(
    run: Run, keyed_here: list[int], annotated: Path, tmp_path: Path
) -> None:
    lima, titicaca = keyed_here
    traces = tmp_path / "traces.json"
    assert run("erase", "scan", "--text", f"capital of Peru is {'Lima'}").code == 1

    ran = run("erase", lima, *BECAUSE, "--traces-out", traces, "--scan", "--yes", "--json")

    said = ran.json
    assert ran.code == 1  # level 2 leaves dead rows, and the scan sees them
    assert (said["fact_ids"], said["keys"], said["level"]) == ([lima], 1, 2)
    assert [level["state"] for level in said["levels"]] == ["reached", "reached", "left", "left"]
    before, after = said["residue"]["before"]["found"], said["residue"]["after"]["found"]
    assert before["snapshots"] == 1 and after["snapshots"] == 0
    assert before["heap"] and after["heap"] and said["levels"][2]["remedy"] == "Run: colmlm erase --now"
    assert traces.stat().st_mode & 0o777 == 0o600
    scanned = run("erase", "scan", "--traces", traces, "--json")
    assert (scanned.code, scanned.json["num_found"]) == (1, said["residue"]["after"]["num_found"])

    shown = run("facts", "show", lima)
    assert MARK * 4 in shown.out and f"erased by change {said['seq']}" in shown.out
    assert run("facts", "restore", lima, *BECAUSE).code == 4
    again = run("corpus", "add", annotated, "--format", "annotated", "--corpus", "atlas")
    assert again.code == 0 and "1 were there already" in again.out and "--allow-erased" in again.out
    back = run(
        "corpus",
        "add",
        annotated,
        "--format",
        "annotated",
        "--corpus",
        "atlas",
        "--allow-erased",
        "--json",
    )
    assert (back.json["replaced"], back.json["suppressed"]) == (1, 0)
    assert titicaca in {fact["fact_id"] for fact in run("facts", "list", "--all", "--json").json["facts"]}


def test_a_dry_run_changes_nothing(run: Run, atlas: list[int]) -> None:
    said = run("erase", *atlas, "--dry-run", "--json").json
    assert [fact["value"] for fact in said["facts"]] == list(QUESTIONS)
    assert (said["dry_run"], len(said["documents"])) == (True, 1)
    assert "2 facts in 1 text," in run("erase", *atlas, "--dry-run").out
    assert run("erase", "facts", *atlas, "--dry-run", "--json").json == said
    assert len(run("facts", "list", "--json").json["facts"]) == 2


def test_what_else_says_it_is_named_by_table_and_column(run: Run, atlas: list[int]) -> None:
    assert run("tokens", "create", "lima", "--role", "reader").code == 0
    assert "column name of table api_key, in 1 row: 1" in run("erase", atlas[0], "--dry-run").out
    (found,) = run("erase", atlas[0], "--dry-run", "--json").json["left"]["rows"]
    assert found == {"table": "api_key", "column": "name", "num_rows": 1, "ids": [1]}


def test_erase_without_what_it_needs_is_refused(run: Run, subtests: pytest.Subtests) -> None:
    for words, said in (
        ((), "name facts"),
        ((1,), "say why"),
        ((1, *BECAUSE), "nobody to ask"),
        (("--dry-run",), "name facts"),
        (("--now", "--traces-out", "x"), "name facts"),
    ):
        with subtests.test(words=words, said=said):
            ran = run("erase", *words)
            assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1


def test_erasing_an_erased_fact_again_changes_nothing_where_nothing_says_it(
    run: Run, atlas: list[int]
) -> None:
    seq = run("erase", atlas[0], *BECAUSE, "--yes", "--json").json["seq"]
    ran = run("erase", atlas[0], *BECAUSE, "--yes")
    assert ran.code == 0 and "nothing was changed" in ran.out
    both = run("erase", *atlas, *BECAUSE, "--yes", "--json").json
    assert (both["seq"], both["fact_ids"], both["again"]) == (seq + 1, atlas, [atlas[0]])
    assert run("erase", 999, *BECAUSE, "--yes").code == 3


def test_what_was_stored_since_is_not_said_to_be_searched(run: Run, atlas: list[int]) -> None:
    before, since = (
        NewOutput(f"{when}, is it Lima?", "Yes.", "fake", "auto", 1, ()) for when in ("Before", "Since")
    )
    with Runtime.from_environment() as runtime:
        first = runtime.kb.outputs.record(before)
    preview = run("erase", atlas[0], "--dry-run").out
    assert f"stands in output {first}." in preview
    erased = run("erase", atlas[0], *BECAUSE, "--mentions", "all", "--yes").out
    assert "1 output," in erased and "--now alone" not in erased
    with Runtime.from_environment() as runtime:
        last = runtime.kb.outputs.record(replace(since, seq=runtime.kb.log.head_seq()))
    again = run("erase", atlas[0], *BECAUSE, "--mentions", "all", "--yes").out
    assert "Lima" not in run("trace", "output", first).out and "Lima" in run("trace", "output", last).out
    assert "nothing says it still" not in again and "stored since, were not searched" in again
    assert "--now alone" in again  # it looked at level 2 only
    marked = ("--question", "Which city is it?", "--value", "Lima", "--no-key", *BECAUSE)
    added = run("facts", "add", *marked, "--json").json["fact_ids"]
    assert "1 output," in run("erase", *added, *BECAUSE, "--yes").out
    assert "Lima" not in run("trace", "output", last).out


def test_residue_is_named_by_file_as_the_cause_of_the_exit_code(
    run: Run, atlas: list[int], home: Path
) -> None:
    saved = home / "saved.txt"
    home.mkdir(exist_ok=True)
    saved.write_text(TEXT + "".join(QUESTIONS.values()))
    with ZipFile(home / "base.backup", "w") as backup:
        backup.writestr("document", TEXT)
    ran = run("erase", atlas[0], *BECAUSE, "--scan", "--yes")
    assert ran.code == 1 and f"{saved} " in ran.out
    assert "Exit code 1: residue in /" in ran.err
    assert f"Not seen: {home / 'base.backup'}: a backup or another ZIP" in ran.out


def test_a_certificate_is_checked_elsewhere_by_the_commands_that_were_printed_with_it(
    run: Run, atlas: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seq = run("erase", atlas[0], *BECAUSE, "--yes", "--json").json["seq"]
    printed = run("erase", "certificate", seq, "--output", "FILE").err
    here, export, elsewhere = re.findall(r"colmlm (log [^`\n]+)", printed)
    assert run(*here.split()).out.startswith("ok") and run(*export.split()).code == 0
    monkeypatch.setenv("COLMLM_HOME", str(empty := tmp_path / "empty"))
    monkeypatch.delenv("COLMLM_DATABASE_URL")
    ran = run(*elsewhere.split())
    assert ran.code == 0 and "this base" not in ran.out and not (empty / "postgres").exists()
    assert "outputs redacted: none; mentions: same-document" in ran.out


def test_a_scan_for_nothing_or_too_little_is_refused(run: Run, tmp_path: Path) -> None:
    no_traces = tmp_path / "no.json"
    no_traces.write_text("[]")
    for words in (
        (),
        ("--text", "Lima"),
        ("--traces", no_traces),
        ("--traces", no_traces, "--text", "long enough"),
    ):
        assert run("erase", "scan", *words).code == 2
    assert "Invalid text to search for: files hold" in (said := run("erase", "scan", "--text", "Lima").err)
    assert "'Lima'" in said
    assert run("erase", "scan", "--text", "nobody ever wrote this down anywhere").code == 0


@pytest.mark.slow(reason="rewrites the files of a base")
def test_an_erasure_that_does_not_reach_its_level_exits_with_a_failing_code(
    run: Run, keyed_here: list[int], database_url: str
) -> None:
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.connect() as reader:
        reader.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        pid = reader.scalar(text("SELECT pg_backend_pid()"))
        ran = run("erase", keyed_here[0], *BECAUSE, "--now", "--yes", "--json")
        assert (ran.code, ran.json["level"], ran.json["asked_level"]) == (1, 2, 4)
        assert f"process {pid} " in ran.json["levels"][2]["left"] and "level 2 is reached" in ran.err
        again = run("erase", "--now")
        assert again.code == 1 and "Level 2 of 4 is reached" in again.out
    share_elsewhere(database_url)
    ran = run("erase", keyed_here[1], *BECAUSE, "--yes", "--json")
    assert (ran.code, ran.json["level"], ran.json["asked_level"]) == (1, 1, 2)
    with engine.begin() as connection:
        connection.execute(text("UPDATE keyset SET shared_snapshot = NULL"))
    assert run("erase", keyed_here[1], *BECAUSE, "--yes").code == 0


def share_elsewhere(url: str) -> None:
    """Have the database name a snapshot where this process cannot look, which keeps erasures from level 2."""
    snapshot = """jsonb_build_object('file', 'x', 'sha256', 'x', 'num_bytes', 1, 'spec', 'flat', 'count', 1,
                  'applied_seq', 1, 'log_hash', 'x', 'place', 'elsewhere')"""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"UPDATE keyset SET shared_snapshot = {snapshot}"))
