"""`colmlm ask` with the released reader: the words of a document with their place, or nothing and exit code 3."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import TEXT, Run

CAPITAL = "What is the capital of Peru?"


def test_a_question_is_answered_in_the_words_of_its_document(run: Run, keyed: list[int]) -> None:
    said = run("ask", CAPITAL, "--json").json
    assert said["answer"] == "Lima" and not said["abstained"] and said["fact_id"] in keyed
    assert (said["corpus"], said["document"]) == ("atlas", "peru")
    assert TEXT[said["start"] : said["end"]] == "Lima"
    assert said["score"] >= said["threshold"] and said["nearest"][0]["source"]["external_id"] == "peru"
    shown = run("ask", CAPITAL)
    assert shown.out.startswith("Lima\n") and "atlas/peru" in shown.out + shown.err
    assert run("ask", CAPITAL, "--verify", "--json").json["source_check"]["outcome"] == "unreachable"
    assert "The source cannot be reached." in run("ask", CAPITAL, "--verify").out


@pytest.mark.slow(reason="asks the released reader")
def test_an_answer_is_stored_and_traced_like_an_output(
    run: Run, keyed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("ask", CAPITAL, "--json").json["generation_id"] == 1
    assert "Stored as output 2: colmlm trace output 2" in run("ask", CAPITAL).err
    assert "Stored as output 3" in run("ask", "Who painted the ceiling?").err
    shown = run("trace", "output", 2).out
    assert "mode read" in shown and "output: [Lima](0)" in shown and "uncited" not in shown
    start = TEXT.index("Lima")
    assert f"quotes: Peru (atlas/peru)[{start}:{start + 4}]" in shown
    run("ask", CAPITAL, "--accepted-only")
    shown = [run("trace", "output", number) for number in (2, 4)]
    assert ["accepted facts only" in one.out for one in shown] == [False, True]
    assert [run("trace", "output", n, "--json").json["accepted_only"] for n in (2, 4)] == [False, True]
    assert [one["mode"] for one in run("trace", "outputs", "--json").json["outputs"]] == ["read"] * 4
    assert "read" in run("trace", "outputs").out
    (fact, *_) = keyed
    assert len(run("trace", "fact", fact, "--impact", "--json").json["outputs"]) == 3
    monkeypatch.setenv("COLMLM_KEEP_ANSWERS", "no")
    assert run("ask", CAPITAL, "--json").json["generation_id"] is None
    assert "Stored" not in run("ask", CAPITAL).err


def test_what_nothing_answers_is_said_so_with_exit_code_3(run: Run, keyed: list[int]) -> None:
    said = run("ask", "Who painted the ceiling of the chapel?", "--json")
    assert said.code == 3 and said.json["abstained"] and said.json["answer"] is None
    assert said.json["fact_id"] is None and said.json["nearest"]
    assert "The knowledge base has no sure answer to this" in run("ask", "Who painted the ceiling?").out
    shown = run("ask", CAPITAL, "--threshold", 1)
    assert "Lima" in shown.out, "as evidence"
    assert f"scores {run('ask', CAPITAL, '--json').json['score']:.2f}, and an answer needs 1.00" in shown.err


def test_only_documents_of_the_named_corpora_answer(run: Run, keyed: list[int], tmp_path: Path) -> None:
    file = tmp_path / "chile.jsonl"
    text = "Chile lies beside the sea. Its great port is Valparaiso, and Arica is nearer to Peru."
    fact = {"start": text.index("Valparaiso"), "end": text.index(", and"), "value": "Valparaiso"}
    file.write_text(json.dumps({"id": "chile", "text": text, "facts": [fact]}), encoding="utf-8")
    assert run("corpus", "add", file, "--format", "annotated", "--corpus", "coasts").code == 0
    assert run("ask", CAPITAL, "--corpus", "atlas", "--corpus", "coasts", "--json").json["answer"] == "Lima"
    said = run("ask", CAPITAL, "--corpus", "coasts", "--json")
    assert said.code == 3 and "Lima" not in said.out
    assert {one["source"]["corpus"] for one in said.json["nearest"]} <= {"coasts"}
    refused = run("ask", CAPITAL, "--corpus", "coast")
    assert (
        refused.code == run("facts", "list", "--corpus", "coast").code and "No corpus 'coast'" in refused.err
    )
    assert run("ask", CAPITAL, "--corpus", "").code == 2
    run("keysets", "fill")
    hits = [
        [
            hit["value"]
            for hit in run("lookup", CAPITAL, "--threshold", -1, "--corpus", corpus, "--json").json["hits"]
        ]
        for corpus in ("atlas", "coasts")
    ]
    assert "Lima" in hits[0] and hits[1] and "Lima" not in hits[1]
    asked = ("generate", f"Question: {CAPITAL} Answer:", "--mode", "forced", "--corpus", "coasts", "--json")
    assert run(*asked).json["corpora"] == ["coasts"]


def test_nothing_is_said_in_place_of_what_was_deleted(run: Run, keyed: list[int]) -> None:
    fact_id = run("ask", CAPITAL, "--json").json["fact_id"]
    run("facts", "delete", fact_id, "--reason", "disputed", "--yes")
    said = run("ask", CAPITAL, "--json")
    assert (said.code, said.json["withheld"]) == (3, True) and "Lima" not in said.out
    run("facts", "restore", fact_id, "--reason", "settled")
    run("facts", "edit", fact_id, "--value", "Cusco", "--reason", "moved")
    assert run("ask", CAPITAL, "--json").json["answer"] == "Cusco"


def test_the_papers_mode_takes_the_fact_with_the_nearest_key(run: Run, keyed: list[int]) -> None:
    said = run("ask", CAPITAL, "--mode", "paper", "--threshold", -1, "--json").json
    assert said["answer"] in ("Lima", "Titicaca") and said["nearest"] == []


def test_a_base_without_documents_answers_nothing(run: Run, home: object) -> None:
    run("db", "up")
    assert run("ask", CAPITAL, "--json").json["nearest"] == []
