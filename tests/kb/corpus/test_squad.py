"""SQuAD files: both layouts, version 2.0, and the damage that downloads come with."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.kb.corpus.format import FactSpan, Parsed, check_spans
from colmlm.kb.corpus.squad import read_questions, read_squad, resolve_overlaps
from tests.places import SHARED_DATA

CONTEXT = "Peru 🏔️ has its capital in Lima and the Amazon in it."
LIMA = CONTEXT.index("Lima")


def flat(answer: Any = "Lima", start: Any = LIMA, **changes: Any) -> dict[str, Any]:
    return {"question": " Where? ", "answer": answer, "answer_start": start, **changes}


def nested(*answers: Any, **changes: Any) -> dict[str, Any]:
    return {"question": "Where?", "id": "1", "answers": list(answers), **changes}


def paragraph(*qas: Any, **changes: Any) -> dict[str, Any]:
    return {"title": "Peru_(land)", "context": CONTEXT, "qas": list(qas), **changes}


def read(tmp_path: Path, content: Any, name: str = "some.jsonl") -> list[Parsed]:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return list(read_squad(path))


def read_one(tmp_path: Path, content: Any, name: str = "some.jsonl") -> Parsed:
    (parsed,) = read(tmp_path, content, name)
    return parsed


def official(*paragraphs: Any, title: Any = "Peru_(land)") -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": title, "paragraphs": list(paragraphs)}]}


def test_both_layouts_give_the_same_document(tmp_path: Path):
    one = read_one(tmp_path, paragraph(flat()))
    two = read_one(tmp_path, official(paragraph(nested({"text": "Lima", "answer_start": LIMA}))), "dev.json")
    assert one == two and one.refusals == ()
    assert one.document is not None
    assert (one.document.title, one.document.text) == ("Peru (land)", CONTEXT)
    assert one.document.facts == (FactSpan(LIMA, LIMA + 4, "Lima", "Where?", "Lima"),)
    assert len(one.document.external_id) == 16


def test_the_first_answer_counts_and_a_missing_title_is_none(tmp_path: Path):
    qa = nested({"text": "Lima", "answer_start": LIMA}, {"text": "Peru", "answer_start": 0})
    parsed = read_one(tmp_path, official(paragraph(qa), title=None), "dev.json")
    assert parsed.document is not None and parsed.document.title is None
    assert [s.value for s in parsed.document.facts] == ["Lima"]


def test_questions_that_version_2_leaves_unanswered_are_no_fault(tmp_path: Path):
    qas = [
        nested(is_impossible=True, plausible_answers=[{"text": "Peru", "answer_start": 0}]),
        nested({"text": "Lima", "answer_start": LIMA}, is_impossible=False),
    ]
    parsed = read_one(tmp_path, official(paragraph(*qas)), "dev.json")
    assert parsed.refusals == () and parsed.document is not None
    assert [s.value for s in parsed.document.facts] == ["Lima"]


@pytest.mark.parametrize(
    "qa",
    [
        None, 7, "question", [], {},
        nested(None), nested({"text": "Lima"}), nested({"answer_start": 3}), {"question": "Where?"},
        flat(answer=None), flat(answer=["Lima"]), flat(start=None), flat(start=3.0), flat(start=True, answer="eru"),
        flat(question=None), flat(question="Where\0?"), flat(question="\ud800"),
        {"answer": "Lima", "answer_start": LIMA},
        {"question": "Where?", "answers": None}, {"question": "Where?", "answers": {"text": ["Lima"]}},
    ],
)  # fmt: skip
def test_a_malformed_question_is_refused_and_the_others_taken(tmp_path: Path, qa: Any):
    parsed = read_one(tmp_path, paragraph(qa, flat()))
    assert parsed.document is not None and [s.value for s in parsed.document.facts] == ["Lima"]
    (refused,) = parsed.refusals
    assert refused.document == parsed.document.external_id
    assert refused.reason.startswith("malformed question")


@pytest.mark.parametrize(
    "qa, reason",
    [
        (flat(start=LIMA + 1), "not verbatim"),
        (flat(start=len(CONTEXT.encode())), "outside the text"),
        (flat(start=-4), "outside the text"),
        (flat(start=10**25), "outside the text"),
        (flat(answer="", start=3), "empty"),
        (flat(answer=" ", start=4), "blank"),
        (flat(answer="\ud800", start=4), "not verbatim"),
    ],
)
def test_an_answer_that_is_not_where_it_says_is_refused(tmp_path: Path, qa: dict[str, Any], reason: str):
    parsed = read_one(tmp_path, paragraph(qa, flat()))
    assert parsed.document is not None and [s.value for s in parsed.document.facts] == ["Lima"]
    (refused,) = parsed.refusals
    assert refused.offset == qa["answer_start"] and reason in refused.reason


def test_overlapping_answers_are_resolved_and_counted(tmp_path: Path):
    qas = [
        flat("its capital in Lima", LIMA - 15),
        flat(),
        flat("capital", LIMA - 11),
        flat(question="Where again?"),
    ]
    parsed = read_one(tmp_path, paragraph(*qas))
    assert parsed.document is not None and parsed.refusals == ()
    assert [(s.value, s.question) for s in parsed.document.facts] == [
        ("capital", "Where?"),
        ("Lima", "Where?"),
    ]
    assert parsed.overlaps_resolved == 2
    assert check_spans("d", CONTEXT, parsed.document.facts) == (parsed.document.facts, ())


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6)), max_size=8))
def test_as_many_spans_as_can_be_apart_are_kept(ranges: list[tuple[int, int]]):
    spans = [FactSpan(a, a + n, "x" * n) for a, n in ranges]
    kept = resolve_overlaps(spans)
    assert all(a.end <= b.start for a, b in pairwise(kept))
    most = max(
        size
        for size in range(len(spans) + 1)
        if size == 0
        or any(
            all(a.end <= b.start or b.end <= a.start for a, b in combinations(some, 2))
            for some in combinations(spans, size)
        )
    )
    assert len(kept) == most


@pytest.mark.parametrize(
    "record, reason",
    [
        ([], "not a JSON object"),
        (3, "not a JSON object"),
        ({}, "no 'context'"),
        (paragraph(context=" "), "no 'context'"),
        (paragraph(context=["x"]), "no 'context'"),
        (paragraph(context="a\0b"), "a NUL character"),
        (paragraph(context="a\ud800b"), "a lone surrogate"),
        (paragraph(title="\ud800"), "a lone surrogate"),
        (paragraph() | {"qas": None}, "'qas' must be a list"),
        (paragraph() | {"qas": {"question": "x"}}, "'qas' must be a list"),
    ],
)
def test_a_paragraph_that_cannot_be_read_is_refused_in_either_layout(
    tmp_path: Path, record: Any, reason: str
):
    parsed = read_one(tmp_path, record)
    assert parsed.document is None and reason in parsed.refusals[0].reason
    title = record.get("title") if isinstance(record, dict) else None
    bad, *_ = read(tmp_path, official(record, title=title), "dev.json")
    assert bad.document is None and reason in bad.refusals[0].reason


def test_a_paragraph_without_questions_is_a_document_without_facts(tmp_path: Path):
    record = paragraph()
    del record["qas"]
    parsed = read_one(tmp_path, record)
    assert parsed.document is not None and parsed.document.facts == () and parsed.refusals == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"x"', b"{}", b'{"data": null}', b'{"data": {"a": 1}}', b"\xff\xfe", b"[" * 50_000,
     b'{"data": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_a_file_that_is_no_squad_file_is_refused_as_a_whole(tmp_path: Path, content: bytes):
    parsed = read_one(tmp_path, content, "dev.json")
    assert parsed.document is None and parsed.refusals[0].document == "dev.json"


@pytest.mark.parametrize("article", [None, 3, {}, {"title": "x"}, {"title": "x", "paragraphs": None}])
def test_an_article_that_cannot_be_read_is_refused_and_the_next_one_taken(tmp_path: Path, article: Any):
    content = official(paragraph(flat()))
    content["data"].insert(0, article)
    bad, good = read(tmp_path, content, "dev.json")
    assert bad.document is None and bad.refusals[0].document == "dev.json:0"
    assert good.document is not None and len(good.document.facts) == 1


def test_lines_that_are_no_utf8_or_no_json_are_refused_and_the_next_ones_taken(tmp_path: Path):
    good = json.dumps(paragraph(flat())).encode()
    lines = [b"\xef\xbb\xbf" + good, b"", b'{"context": "\xff"}', b"{", b"[" * 50_000, good + b"\r", b"  "]
    parsed = read(tmp_path, b"\n".join(lines))
    assert [p.document is not None for p in parsed] == [True, False, False, False, True]
    assert [(p.refusals[0].document, p.refusals[0].offset) for p in parsed[1:4]] == [
        ("some.jsonl:3", 13), ("some.jsonl:4", 2), ("some.jsonl:5", 0),
    ]  # fmt: skip


def test_a_byte_order_mark_does_not_cost_the_file(tmp_path: Path):
    content = json.dumps(official(paragraph(flat()))).encode("utf-8-sig")
    assert read_one(tmp_path, content, "dev.json").document is not None


def test_a_separator_inside_a_paragraph_does_not_end_its_line(tmp_path: Path):
    record = paragraph(context="one\u2028two\x85three\x1cfour")
    raw = json.dumps(record, ensure_ascii=False).replace("\\u001c", "\\u001c").encode()
    parsed = read_one(tmp_path, raw)
    assert parsed.document is not None and parsed.document.text == "one\u2028two\x85three\x1cfour"


@pytest.mark.shared_data
def test_the_shared_squad_reads_without_a_refusal():
    path = SHARED_DATA / "squad" / "dev.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path}")
    parsed = list(read_squad(path))
    assert len(parsed) > 1000
    assert not [r for p in parsed for r in p.refusals]
    ids = [p.document.external_id for p in parsed if p.document]
    assert len(set(ids)) == len(ids)


def test_a_quiz_has_every_question_with_all_its_answers_and_where_the_first_stands(tmp_path: Path):
    answers = [{"text": t, "answer_start": n} for t, n in (("Lima", 3), ("the city", 9), ("Lima", 30))]
    official = {"question": " Which? ", "answers": answers}
    malformed = [
        {"question": "Why?", "answers": []},
        {"question": 3, "answer": "x"},
        {"question": "Who?", "answer": " "},
        7,
    ]
    flat = {"question": "Which?", "answer": "Lima", "answer_start": 3}
    nested = {"data": [{"title": "a_b", "paragraphs": [{"context": "c", "qas": [official, *malformed]}]}]}
    (tmp_path / "nested.json").write_text(json.dumps(nested))
    lines = [{"title": "a_b", "context": "c", "qas": [flat]}, {"context": 3}, {"context": "c", "qas": "no"}]
    (tmp_path / "flat.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (one,) = read_questions(tmp_path / "nested.json")
    assert (one.question, one.answers, one.place) == ("Which?", ("Lima", "the city"), (3, 7))
    (other,) = read_questions(tmp_path / "flat.jsonl")
    assert (other.document, other.answers, other.place) == (one.document, ("Lima",), (3, 7))
    (tmp_path / "one.jsonl").write_text(json.dumps({"title": "a_b", "context": "c", "qas": []}))
    (paragraph,) = read_squad(tmp_path / "one.jsonl")
    assert paragraph.document is not None and paragraph.document.external_id == one.document
