"""Questions are written for what has none, go on where they were cut off, and are kept where the reader agrees."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from colmlm.kb.answers.reading import Passage, PassageReading
from colmlm.lab.half_hour.places import annotated
from colmlm.lab.half_hour.writing import Writer
from colmlm.model.annotate.annotators import QuestionGenerator
from tests.kb.corpora import document
from tests.tiny_annotators import tiny_asker

QUESTION = "Which city is the capital of Peru?"


class Finding:
    """A reader that finds the same words in every passage."""

    def __init__(self, words: str) -> None:
        self.words = words

    def read(self, question: str, windows: list[Passage]) -> list[PassageReading]:
        places = [(window.text.find(self.words), window) for window in windows]
        return [
            PassageReading(((at, at + len(self.words), 9.0),) if at >= 0 else (), 0.0) for at, _ in places
        ]


def texts(count: int = 20):
    return [
        document(f"d{n}", "The capital of Peru is ", ("Lima", None), " since ", ("1535", "Since when?"), ".")
        for n in range(count)
    ]


def writer(root: Path, found: str, until: float = math.inf) -> Writer:
    generator = QuestionGenerator.load(tiny_asker(root / "asker", QUESTION), root, precision="fp32")
    return Writer(generator, Finding(found), until)


def test_what_has_no_question_gets_one_that_leads_back_to_it(tmp_path: Path):
    writer(tmp_path, "Lima").write(texts(), tmp_path / "out.jsonl")
    for one in annotated(tmp_path / "out.jsonl"):
        assert [(fact.value, fact.question) for fact in one.facts] == [
            ("Lima", QUESTION),
            ("1535", "Since when?"),
        ]


def test_a_question_that_leads_elsewhere_is_taken_back(tmp_path: Path):
    writer(tmp_path, "1535").write(texts(2), tmp_path / "out.jsonl")
    writer(tmp_path, "nowhere").write(texts(2), tmp_path / "none.jsonl")
    for file in ("out.jsonl", "none.jsonl"):
        for one in annotated(tmp_path / file):
            assert [fact.question for fact in one.facts] == [None, "Since when?"]
            assert one.facts[0].answer is None


def test_writing_ends_at_its_time_and_goes_on_where_it_was(tmp_path: Path):
    path = tmp_path / "out.jsonl"
    writer(tmp_path, "Lima", until=-math.inf).write(texts(), path)
    assert annotated(path) == []
    writer(tmp_path, "Lima").write(texts()[:7], path)
    writer(tmp_path, "Lima").write([*texts()[:7], *(replace(d, title="T") for d in texts()[7:])], path)
    assert [one.external_id for one in annotated(path)] == [f"d{n}" for n in range(20)]
    assert [one.title for one in annotated(path)] == [None] * 7 + ["T"] * 13
