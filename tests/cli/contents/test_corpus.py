from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import pytest

from colmlm.kb import interpreter
from colmlm.kb.corpus.format import read_annotated, to_record
from tests.cli.conftest import TEXT, Run, document
from tests.gates import full_disk
from tests.places import ROOT

INGEST = ("corpus", "add")
INTO = ("--format", "annotated", "--corpus", "atlas")


def popen(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        interpreter.command("-m", "colmlm.cli", *words), stdout=subprocess.PIPE, cwd=ROOT, text=True
    )


def write(file: Path, *records: object) -> Path:
    file.write_text(
        "".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records), encoding="utf-8"
    )
    return file


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


def test_marked_facts_are_recognised_and_taken_as_they_are(run: Run, annotated: Path, tmp_path: Path) -> None:
    into = ("--corpus", "x", "--json")
    assert run(*INGEST, annotated, *into, "--dry-run").json["facts"] == 2
    other = tmp_path / "notes.txt"
    other.write_text("Lima lies by the sea.")
    for words, says in (
        ((annotated, other), "add it alone"),
        ((annotated, "--questions"), "marked already"),
        ((other, "--commit-every", 5), "marked facts"),
        ((annotated, other, "--format", "squad"), "one file"),
    ):
        refused = run(*INGEST, *words, *into)
        assert refused.code == 2 and says in refused.err, refused
    assert run(*INGEST, annotated, *into).json["refused"] == 0
    inline = write(tmp_path / "inline.jsonl", '{"id": "cat", "text": "Its name is <FACT>Miso</FACT>."}')
    assert run(*INGEST, inline, *into).json["facts"] == 1


def test_refusals_are_shown_to_people_too(run: Run, tmp_path: Path) -> None:
    ran = run(*INGEST, write(tmp_path / "bad.jsonl", "[]"), *INTO)
    assert ran.code == 3 and "bad.jsonl:1" in ran.out


def test_a_dry_run_reports_the_same_and_keeps_nothing(run: Run, annotated: Path) -> None:
    tried = run(*INGEST, annotated, *INTO, "--dry-run", "--json").json
    assert tried.pop("dry_run") and tried["seq"] is None
    assert run("corpus", "list", "--json").json["corpora"] == []
    assert run("log", "list", "--json").json["changes"] == []
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


def test_a_binary_file_is_refused_without_a_traceback(
    run: Run, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for format_, name in product(("annotated", "parquet", "squad"), ("x.jsonl", "x.json")):
        with subtests.test(format_=format_, name=name):
            file = tmp_path / name
            file.write_bytes(bytes(range(256)) * 40)
            ran = run(*INGEST, file, "--format", format_, "--corpus", "x")
            assert ran.code in (2, 3)
            assert run("corpus", "list", "--json").json["corpora"] == []


def test_an_export_is_what_was_taken_in(run: Run, atlas: list[int], tmp_path: Path) -> None:
    exported = tmp_path / "out.jsonl"
    assert run("corpus", "export", "atlas", "--output", exported).code == 0
    assert [parsed.document for parsed in read_annotated(exported)] == [document()]
    assert run("corpus", "export", "atlas").out == exported.read_text(encoding="utf-8")


def test_an_export_that_cannot_be_written_is_one_line(run: Run, atlas: list[int], tmp_path: Path) -> None:
    ran = run("corpus", "export", "atlas", "--output", tmp_path / "missing" / "out.jsonl")
    assert ran.code == 2 and ran.err.startswith("error: ") and ran.err.count("\n") == 1


def test_an_export_holds_corrections_and_deletions_in_either_format(
    run: Run, atlas: list[int], tmp_path: Path
) -> None:
    run("facts", "edit", atlas[0], "--value", "Cusco", "--reason", "test")
    run("facts", "delete", atlas[1], "--reason", "test", "--yes")
    lines, columns = tmp_path / "x.jsonl", tmp_path / "x.parquet"
    assert run("corpus", "export", "atlas", "-o", lines).code == 0
    assert run("corpus", "export", "atlas", "-o", columns, "--format", "parquet").code == 0
    first, second = json.loads(lines.read_text(encoding="utf-8"))["facts"]
    assert first["current"] == "Cusco" and second["deleted"] is True
    (live,) = map(json.loads, run("corpus", "export", "atlas", "--live-only").out.splitlines())
    assert live["facts"] == []
    again = run(*INGEST, columns, "--format", "parquet", "--corpus", "atlas", "--json").json
    assert (again["unchanged"], again["still_deleted"], again["seq"]) == (1, 1, None)
    other = run(*INGEST, columns, "--format", "parquet", "--corpus", "other", "--json").json
    assert (other["documents"], other["facts"], other["refused"]) == (1, 2, 0)
    exported = run("corpus", "export", "other").out
    assert exported == lines.read_text(encoding="utf-8")
    assert run("corpus", "export", "atlas", "--format", "parquet").code == 2
    named = tmp_path / "y.parquet"
    assert run("corpus", "export", "atlas", "-o", named).code == 0
    assert named.read_bytes() == columns.read_bytes()


def test_an_exported_dataset_is_loaded_by_the_hubs_library(
    run: Run, atlas: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("facts", "edit", atlas[0], "--value", "Cusco", "--reason", "test")
    folder = tmp_path / "dataset"
    assert run("corpus", "export", "atlas", "--format", "dataset", "-o", folder).code == 0
    from datasets import load_dataset  # which takes a second to import

    loaded = load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    (line,) = map(json.loads, run("corpus", "export", "atlas").out.splitlines())
    (row,) = loaded
    assert {name: value for name, value in row.items() if name != "facts" and value is not None} == {
        name: value for name, value in line.items() if name != "facts"
    }
    assert [{n: v for n, v in fact.items() if v is not None} for fact in row["facts"]] == [
        {n: v for n, v in fact.items() if v is not None} for fact in line["facts"]
    ]
    first = row["facts"][0]
    assert row["text"][first["start"] : first["end"]] == first["value"] and first["current"] == "Cusco"
    assert "1 document with 2 facts" in (folder / "README.md").read_text(encoding="utf-8")
    again = run("corpus", "export", "atlas", "--format", "dataset", "-o", folder)
    assert again.code == 2 and again.err.count("\n") == 1


def test_what_is_no_parquet_file_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    file.write_bytes(b"PAR1" + bytes(200) + b"PAR1")
    ran = run(*INGEST, file, "--format", "parquet", "--corpus", "x", "--json")
    (refusal,) = ran.json["refusals"]
    assert ran.code == 3 and refusal["document"] == "x.parquet" and "not a Parquet file" in refusal["reason"]


def test_an_ingest_that_is_cut_off_says_how_far_it_came_and_goes_on(
    run: Run, database_url: str, tmp_path: Path
) -> None:
    records = [to_record(document(f"d{n}")) for n in range(5)]
    file = write(tmp_path / "five.jsonl", *records)
    with full_disk(database_url, "INSERT ON document", "NEW.external_id = 'd4'"):
        ran = run(*INGEST, file, *INTO, "--commit-every", 2)
    assert ran.code == 9 and "4 documents are in 'atlas'. Run the same command again" in ran.err
    ran = run(*INGEST, file, *INTO, "--commit-every", 2)
    assert ran.code == 0 and "Took 1 document with" in ran.out and "4 were there already" in ran.out


def test_documents_are_deleted_after_a_count_and_stay_deleted(
    run: Run, atlas: list[int], annotated: Path
) -> None:
    delete = ("corpus", "delete", "atlas", "--document", document().external_id)
    dry = run(*delete, "--dry-run", "--json").json
    assert (dry["dry_run"], dry["documents"], dry["facts"]) == (True, 1, 2)
    assert "Would delete 2 live facts in 1 document of 'atlas'." in run(*delete, "--dry-run").out
    assert run(*delete, "--reason", "test").code == 2 and run(*delete, "--yes").code == 2
    assert run("corpus", "delete", "atlas", "--document", "no", "--reason", "x", "--yes").code == 3
    assert run("corpus", "list", "atlas", "--json").json["facts"] == 2
    done = run(*delete, "--reason", "test", "--yes", "--json").json
    assert done["fact_ids"] == atlas and done["seq"]
    assert "No live fact" in run("corpus", "delete", "atlas", "--reason", "test", "--yes").out
    assert "2 facts that the file names were deleted here" in run(*INGEST, annotated, *INTO).out
    assert run("facts", "restore", *atlas, "--reason", "test").code == 0
    assert "deleted 2 live facts in 1 document" in run("corpus", "delete", "atlas", "--reason", "x", "-y").out


def test_texts_with_dblookup_calls_become_facts_by_entity_and_relation(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    marked = "Ann is a [dblookup('Ann', 'Job') -> poet] poet."
    file.write_text(json.dumps({"examples": [{"annotated_text": marked}, {"annotated_text": "[dblookup("}]}))
    ran = run("corpus", "add", file, "--format", "rel-lmlm", "--corpus", "calls", "--json")
    assert ran.code == 3 and (ran.json["documents"], ran.json["facts"], ran.json["refused"]) == (1, 1, 1)
    (fact,) = run("facts", "list", "--json").json["facts"]
    assert (fact["question"], fact["value"]) == ("Ann\nJob", "poet")
    assert run("corpus", "export", "calls", "--live-only").out.count("\n") == 1


def test_a_quiz_asks_for_each_fact_and_answers(run: Run, atlas: list[int]) -> None:
    ran = run("corpus", "export", "atlas", "--live-only", "--quiz")
    quiz = [json.loads(line) for line in ran.out.splitlines()]
    assert [record["id"] for record in quiz] == ["peru/0", "peru/1"]
    for record in quiz:
        (fact,) = record["facts"]
        assert fact["question"] in record["text"] and record["text"].endswith(fact["value"])
        assert record["text"][fact["start"] : fact["end"]] == fact["value"]
    assert run("corpus", "export", "atlas", "--quiz").code == 2


@pytest.mark.slow(reason="ingests in several processes")
def test_several_processes_ingest_into_one_corpus_at_once(run: Run, tmp_path: Path) -> None:
    many = [document(f"d{n}", f"{n}: {TEXT}") for n in range(300)]
    files = [
        write(tmp_path / f"{first}.jsonl", *(to_record(one) for one in many[first : first + 150]))
        for first in (0, 75, 150)  # each document of the middle file is in another one, too
    ]
    more = ("--commit-every", 10, "--json")
    with ExitStack() as running:
        started = [running.enter_context(popen(*INGEST, file, *INTO, *more)) for file in files]
        said = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert sum(one["documents"] for one in said) == 300
    assert sum(one["unchanged"] for one in said) == 150
    assert run("corpus", "list", "atlas", "--json").json["facts"] == 600
    assert run("log", "verify", "--json").json["ok"]
