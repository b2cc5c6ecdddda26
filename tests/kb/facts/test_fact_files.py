"""Rows of a file that edits many facts: every one that cannot be used is named with its line and the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from colmlm.kb.errors import FactNotFound
from colmlm.kb.facts.files import RefusedRow, plan_edits
from colmlm.kb.facts.records import FactEdit, FactRecord

FACTS = {
    1: FactRecord(1, "Lima", 1, "Which capital?", None, None, 1, None),
    2: FactRecord(2, "Amazon", 1, None, None, None, 1, None),
    3: FactRecord(3, "gone", 1, None, None, None, 1, 5),
    4: FactRecord(4, "█", 1, None, None, None, 1, 5, erased_seq=6),
}


def show_many(fact_ids: Sequence[int]) -> list[FactRecord]:
    if missing := [fact_id for fact_id in fact_ids if fact_id not in FACTS]:
        raise FactNotFound(missing)
    return [FACTS[fact_id] for fact_id in fact_ids]


@pytest.mark.parametrize(
    "text",
    [
        'fact_id,value,question\n1,Cusco,\n2,,"Which river, ""the longest""?"\n',
        '\ufefffact_id,question,value\r\n1,,Cusco\r\n\r\n2,"Which river, ""the longest""?"\r\n',
        '{"fact_id": 1, "value": "Cusco"}\n\n'
        '{"fact_id": 2, "value": null, "question": "Which river, \\"the longest\\"?"}\n',
    ],
)
def test_csv_and_json_lines_say_the_same(text: str) -> None:
    planned = plan_edits(text, show_many)
    assert planned.refused == () and planned.unchanged == 0
    assert planned.fact_edits == [
        FactEdit(1, "Cusco"),
        FactEdit(2, question='Which river, "the longest"?'),
    ]


def test_what_stays_as_it_is_is_counted_and_not_edited() -> None:
    planned = plan_edits("fact_id,value,question\n1,Lima,Which capital?\n2,Ucayali,\n", show_many)
    assert planned.fact_edits == [FactEdit(2, "Ucayali")] and planned.unchanged == 1
    assert (planned.edits[0].was_value, planned.edits[0].was_question) == ("Amazon", None)


def test_a_row_that_repeats_a_proposed_fact_accepts_it() -> None:
    def proposed(fact_ids: Sequence[int]) -> list[FactRecord]:
        return [replace(fact, review="proposed") for fact in show_many(fact_ids)]

    planned = plan_edits("fact_id,value,question\n1,Lima,\n", proposed)
    assert planned.fact_edits == [FactEdit(1, "Lima")] and planned.unchanged == 0


def test_every_row_that_cannot_be_used_is_named_with_its_line() -> None:
    text = 'fact_id,value,question\n1,"two\nlines",\nx,a,\n9,a,\n3,a,\n4,a,\n1,b,\n2,,\n2, ,\n2,a,b,c\n'
    found = plan_edits(text, show_many).refused
    assert found == (
        RefusedRow(4, "its fact_id is no id of a fact, such as 12, but 'x'"),
        RefusedRow(5, "there is no fact 9"),
        RefusedRow(6, "fact 3 is deleted"),
        RefusedRow(7, "fact 4 is erased"),
        RefusedRow(8, "fact 1 is in line 2 already"),
        RefusedRow(9, "it has neither a value nor a question"),
        RefusedRow(10, "its value is not valid: it is blank. Give a text"),
        RefusedRow(11, "it has 4 fields, and the first line 3"),
    )


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("id,value\n1,a\n", 1, "the first line must name the columns"),
        ("fact_id,valeu\n1,a\n", 2, "no column valeu"),
        ('fact_id,value\n1,"a"b\n', 2, "it is not CSV"),
        ('{"fact_id": 1, "value": "a"}\n[1]\n', 2, "not a JSON object"),
        ('{"fact_id": 1, "value": "a"}\n{\n', 2, "not a JSON object"),
        ('{"fact_id": true, "value": "a"}\n', 1, "no id"),
        ('{"fact_id": 1, "value": 5}\n', 1, "its value is no text, but 5"),
        ('{"fact_id": 1, "question": "a\\ud800"}\n', 1, "surrogate"),
        ("fact_id,question\n1," + "x" * 2001 + "\n", 2, "limit is 2000"),
    ],
)
def test_a_row_is_refused_with_its_cause(text: str, line: int, cause: str) -> None:
    (row,) = plan_edits(text, show_many).refused
    assert row.line == line and cause in row.cause


def test_an_empty_file_edits_nothing() -> None:
    assert plan_edits("", show_many).edits == plan_edits("fact_id,value\n", show_many).edits == ()
