"""Corpora of a knowledge base elsewhere: counted, given back, taken in and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from colmlm.api.client.client import Client
from colmlm.api.client.connection import Connection
from colmlm.kb.corpus.format import read_annotated
from colmlm.kb.corpus.raw.blocks import RawAddition
from colmlm.kb.corpus.raw.files import find_files
from tests.cli.conftest import OPENING, Annotators, invoke
from tests.cli.elsewhere import WHY, There, pruned, working
from tests.kb.corpora import ingest, numbered


def test_a_corpus_is_counted_given_back_and_deleted_there(
    there: There, facts: list[int], tmp_path: Path
) -> None:
    there.kb.facts.edit(facts[0], "Cusco\u2028", actor="ann", reason="a separator of lines")
    there.same("corpus", "list")
    there.same("corpus", "list", "atlas")
    for options in ((), ("--live-only",)):
        here, answer = (run("corpus", "export", "atlas", *options) for run in (invoke, there.run))
        assert here.out == answer.out and '"peru"' in here.out
    file = tmp_path / "atlas.jsonl"
    assert there.run("corpus", "export", "none", "--output", file).code == 3 and not file.exists()
    there.same("corpus", "delete", "atlas", "--dry-run")
    gone = there.run("corpus", "delete", "atlas", *WHY, "--yes", "--json").json
    assert invoke("facts", "restore", *facts, *WHY).code == 0
    here = invoke("corpus", "delete", "atlas", *WHY, "--yes", "--json").json
    assert {**gone, "seq": 0} == {**here, "seq": 0} and gone["fact_ids"] == facts
    there.same("corpus", "delete", "atlas", *WHY, "--yes")  # nothing is left to delete
    assert "--document" in there.run("corpus", "delete", "atlas", "--document", "peru", "--dry-run").err
    assert "'train'" in there.run("corpus", "export", "atlas", role="operator").err


@pytest.mark.slow(reason="types many commands here and against a server")
def test_answers_are_calibrated_there_as_here(there: There, facts: list[int], tmp_path: Path) -> None:
    file = tmp_path / "asked.csv"
    lines = (f'"Number {number}, what is the capital of Peru?",Lima\n' for number in range(40))
    file.write_text("question,value\n" + "".join(lines))
    ingest(
        there.kb, *numbered(1)
    )  # each question is asked once more without its document, so another has to be there
    calibrate = ("questions", "threshold", "--calibrate", "--file", file, "--wrong", 0.2, "--json")
    with working(there.kb):
        done = there.run(*calibrate, role="operator")
        few = there.run(*calibrate, "--sample", 3)
        assert few.code == 1 and "takes 8 questions with an answer" in few.err
    here = invoke(*calibrate, "--dry-run").json
    assert pruned(here, ("seconds", "seq", "dry_run")) == pruned(done.json, ("seconds", "seq", "dry_run"))
    assert there.same("questions", "threshold")["calibration"]["seq"] == done.json["seq"]
    there.run("questions", "threshold", "--shipped")
    assert there.same("questions", "threshold")["calibrated"] is False
    assert "--actor" in there.run(*calibrate, "--actor", "ann").err


@pytest.mark.slow(reason="types many commands here and against a server")
def test_files_are_uploaded_and_taken_in_there(
    there: There, facts: list[int], annotated: Path, light: Annotators, tmp_path: Path
) -> None:
    annotated.write_text(annotated.read_text() + '{"id": "bad"}\n')
    raw = tmp_path / "raw"
    (raw / "deep").mkdir(parents=True)
    (raw / "harbour.md").write_text("# Harbour\n\nThe harbour opened in 1834.\n")
    ingest = ("corpus", "add", annotated, "--format", "annotated", "--json")
    add = ("corpus", "add", raw, "--json", "--questions")
    with working(there.kb):
        there_ingest = there.run(*ingest, "--corpus", "there", role="operator")
        there_add = there.run(*add, "--corpus", "raw there", role="operator")
        again = there.run(*add, "--corpus", "raw there").json
        spoken = there.run("corpus", "add", raw, "--corpus", "raw there")
    here_ingest, here_add = invoke(*ingest, "--corpus", "here"), invoke(*add, "--corpus", "raw here")
    assert there_ingest.code == here_ingest.code == 3, there_ingest.err
    # A job's result does not quote what it refuses, and what was taken in first is what the second says again.
    volatile = ("corpus", "seq", "reason", "duplicates")
    assert pruned(there_ingest.json, volatile) == pruned(here_ingest.json, volatile)
    told, known = there_add.json, here_add.json
    assert told.keys() == known.keys() and there_add.code == here_add.code == 0
    for name in ("documents", "new", "changed", "unchanged", "facts", "rejected", "refused", "citable"):
        assert told[name] == known[name], name
    assert told["facts"] == 1 and told["citable"] and again["unchanged"] == 1 and again["seq"] is None
    assert told["try"] == f"colmlm ask '{OPENING}' --server {there.address}"
    assert "1 there already" in spoken.out and "Nothing to add" in spoken.out
    (raw / "deep" / "harbour.md").write_text("Another harbour opened in 1910.")
    twice = there.run(*add, "--corpus", "raw there")
    assert twice.code == 2 and "harbour.md" in twice.err and twice.err.count("\n") == 1
    assert "--allow-erased" in there.run(*add, "--corpus", "x", "--allow-erased").err
    assert "--format" in there.run(*ingest[:3], "--format", "rel-lmlm", "--corpus", "x").err
    assert len(list(read_annotated(annotated))) == 2


def test_no_file_outside_a_folder_is_uploaded(there: There, tmp_path: Path) -> None:
    for folder in (tmp_path / "raw" / "in", tmp_path / "outside"):
        folder.mkdir(parents=True)
        (folder / "a.txt").write_text(f"In {folder.name}.")
    found = find_files([tmp_path / "raw"])
    (tmp_path / "raw" / "in").rename(tmp_path / "was")
    (tmp_path / "raw" / "in").symlink_to(tmp_path / "outside")
    with Client(Connection(there.address, there.tokens["admin"].read_text().strip())) as client:
        done = client.corpora.add(found, "raw there", RawAddition(), actor="", reason="a test")
    assert (done["documents"], [one["document"] for one in done["refusals"]]) == (0, ["in/a.txt"])
    uploads = there.kb.settings.home / "uploads"
    assert not uploads.exists() or list(uploads.rglob("a.txt")) == []
