"""The corpus format: what is taken comes back as it was, and what is not is refused with document, place and reason."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from colmlm.kb.corpus.format import (
    AnnotatedDocument,
    FactSpan,
    InlineError,
    Parsed,
    Refusal,
    check_spans,
    document_digests,
    parse_inline,
    parse_line,
    read_annotated,
    to_record,
)
from tests.kb.corpora import inline
from tests.strategies import documents, texts

TEXT = "Its capital is Lima."
FACT = {"start": 15, "end": 19, "value": "Lima"}


def line(**changes: Any) -> str:
    return json.dumps({"id": "peru", "text": TEXT, "facts": [FACT], **changes})


def parse(text: str | bytes) -> Parsed:
    return parse_line(text, where="file:7")


def refusal(text: str | bytes) -> Refusal:
    """The only refusal, of a line that gave no document."""
    parsed = parse(text)
    assert parsed.document is None
    (refused,) = parsed.refusals
    return refused


@given(documents(), st.booleans())
def test_a_written_document_is_read_back_the_same(document: AnnotatedDocument, ascii_only: bool):
    written = json.dumps(to_record(document), ensure_ascii=ascii_only)
    assert parse(written) == parse(written.encode()) == Parsed(document)


@given(documents())
def test_the_inline_form_gives_text_and_spans_back(document: AnnotatedDocument):
    assume("<FACT" not in document.text and "</FACT" not in document.text)
    marked = inline(document)
    assert parse_inline(marked) == (document.text, document.facts)
    record = to_record(document) | {"text": marked}
    del record["facts"]
    assert parse(json.dumps(record)) == Parsed(document)


def test_a_number_is_an_id():
    document = parse(line(id=7)).document
    assert document is not None and document.external_id == "7"


@given(texts)
def test_any_text_is_read_as_inline_or_refused_at_a_tag(text: str):
    try:
        plain, spans = parse_inline(text)
    except InlineError as error:
        assert text[error.offset :].startswith(("<FACT", "</FACT"))
    else:
        assert check_spans("d", plain, spans) == (spans, ())


@given(
    st.text()
    | st.binary()
    | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps)
)
def test_no_line_whatever_raises(text: str | bytes):
    assert parse(text).refusals


@given(
    st.dictionaries(
        st.sampled_from(["start", "end", "value", "question"]),
        st.integers() | st.floats() | st.booleans() | st.text() | st.none(),
    )
)
def test_no_fact_whatever_raises_and_none_that_does_not_hold_is_taken(fact: dict[str, Any]):
    parsed = parse(line(facts=[fact]))
    assert parsed.document is not None
    assert len(parsed.document.facts) + len(parsed.refusals) == 1
    for span in parsed.document.facts:
        assert TEXT[span.start : span.end] == span.value


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text, offset, reason",
    [
        ("{", 1, "not JSON: Expecting property name"),
        (b"", 0, "not JSON: Expecting value"),
        ("\ufeff{}", 0, "not JSON: Unexpected UTF-8 BOM"),
        (b'{"id": "\xff"}', 8, "not UTF-8"),
        (b'{"id": "\xed\xa0\x80"}', 8, "not UTF-8"),  # a surrogate in the form that only old writers make
        ('{"id": "a"}'.encode("utf-16"), 0, "not UTF-8"),
        (DEEP, 0, "nested too deeply"),
        ('{"id": "a", "text": "t", "facts": ' + DEEP + "}", 0, "nested too deeply"),
        ('{"n": ' + "9" * 5000 + "}", 0, "a number of thousands of digits"),
        ("[]", 0, "not a JSON object"),
        ("NaN", 0, "not a JSON object"),
        ('"x"', 0, "not a JSON object"),
        (line(id=None), 0, "no document id"),
        (line(id=7.5), 0, "no document id"),
        (line(id=True), 0, "no document id"),
        (line(id="  "), 0, "no document id"),
        (line(id="a\0"), 0, "'id' has a NUL"),
        (line(id="a\ud800"), 0, "'id' has a lone surrogate"),
    ],
)  # fmt: skip
def test_a_line_without_a_usable_id_is_refused_by_its_place_in_the_file(
    text: str | bytes, offset: int, reason: str
):
    refused = refusal(text)
    assert (refused.document, refused.offset) == ("file:7", offset)
    assert reason in refused.reason


@pytest.mark.parametrize(
    "changes, offset, reason",
    [
        ({"text": None}, 0, "no text"),
        ({"text": ["x"]}, 0, "no text"),
        ({"text": " \n"}, 0, "no text"),
        ({"text": "ab\0c"}, 2, "a NUL character"),
        ({"text": "🏔️\udfffc"}, 2, "a lone surrogate"),
        ({"title": 1}, 0, "'title' must be a string"),
        ({"uri": {}}, 0, "'uri' must be a string"),
        ({"licence": True}, 0, "'licence' must be a string"),
        ({"revision": 1}, 0, "'revision' must be a string"),
        ({"title": "x\0"}, 0, "'title' has a NUL character"),
        ({"uri": "\ud800"}, 0, "'uri' has a lone surrogate"),
    ],
)
def test_a_document_that_cannot_be_stored_is_refused_by_its_id(
    changes: dict[str, Any], offset: int, reason: str
):
    refused = refusal(line(**changes))
    assert (refused.document, refused.offset) == ("peru", offset)
    assert reason in refused.reason


@pytest.mark.parametrize(
    "fact, offset, reason",
    [
        ([], 0, "not a JSON object"),
        ({}, 0, "'start' must be an integer"),
        (FACT | {"start": True}, 0, "'start' must be an integer"),
        (FACT | {"start": 15.0}, 0, "'start' must be an integer"),
        (FACT | {"start": float("nan")}, 0, "'start' must be an integer"),
        (FACT | {"start": "15"}, 0, "'start' must be an integer"),
        (FACT | {"end": False}, 15, "'end' must be an integer"),
        (FACT | {"value": None}, 15, "'value' must be a string"),
        (FACT | {"question": 1}, 15, "'question' must be a string"),
        (FACT | {"answer": []}, 15, "'answer' must be a string"),
        (FACT | {"question": "Who\0?"}, 15, "'question' must be a string that can be stored"),
        (FACT | {"answer": "\ud800"}, 15, "'answer' must be a string that can be stored"),
        (FACT | {"current": 7}, 15, "'current' must be a string that can be stored"),
        (FACT | {"current": "\0"}, 15, "'current' must be a string that can be stored"),
        (FACT | {"current": " "}, 15, "'current' must not be blank"),
        (FACT | {"deleted": 1}, 15, "'deleted' must be true or false"),
        (FACT | {"start": -5, "end": -1}, -5, "outside the text of 20 characters"),
        (FACT | {"start": 10**30, "end": 10**30 + 4}, 10**30, "outside the text"),
        (FACT | {"end": 21}, 15, "outside the text"),
        (FACT | {"end": 15, "value": ""}, 15, "empty or outside"),
        (FACT | {"start": 19, "end": 15}, 19, "empty or outside"),
        (FACT | {"value": "lima"}, 15, "not verbatim: the text has 'Lima', the span says 'lima'"),
        (FACT | {"value": "Lima\ud800"}, 15, r"'Lima\ud800'"),
        ({"start": 14, "end": 15, "value": " "}, 14, "the span is blank"),
    ],
)  # fmt: skip
def test_a_span_that_does_not_hold_is_refused_and_its_document_taken(fact: Any, offset: int, reason: str):
    good = {"start": 0, "end": 3, "value": "Its"}
    parsed = parse(line(facts=[fact, good]))
    assert parsed.document is not None and [s.value for s in parsed.document.facts] == ["Its"]
    (refused,) = parsed.refusals
    assert (refused.document, refused.offset) == ("peru", offset) and type(refused.offset) is int
    assert reason in refused.reason


@pytest.mark.parametrize("facts", [None, {}, "x", float("nan"), 1])
def test_facts_that_are_no_list_are_refused_and_the_document_taken(facts: Any):
    parsed = parse(line(facts=facts))
    assert parsed.document is not None and parsed.document.facts == ()
    assert parsed.refusals == (Refusal("peru", 0, "'facts' must be a list"),)


def test_of_overlapping_spans_the_first_stays_whatever_their_order():
    spans = [(8, 12), (0, 5), (4, 9), (5, 8), (0, 3)]
    facts = [{"start": a, "end": b, "value": TEXT[a:b]} for a, b in spans]
    parsed = parse(line(facts=facts))
    assert parsed.document is not None
    assert [(s.start, s.end) for s in parsed.document.facts] == [(0, 3), (4, 9)]
    assert [r.offset for r in parsed.refusals] == [0, 5, 8]
    assert all("overlaps the span before it, which ends at" in r.reason for r in parsed.refusals)


def test_offsets_are_code_points_and_not_bytes_or_utf16_units():
    text = "🏔️ naïve e\u0301: 東京"
    start = text.index("東京")
    record = {"id": "a", "text": text, "facts": [{"start": start, "end": start + 2, "value": "東京"}]}
    for written in (json.dumps(record), json.dumps(record, ensure_ascii=False)):
        parsed = parse(written.encode())
        assert parsed.refusals == () and parsed.document is not None
        assert parsed.document.facts[0].start == start


def test_of_a_key_given_twice_the_last_counts():
    parsed = parse('{"id": "a", "id": "b", "text": "x", "facts": []}')
    assert parsed.document == AnnotatedDocument("b", "x")


def test_an_empty_question_is_no_question():
    parsed = parse(line(facts=[FACT | {"question": "", "answer": ""}]))
    assert parsed.document is not None
    assert parsed.document.facts == (FactSpan(15, 19, "Lima"),)


INLINE = [
    ("a</FACT>", 1, "stray"),
    ("a <FACT", 2, "stray or malformed"),
    ("a <FACT-q>", 2, "stray or malformed"),
    ('<FACT x="1">a</FACT>', 0, "stray or malformed"),
    ("<FACT q='a'>a</FACT>", 0, "stray or malformed"),
    ('<FACT q="a>b</FACT>', 0, "stray or malformed"),
    ("<FACT>a", 0, "never closed"),
    ("ab <FACT></FACT>", 3, "the span is empty"),
    ("ab <FACT> \n</FACT>", 3, "the span is empty"),
    ("<FACT>a<FACT>b</FACT></FACT>", 0, "inside a <FACT>"),
    ("<FACT>a</FACT></FACT>", 14, "stray"),
]


@pytest.mark.parametrize("text, offset, reason", INLINE)
def test_inline_markup_that_cannot_be_read_is_refused_at_its_tag(text: str, offset: int, reason: str):
    with pytest.raises(InlineError, match=f"offset {offset}: .*{reason}"):
        parse_inline(text)
    refused = refusal(json.dumps({"id": "a", "text": text}))
    assert (refused.document, refused.offset) == ("a", offset) and reason in refused.reason


def test_the_inline_form_of_the_paper_is_read():
    text, spans = parse_inline(
        'In <FACT q="When &quot;was&quot; it?" a="in 1981">1981</FACT>, <FACT  a="x > </FACT> y"\n>é🏔️</FACT>'
        "<FACT>b</FACT>."
    )
    assert text == "In 1981, é🏔️b."
    assert spans == (
        FactSpan(3, 7, "1981", 'When "was" it?', "in 1981"),
        FactSpan(9, 12, "é🏔️", None, "x > </FACT> y"),
        FactSpan(12, 13, "b"),
    )


def test_words_that_only_begin_like_a_tag_are_text():
    assert parse_inline("<FACTS> <FACTor> </FACT_1> < FACT> <fact>") == (
        "<FACTS> <FACTor> </FACT_1> < FACT> <fact>",
        (),
    )


def test_reading_goes_on_after_a_bad_line_and_passes_over_blank_ones(tmp_path: Path):
    path = tmp_path / "corpus.jsonl"
    bad = b'{"id": "\xff"}'
    path.write_bytes(
        b"\xef\xbb\xbf" + line().encode() + b"\r\n\r\n   \n" + bad + b"\n" + line(id="b").encode()
    )
    first, second, third = read_annotated(path)
    assert first.document is not None and first.document.external_id == "peru"
    assert second.refusals == (Refusal("corpus.jsonl:4", 8, "not UTF-8"),)
    assert third.document is not None and third.document.external_id == "b"


def test_an_empty_file_has_no_documents(tmp_path: Path):
    (tmp_path / "empty.jsonl").write_bytes(b"")
    assert list(read_annotated(tmp_path / "empty.jsonl")) == []


@given(documents(), st.data())
def test_spans_that_hold_are_all_kept_in_any_order(document: AnnotatedDocument, data: st.DataObject):
    assume(document.facts)
    shuffled = data.draw(st.permutations(document.facts))
    assert check_spans("d", document.text, shuffled) == (document.facts, ())


@given(documents())
def test_the_digest_is_that_of_the_canonical_record_without_what_became_of_it(document: AnnotatedDocument):
    canonical = json.dumps(to_record(document), sort_keys=True, separators=(",", ":"))
    sha256 = [hashlib.sha256(words.encode()).hexdigest() for words in (document.text, canonical)]
    assert list(document_digests(document)) == sha256
    edited = replace(document, facts=tuple(replace(s, current="x", deleted=True) for s in document.facts))
    assert document_digests(edited) == document_digests(document)
    assert parse(json.dumps(to_record(edited))) == Parsed(edited)
