"""`colmlm-lab evaluate perplexity` on a knowledge base that knows the texts, and on one that does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.kb.corpus.format import AnnotatedDocument, to_record
from tests.cli.conftest import document, invoke
from tests.kb.corpora import numbered

FORMS = {
    "static",
    "static_own_spans",
    "static_without_markup",
    "normalised",
    "dynamic",
    "dynamic_without_markup",
    "dynamic_normalised",
    "dynamic_gated",
    "dynamic_gated_normalised",
}


NORMALISED = ("dynamic", "dynamic_normalised")  # each figure of lookups has its worst case with it


def written(file: Path, *documents: AnnotatedDocument) -> Path:
    file.write_text("".join(json.dumps(to_record(one)) + "\n" for one in documents))
    return file


@pytest.fixture
def known(home: Path, tmp_path: Path) -> Path:
    """A file whose documents the knowledge base has."""
    file = written(tmp_path / "known.jsonl", document(), document("again", "Lima is old. Titicaca is deep."))
    assert invoke("corpus", "add", file, "--corpus", "geo", "--format", "annotated").code == 0
    assert invoke("keysets", "fill").code == 0
    return file


def test_facts_that_are_known_make_dynamic_what_static_is(known: Path) -> None:
    report = invoke("evaluate", "perplexity", "--annotated", known, "--threshold", -1, "--json").json
    found = report["perplexity"]
    assert (report["documents"], report["lookups"], report["right_nearest"]) == (2, 4, 4)
    assert set(found) == FORMS
    assert found["dynamic"] == pytest.approx(found["static"], rel=1e-3)
    assert found["dynamic_gated"] == pytest.approx(found["static"], rel=1e-3)
    assert found["dynamic_normalised"]["perplexity"] > found["dynamic"]["perplexity"]
    assert found["static_without_markup"]["perplexity"] < found["static"]["perplexity"]
    assert found["static_without_markup"]["tokens"] == found["static"]["tokens"]
    assert 0 < report["opening_probability"]["at_spans"] < 1 > report["opening_probability"]["elsewhere"] > 0
    assert all(one["low"] <= one["perplexity"] <= one["high"] for one in found.values())


def test_lookups_that_find_nothing_have_their_spans_scored(known: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other.jsonl", document("other", "What is new: Lima. What is not: Titicaca."))
    report = invoke("evaluate", "perplexity", "--annotated", other, "--threshold", 1, "--json").json
    found = report["perplexity"]
    assert report["matched_gated"] == 0
    assert found["dynamic_gated"]["tokens"] == found["normalised"]["tokens"] > found["static"]["tokens"]


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_models_without_lookups_are_scored_on_all_tokens_and_on_the_same(
    known: Path, checkpoint: Path
) -> None:
    words = ("evaluate", "perplexity", "--annotated", known, "--beside", checkpoint, "--limit", 1)
    report = invoke(*words, "--json").json
    beside = {name.split(", ")[1]: one for name, one in report["perplexity"].items() if ", " in name}
    assert beside["same tokens"]["tokens"] == report["perplexity"]["static"]["tokens"]
    assert beside["all tokens"]["tokens"] == report["perplexity"]["normalised"]["tokens"]
    shown = invoke(*words)
    assert shown.code == 0 and "dynamic gated" in shown.out and "opening probability" in shown.out


def test_a_file_without_documents_is_refused(known: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("nothing\n")
    done = invoke("evaluate", "perplexity", "--annotated", tmp_path / "none.jsonl")
    assert done.code == 2 and "it has no document" in done.err


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_an_index_of_another_kind_is_measured_beside_the_one_that_answers(
    known: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    others = written(tmp_path / "halls.jsonl", *numbered(300))
    assert invoke("corpus", "add", others, "--corpus", "halls", "--format", "annotated").code == 0
    assert invoke("keysets", "fill").code == 0
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "home").rglob("*.faiss")}
    words = ("evaluate", "perplexity", "--annotated", known, "--threshold", -1, "--json", "--index", "exact")
    report = invoke(*words, "--unrelated", "halls").json
    assert report["indexes"] == {
        "exact": {"spec": "IDMap2,Flat", "keys": 4, "right": 4},
        "exact, grown": {"spec": "IDMap2,Flat", "keys": 304, "right": 4},
    }
    beside = {f"{name}, {index}" for name in NORMALISED for index in ("exact", "exact, grown")}
    assert set(report["perplexity"]) == FORMS | beside
    assert report["perplexity"]["dynamic, exact"] == report["perplexity"]["dynamic"]

    alone = invoke(*words, "--unrelated", "geo").json
    assert (alone["indexes"]["exact"]["keys"], alone["indexes"]["exact"]["right"]) == (300, 0)
    capfd.readouterr()
    coded = invoke(*words, "--index", "pq4", "--index", "pq10", "--index", "pq10-first").json["indexes"]
    assert "WARNING" not in capfd.readouterr().err
    assert coded["pq10-first"]["spec"] == coded["pq10"]["spec"]
    assert coded["pq4"]["spec"] == "OPQ16_64,IVF64,PQ16" and coded["pq10"]["spec"] == "OPQ6_60,IVF64,PQ6"
    assert {file: file.stat().st_mtime_ns for file in kept} == kept != {}

    few = invoke(*words, "--index", "pq4", "--unrelated", "halls")
    assert few.code == 2 and "trained on 256 keys, there are 4" in few.err
    assert invoke(*words, "--unrelated", "nowhere").code == 3
    assert invoke(*words[:-2], "--unrelated", "halls").code == 2
