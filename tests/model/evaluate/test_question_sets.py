"""Published question sets are read, each in its own format, and rows that are no question are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colmlm.model.evaluate.answers import RELATIONS, digest, read_question_set
from colmlm.model.evaluate.run_log import EvaluationFileError
from tests.places import SHARED_DATA

SHARED = SHARED_DATA

ROWS = [
    {"question": "Who wrote Emma?", "answers": ["Jane Austen", "Austen"]},
    {"question": "Who wrote Ulysses?", "golden_answers": ["James Joyce"]},
    {"question": "Who wrote Dune?", "possible_answers": '["Frank Herbert", "Herbert"]'},
    {"question": " Who wrote Ulysses? ", "answer": "James Joyce"},
    {"question": "Who wrote Emma?", "answer": "J. Austen"},
    {"problem": "What is [x]?", "answer": "[a bracket"},
]


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_answers_are_read_whatever_they_are_called_and_equal_rows_once(tmp_path: Path, form: str) -> None:
    file = tmp_path / f"set.{form}"
    file.write_text(json.dumps(ROWS) if form == "json" else "\n".join(map(json.dumps, ROWS)) + "\n\n")
    assert [(one.text, one.answers) for one in read_question_set(file)] == [
        ("Who wrote Emma?", ("Jane Austen", "Austen")),
        ("Who wrote Ulysses?", ("James Joyce",)),
        ("Who wrote Dune?", ("Frank Herbert", "Herbert")),
        ("Who wrote Emma?", ("J. Austen",)),
        ("What is [x]?", ("[a bracket",)),
    ]


def test_popqa_says_how_popular_a_subject_is(tmp_path: Path) -> None:
    rows = [{"s_pop": 42}, {"metadata": {"s_pop": "1381"}}, {}, {"metadata": None}]
    file = tmp_path / "set.jsonl"
    file.write_text(
        "".join(
            json.dumps({"question": f"Who {n}?", "answer": "I", **row}) + "\n" for n, row in enumerate(rows)
        )
    )
    assert [one.views for one in read_question_set(file)] == [42, 1381, None, None]


def test_csv_with_line_breaks_in_its_cells_is_read(tmp_path: Path) -> None:
    file = tmp_path / "set.csv"
    file.write_text('metadata,problem,answer\n{},"Who, in\n1816, wrote Emma?",Jane Austen\n')
    (one,) = read_question_set(file)
    assert (one.text, one.answers) == ("Who, in\n1816, wrote Emma?", ("Jane Austen",))


def test_a_folder_is_its_files_and_a_relation_is_a_sentence_to_complete(tmp_path: Path) -> None:
    (tmp_path / "P36.jsonl").write_text('{"sub_label": "Peru", "obj_label": "Lima"}\n')
    (tmp_path / "P19.jsonl").write_text('{"sub_label": "Joyce", "obj_label": "Dublin"}\n')
    (tmp_path / "README.md").write_text("not a question")
    first, second = read_question_set(tmp_path)
    assert (first.prompt, first.answers) == ("Joyce was born in", ("Dublin",))
    assert (second.prompt, second.is_statement) == ("The capital of Peru is", True)
    before = digest(tmp_path)
    (tmp_path / "P19.jsonl").write_text('{"sub_label": "Joyce", "obj_label": "Cork"}\n')
    assert digest(tmp_path) != before


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"question": "Who?"}', r"a\.jsonl:1 has no answer"),
        ("a.jsonl", '{"question": "Who?", "answers": [" ", 3]}', r"a\.jsonl:1 has no answer"),
        ("a.json", '[{"question": "Who?", "answer": "I"}, 3]', r"a\.json:2 is no object"),
        ("a.jsonl", '{"answer": "I"}', r"a\.jsonl:1 has no question"),
        ("P9.jsonl", '{"sub_label": "a", "obj_label": "b"}', "no sentence is known for relation 'P9'"),
        ("a.jsonl", '{"question": "Who?', r"a\.jsonl:1 is not a whole JSON object"),
        ("a.jsonl", '{"question": "Who?", "answer": "I"}\n\n{', r"a\.jsonl:3 is not .*on a line of its own"),
        ("a.jsonl", "", "has no question"),
        ("a.csv", "problem,answer\n", "has no question"),
    ],
)
def test_what_is_no_question_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(EvaluationFileError, match=said):
        read_question_set(tmp_path / name)


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not beside the project")
@pytest.mark.parametrize(
    ("path", "least"),
    [
        ("popqa/popqa_with_passages_500.json", 490),
        ("popqa/popqa_random1000.jsonl", 990),
        ("triviaqa/triviaqa_test_random1000.jsonl", 990),
        ("nq_open/NQ-open.dev.jsonl", 3600),
        ("simpleqa/simple_qa_test_set.csv", 4300),
        ("entity_questions/dev", 20_000),
        ("lama_trex", 28_000),
    ],
)
def test_the_published_sets_are_read_whole(path: str, least: int) -> None:
    found = read_question_set(SHARED / path)
    assert len(found) >= least
    assert all(one.answers and one.text for one in found)


def test_every_sentence_ends_with_the_object() -> None:
    assert len(RELATIONS) == 41
    assert all(sentence.count("{}") == 1 and not sentence.endswith("{}") for sentence in RELATIONS.values())
