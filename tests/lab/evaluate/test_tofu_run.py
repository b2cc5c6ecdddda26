"""`colmlm-lab evaluate tofu`: a checkpoint's logs, with the knowledge base's facts and after they are deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colmlm.kb.corpus.format import read_annotated
from colmlm.model.evaluate.tofu import TofuLog
from colmlm.model.text.markup import STANDARD
from tests.cli.conftest import Run
from tests.tiny import tiny_checkpoint
from tests.tiny_annotators import tiny_span_annotator

QUESTIONS = {
    "Who wrote Emma?": "It was Jane Austen.",
    "Who wrote Dune?": "It was Frank Herbert.",
    "Where was Joyce born?": "He was born in Dublin.",
}


@pytest.fixture(scope="module")
def annotator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_span_annotator(tmp_path_factory.mktemp("spans"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "tofu"
    folder.mkdir()
    rows: list[dict[str, Any]] = [
        {
            "question": q,
            "answer": a,
            "paraphrased_answer": f"{a} Yes.",
            "perturbed_answer": ["It was Ann.", "Nobody."],
        }
        for q, a in QUESTIONS.items()
    ]
    for name in ("retain", "real_authors", "world_facts", "forget01"):
        (folder / f"{name}_perturbed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "full.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    return folder


def test_rows_become_documents_once_and_are_ingested(
    run: Run, home: Path, data: Path, annotator: Path
) -> None:
    out = data / "out" / "full.jsonl"
    words = ("evaluate", "tofu-documents", data / "full.jsonl", "--out", out, "--span-annotator", annotator)
    report = run(*words, "--span-threshold", 0.001, "--json").json
    documents = [parsed.document for parsed in read_annotated(out)]
    assert report["documents"] == len(documents) == 3
    assert report["facts"] == sum(len(one.facts) for one in documents if one) > 0
    assert run("corpus", "add", out, "--corpus", "tofu", "--format", "annotated").code == 0


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_logs_of_both_readings_are_written_and_a_stopped_run_goes_on(
    run: Run, home: Path, data: Path, annotator: Path, tmp_path: Path
) -> None:
    full, out = tmp_path / "full.jsonl", tmp_path / "results"
    common = ("--span-annotator", annotator, "--span-threshold", 0.001)
    run("evaluate", "tofu-documents", data / "full.jsonl", "--out", full, *common)
    run("corpus", "add", full, "--corpus", "tofu", "--format", "annotated")
    assert run("keysets", "fill").code == 0
    words = ("evaluate", "tofu", "--data", data, "--forget", "forget01", *common, "--max-tokens", 4)
    done = run(*words, "--out", out, "--rows", 2, "--threshold", -1, "--json")
    assert done.code == 0
    for masking in ("masked", "spoken"):
        log = TofuLog.read(out / f"{masking}.json")
        assert log.utility == done.json[masking]["model_utility"]
        assert (len(log.retain), len(log.forget)) == (2, 3)  # what is forgotten is asked whole
    told = run("evaluate", "tofu-log", out / "masked.json", "--retain", out / "spoken.json", "--json").json
    assert told["model_utility"] == done.json["masked"]["model_utility"] and "forget_quality" in told
    beside = run(*words, "--out", out, "--rows", 2, "--threshold", -1, "--retain", out, "--json").json
    assert beside["spoken"]["forget_quality"] == 1
    theirs = json.loads((out / "open-unlearning" / "spoken" / "TOFU_SUMMARY.json").read_text())
    assert theirs["forget_quality"] == 1
    assert theirs["model_utility"] == pytest.approx(done.json["spoken"]["model_utility"], abs=1e-9)

    lines = (out / "rows.jsonl").read_text().splitlines(keepends=True)
    (out / "rows.jsonl").write_text("".join(lines[:4]) + lines[4][:9])
    again = run(*words, "--out", out, "--rows", 2, "--threshold", -1, "--json")
    assert again.json == done.json
    assert (out / "rows.jsonl").read_text().splitlines(keepends=True) == lines
    refused = run(*words, "--out", out, "--rows", 3, "--threshold", -1)
    assert refused.code == 2 and "holds another run (its rows differ)" in refused.err
    asked = data / "forget01_perturbed.jsonl"
    asked.write_text(asked.read_text().replace("Emma", "Persuasion"))
    refused = run(*words, "--out", out, "--rows", 2, "--threshold", -1)
    assert refused.code == 2 and "holds another run (its data_sha256 differ)" in refused.err


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_a_model_without_lookups_needs_no_keys_and_has_one_log(
    run: Run, home: Path, data: Path, annotator: Path, tmp_path: Path
) -> None:
    standard = tiny_checkpoint(tmp_path / "standard", markup=STANDARD)
    words = ("--data", data, "--span-annotator", annotator, "--max-tokens", 4, "--checkpoint", standard)
    done = run("evaluate", "tofu", *words, "--forget", "forget01", "--out", tmp_path / "results")
    assert done.code == 0 and "model utility" in done.out
    written = {
        str(file.relative_to(tmp_path / "results")) for file in (tmp_path / "results").rglob("*.json*")
    }
    theirs = {f"open-unlearning/none/TOFU_{name}.json" for name in ("EVAL", "SUMMARY")}
    assert written == {"none.json", "rows.jsonl"} | theirs
    refused = run("evaluate", "tofu", *words, "--forget", "forget99", "--out", tmp_path / "other")
    assert refused.code == 2 and "forget99_perturbed.jsonl does not exist" in refused.err
    beside = ("--forget", "forget01", "--out", tmp_path / "results", "--retain", data)
    alone = run("evaluate", "tofu", *words, *beside)
    assert alone.code == 2 and "there is no none.json in" in alone.err
    (data / "none.json").write_text("{}")
    other = run(
        "evaluate", "tofu", *words, "--forget", "forget01", "--out", tmp_path / "other", "--retain", data
    )
    assert other.code == 2 and "none.json" in other.err and not (tmp_path / "other").exists()


@pytest.mark.parametrize("table", ["retain", "world_facts"])
def test_rows_that_cannot_be_scored_are_told_before_any_is_asked(
    run: Run, home: Path, data: Path, tmp_path: Path, table: str
) -> None:
    file, missing = data / f"{table}_perturbed.jsonl", {
        "retain": "paraphrased_answer", "world_facts": "perturbed_answer",
    }[table]  # fmt: skip
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1].pop(missing)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    standard = tiny_checkpoint(tmp_path / "standard", markup=STANDARD)
    words = ("evaluate", "tofu", "--data", data, "--forget", "forget01", "--checkpoint", standard)
    refused = run(*words, "--out", tmp_path / "out")
    assert refused.code == 2 and f"line 2 of {table}_perturbed.jsonl has no {missing}" in refused.err
    assert not (tmp_path / "out").exists()
