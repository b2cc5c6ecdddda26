"""Dense marks and what people asked are one set of facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from colmlm.lab.half_hour.places import annotated, with_questions, written
from tests.kb.corpora import document


def test_what_was_asked_stands_in_place_of_the_marks_it_touches(tmp_path: Path):
    marked = document(
        "m", "In ", ("1535", None), " ", ("Francisco", None), " ", ("Pizarro", None), " founded it."
    )
    questioned = document("q", "In 1535 ", ("Francisco Pizarro", "Who founded it?"), " founded it.")
    (joined,) = with_questions([marked], [questioned])
    assert [(fact.value, fact.question) for fact in joined.facts] == [
        ("1535", None),
        ("Francisco Pizarro", "Who founded it?"),
    ]
    other = replace(marked, text=marked.text + " Yes.")
    assert list(with_questions([other], [questioned])) == [other]
    written([joined, other], tmp_path / "out.jsonl")
    assert annotated(tmp_path / "out.jsonl") == [joined, other]
