"""`colmlm answers` with the released reader: the threshold of answers is calibrated for a base, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.cli.composition.calibrating import read_questions
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, to_record
from colmlm.kb.errors import InvalidQuestions
from tests.cli.conftest import Annotators, Run

CAPITAL = "What is the capital of Peru?"
ASKERS = ("Ann", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jo", "Kim", "Leo")


def asked(folder: Path, number: int = 12) -> Path:
    """So many askers of three questions that are answered, and two that are not."""
    file = folder / "asked.jsonl"
    lines = []
    for name in ASKERS[:number]:
        for question in ("What is the capital of Peru?", "Which city is Peru's capital?", "Peru's capital?"):
            lines.append({"question": f"{name} asks: {question}", "value": ["Lima", "the city of Lima"]})
        for painted in ("chapel", "harbour"):
            lines.append({"question": f"Who painted the {painted} of {name}?", "value": ""})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.mark.slow(reason="asks the released reader many questions")
def test_answers_are_given_from_the_calibrated_score(run: Run, keyed: list[int], tmp_path: Path) -> None:
    shown = run("questions", "threshold", "--json").json
    assert (shown["calibrated"], shown["threshold"], shown["calibration"]) == (False, shown["shipped"], None)
    calibrate = ("questions", "threshold", "--calibrate", "--file", asked(tmp_path), "--wrong", 0.1, "--json")
    tried = run(*calibrate, "--dry-run").json
    assert tried["seq"] is None and run("questions", "threshold", "--json").json == shown
    done = run(*calibrate).json
    here = done["measured"]["here"]
    assert done["measured"]["answerable"] == 36 and done["given"] == 60
    assert here == tried["measured"]["here"] and here["right"] > 0 and here["wrong"] <= 0.1
    said = run("ask", CAPITAL, "--json").json
    assert said["threshold"] == here["threshold"] != shown["shipped"]
    told = run("questions", "threshold")
    assert "calibrated for 10.0% wrong on 36 questions" in told.out and f"change {done['seq']}" in told.out
    assert "calibrated for 10.0% wrong" in run("doctor").out
    run("questions", "threshold", "--shipped")
    assert run("ask", CAPITAL, "--json").json["threshold"] == shown["shipped"]


def test_a_calibration_is_refused_with_the_reason(run: Run, keyed: list[int], tmp_path: Path) -> None:
    few = run("questions", "threshold", "--calibrate", "--file", asked(tmp_path, 2))
    assert few.code == 1 and "takes 32 questions with an answer" in few.err and few.err.count("\n") >= 1
    assert "Nothing was changed" in few.err
    none = run("questions", "threshold", "--calibrate")
    assert none.code == 2 and "there are none" in none.err
    assert run("questions", "threshold", "--calibrate", "--corpus", "nowhere").code == 2
    assert run("questions", "threshold", "--calibrate", "--corpus", "atlas").code == 1, (
        "two questions are too few"
    )
    assert run("questions", "threshold", "--json").json["calibrated"] is False


@pytest.mark.slow(reason="asks the released reader many questions")
def test_what_is_added_later_is_said(run: Run, keyed: list[int], light: Annotators, tmp_path: Path) -> None:
    text = tmp_path / "harbour.md"
    text.write_text("# Harbour\n\nThe harbour opened in 1834.\n")
    added = run("corpus", "add", text, "--corpus", "raw")
    assert "as shipped. To fit it to your documents" in " ".join(added.out.split())
    run("questions", "threshold", "--calibrate", "--file", asked(tmp_path), "--wrong", 0.1)
    text.write_text("# Harbour\n\nThe harbour opened in 1844.\n")
    again = run("corpus", "add", text, "--corpus", "raw", "--json").json
    assert "--file FILE" in again["threshold"]
    assert "Documents were added since" in run("questions", "threshold").err
    assert "Documents were added since" in run("doctor").out


def test_documents_are_added_also_where_the_reader_cannot_be_read(
    run: Run, keyed: list[int], light: Annotators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLMLM_READER", str(tmp_path / "nowhere"))
    text = tmp_path / "harbour.md"
    text.write_text("# Harbour\n\nThe harbour opened in 1834.\n")
    added = run("corpus", "add", text, "--corpus", "raw", "--json")
    assert (added.code, added.json["documents"], added.json["facts"]) == (0, 1, 1)
    assert "there is no reader in" in added.json["threshold"]


@pytest.mark.slow(reason="asks the released reader many questions")
def test_questions_of_a_corpus_are_asked_again_when_documents_are_added(
    run: Run, keyed: list[int], light: Annotators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(
        "COLMLM_READER"
    )  # its fitted judge tells towns apart by what else was read, as margins do not
    towns = (
        "Arica",
        "Berlin",
        "Cusco",
        "Dover",
        "Essen",
        "Faro",
        "Genoa",
        "Hilo",
        "Ibiza",
        "Jena",
        "Kiel",
        "Lyon",
    )
    file = tmp_path / "towns.jsonl"
    with file.open("w") as lines:
        for number, town in enumerate(towns):
            text = f"The mayor of {town} is {ASKERS[number]} Smith."
            start = text.index(ASKERS[number])
            asked = FactSpan(start, len(text) - 1, text[start:-1], f"Who is the mayor of {town}?", None)
            record = to_record(AnnotatedDocument(town, text, (asked,), title=town))
            lines.write(json.dumps(record) + "\n")
    run("corpus", "add", file, "--format", "annotated", "--corpus", "towns")
    run("keysets", "fill")
    done = run("questions", "threshold", "--calibrate", "--corpus", "towns", "--wrong", 0.2, "--json").json
    assert (done["measured"]["answerable"], done["given"], done["corpora"]) == (12, 0, ["towns"])
    text = tmp_path / "harbour.md"
    text.write_text("# Harbour\n\nThe harbour opened in 1834.\n")
    added = run("corpus", "add", text, "--corpus", "raw")
    assert "calibrated again" in added.out
    standing = run("questions", "threshold", "--json").json
    assert standing["doubts"] == [] and standing["calibration"]["corpora"] == ["towns"]
    again = run("questions", "threshold", "--calibrate", "--wrong", 0.2, "--dry-run", "--json").json
    assert again["corpora"] == ["towns"], "those of the last one"


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("a.csv", "question,value\nWho?,\n", None),
        ("a.csv", "question,answer\nWho?,Ann\n", "line 2 has no 'question' with a 'value'"),
        ("a.jsonl", '{"question": "Who?", "answer": "Ann"}\n', "line 1 has no 'question' with a 'value'"),
        ("a.csv", "question,value\nWho\0is?,Ann\n", "line 2 .* NUL"),
        ("a.jsonl", '{"question": "Who\\ud800?", "value": ""}\n', "line 1 .* surrogate"),
        ("a.csv", f"question,value\nWho?,{'x' * 200_000}\n", "after line 1 is not CSV"),
        ("a.csv", 'question,value\n"Who?,Ann\n', "is not CSV"),
        ("a.jsonl", "[" * 100_000, "line 1 is not JSON"),
        ("a.csv", b"question,value\nWho?,Andr\xe9\n", "not UTF-8"),
        ("a.csv", "asked,value\nWho?,Ann\n", "line 2 has no 'question'"),
        ("a.jsonl", '{"question": "Who?", "value": 1}\n', "line 1 has no 'question' with a 'value'"),
        ("a.jsonl", '{"question": "Who?", "value": "Ann"}\nWho?\n', "line 2 is not JSON"),
        ("a.jsonl", "[1]\n", "line 1 has no 'question'"),
        ("a.jsonl", json.dumps({"question": "x" * 2001, "value": ""}), "more than 2,000 characters"),
    ],
)
def test_a_file_that_is_no_list_of_questions_is_refused_by_its_line(
    tmp_path: Path, name: str, text: str | bytes, cause: str | None
) -> None:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    if cause is None:
        assert [one.values for one in read_questions(file)] == [()]
        return
    with pytest.raises(InvalidQuestions, match=cause):
        list(read_questions(file))


def test_values_of_one_question_add_up(tmp_path: Path) -> None:
    file = tmp_path / "asked.csv"
    file.write_text('\ufeffquestion,value\nWho?,Ann\nWho?,"Ann, of Lima"\nWhy?,\n', encoding="utf-8")
    assert {one.text: one.values for one in read_questions(file)} == {
        "Who?": ("Ann", "Ann, of Lima"),
        "Why?": (),
    }
