"""`colmlm-lab evaluate survivors`: which planted texts a plan lists, in a base of its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from colmlm.kb.facts.records import FactRecord, Source
from colmlm.lab.evaluate.survivors import KINDS, controls, planted_text, reword_value, sort_of
from tests.cli.conftest import Run
from tests.lab.evaluate.test_confidence import TOWNS, squad

TEXT = "It rained. The pier of Cromer was built in 1901 by Pauncefort. It stands."


def fact(number: int, value: str, question: str, title: str = "Cromer") -> FactRecord:
    start = max(TEXT.find(value), 0)
    source = Source(1, "towns", "cromer", title, None, None, None, start, start + len(value))
    return FactRecord(number, value, 1, question, None, source, 1, None)


PIER = fact(1, "1901", "When was the pier of Cromer built?")
BUILDER = fact(2, "Pauncefort", "Who built the pier of Cromer?")
OTHER = fact(3, "1923", "When was the tram of Ostrava opened?", "Ostrava")


@pytest.mark.slow(reason="runs an evaluation to its end")
def test_planted_texts_are_found_more_often_than_those_on_another_subject(run: Run, tmp_path: Path) -> None:
    file = squad(tmp_path / "towns.jsonl", TOWNS)
    words = ("evaluate", "survivors", "--squad", file, "--documents", 4)
    report = run(*words, "--facts", 2, "--json").json
    found = {one["kind"]: one["listed"]["share"] for one in report["survivors"]}
    assert tuple(found) == KINDS and found["text"] == 1.0 > found["other subject"]
    assert all(one["planted"] == 2 for one in report["survivors"])
    read = report["after"]["probes"]["read"]
    assert report["after"]["level"] >= 1 and read["leaks"] == 0 < read["probes"]
    assert run("facts", "list", "--json").json["facts"] == [], "the user's own base has nothing of it"
    shown = run(*words, "--facts", 2)
    assert "reworded text" in shown.out and "wrong neighbours" in shown.out
    refused = run(*words, "--facts", 5)
    assert refused.code == 2 and "too few facts" in refused.err


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_text_says_its_value_where_its_fact_is(kind: str) -> None:
    for seed in range(12):
        made = planted_text(kind, 0, PIER, OTHER, {1: TEXT}, random.Random(seed)).document
        (span,) = made.facts
        assert made.text[span.start : span.end] == span.value
        assert ("1923" in span.value) == (kind == "other subject")
        assert (made.title == "Cromer") == (kind in KINDS[:2])


def test_a_value_is_worded_otherwise_by_its_sort() -> None:
    drawn = {
        value: {reword_value(value, random.Random(n)) for n in range(40)} for value in ("1889", "12,480")
    }
    assert drawn["1889"] == {"the year 1889", "eighteen eighty-nine", "1889 or so"}
    assert "12480" in drawn["12,480"] and "12,480" not in drawn["12,480"]
    assert "the 22nd day of March in 1879" in {
        reword_value("March 22, 1879", random.Random(n)) for n in range(40)
    }
    assert [sort_of(value) for value in ("March 22, 1879", "1879", "12 km", "Marie Curie", "a dog")] == [
        "date", "year", "number", "name", "words",
    ]  # fmt: skip


def test_a_control_is_of_the_same_sort_and_another_value() -> None:
    same = fact(4, "1901", "When was the school of Lima built?", "Lima")
    assert controls([PIER], [BUILDER, same, OTHER], random.Random(0)) == [OTHER]
