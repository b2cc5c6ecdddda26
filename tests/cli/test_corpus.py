from __future__ import annotations

import json
from pathlib import Path

import pytest

from kb.corpus import read_annotated, to_record
from tests.cli.conftest import Run, document

INGEST = ("corpus", "ingest")
INTO = ("--format", "annotated", "--corpus", "atlas")


def write(file: Path, *records: object) -> Path:
    file.write_text(
        "".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records), encoding="utf-8"
    )
    return file


def test_a_sound_file_is_taken_whole(run: Run, annotated: Path) -> None:
    ran = run(*INGEST, annotated, *INTO, "--json")
    assert ran.code == 0
    assert (ran.json["documents"], ran.json["facts"], ran.json["refused"]) == (1, 2, 0)
    assert run("corpus", "stats", "atlas", "--json").json["facts"] == 2


def test_what_is_refused_is_listed_and_the_rest_is_taken(run: Run, tmp_path: Path) -> None:
    wrong = to_record(document("wrong"))
    wrong["facts"][0]["value"] = "Quito"
    file = write(tmp_path / "mixed.jsonl", to_record(document()), wrong, "{not json")
    ran = run(*INGEST, file, *INTO, "--json")
    assert ran.code == 3
    assert (ran.json["documents"], ran.json["facts"], ran.json["refused"]) == (2, 3, 2)
    first, second = ran.json["refusals"]
    assert (first["document"], first["offset"]) == ("wrong", wrong["facts"][0]["start"])
    assert "not verbatim" in first["reason"] and second["document"] == "mixed.jsonl:3"


def test_refusals_are_shown_to_people_too(run: Run, tmp_path: Path) -> None:
    ran = run(*INGEST, write(tmp_path / "bad.jsonl", "[]"), *INTO)
    assert ran.code == 3 and "bad.jsonl:1" in ran.out


def test_ingesting_again_changes_nothing(run: Run, atlas: list[int], annotated: Path) -> None:
    again = run(*INGEST, annotated, *INTO, "--json")
    assert again.code == 0
    assert (again.json["documents"], again.json["unchanged"], again.json["seq"]) == (0, 1, None)


def test_a_dry_run_reports_the_same_and_keeps_nothing(run: Run, annotated: Path) -> None:
    tried = run(*INGEST, annotated, *INTO, "--dry-run", "--json").json
    assert tried.pop("dry_run") and tried["seq"] is None
    assert run("corpus", "list", "--json").json["corpora"] == []
    assert run("changes", "--json").json["changes"] == []
    taken = run(*INGEST, annotated, *INTO, "--json").json
    assert {**tried, "seq": taken["seq"], "dry_run": False} == taken


def test_a_dry_run_finds_what_only_the_knowledge_base_refuses(run: Run, tmp_path: Path) -> None:
    twice = write(tmp_path / "twice.jsonl", to_record(document()), to_record(document()))
    ran = run(*INGEST, twice, *INTO, "--dry-run", "--json")
    assert ran.code == 3 and "second document" in ran.json["refusals"][0]["reason"]


def test_squad_is_read_in_its_own_format(run: Run, tmp_path: Path) -> None:
    paragraph = {"context": "The capital of Peru is Lima.", "qas": [{
        "question": "What is the capital of Peru?", "answers": [{"text": "Lima", "answer_start": 23}]
    }]}  # fmt: skip
    file = write(tmp_path / "dev.json", {"data": [{"title": "Peru", "paragraphs": [paragraph]}]})
    ran = run(*INGEST, file, "--format", "squad", "--corpus", "squad", "--json")
    assert ran.code == 0 and ran.json["facts"] == 1


@pytest.mark.parametrize("format_", ["annotated", "squad"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_a_binary_file_is_refused_without_a_traceback(
    run: Run, tmp_path: Path, format_: str, name: str
) -> None:
    file = tmp_path / name
    file.write_bytes(bytes(range(256)) * 40)
    ran = run(*INGEST, file, "--format", format_, "--corpus", "x")
    assert ran.code in (2, 3)
    assert run("corpus", "list", "--json").json["corpora"] == []


def test_a_file_of_the_other_format_is_refused(run: Run, annotated: Path) -> None:
    ran = run(*INGEST, annotated, "--format", "squad", "--corpus", "x", "--json")
    assert ran.code == 3 and ran.json["documents"] == 0


def test_an_export_is_what_was_taken_in(run: Run, atlas: list[int], tmp_path: Path) -> None:
    exported = tmp_path / "out.jsonl"
    assert run("corpus", "export", "atlas", "--output", exported).code == 0
    assert [parsed.document for parsed in read_annotated(exported)] == [document()]
    assert run("corpus", "export", "atlas").out == exported.read_text(encoding="utf-8")


def test_exporting_an_unknown_corpus_leaves_no_file(run: Run, tmp_path: Path) -> None:
    ran = run("corpus", "export", "nowhere", "--output", tmp_path / "out.jsonl")
    assert ran.code == 3 and list(tmp_path.glob("out*")) == []


def test_an_export_that_cannot_be_written_is_one_line(run: Run, atlas: list[int], tmp_path: Path) -> None:
    ran = run("corpus", "export", "atlas", "--output", tmp_path / "missing" / "out.jsonl")
    assert ran.code == 2 and ran.err.startswith("error: ") and ran.err.count("\n") == 1
