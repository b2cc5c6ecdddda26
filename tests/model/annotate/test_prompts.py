"""The question generator sees its span's sentence and the text before it, and nothing later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.model.annotate.annotators import (
    NUMBERS,
    GeneratedQuestion,
    cut_prefixes,
    mark_spans,
    parse_question,
    prefix_for_each,
    question_suffix,
    question_target,
    sentence_stops,
    span_number,
)
from colmlm.model.text.markup import STANDARD
from colmlm.model.text.tokens import FactTokenizer
from tests.strategies import documents
from tests.tiny import bare_tokenizer

BYTES = FactTokenizer(bare_tokenizer(), markup=STANDARD)
TEXT = "The capital of Peru is Lima. Its great lake (Titicaca) is old. In 1911 a man came."
LIMA, LAKE, YEAR = ((TEXT.index(v), TEXT.index(v) + len(v)) for v in ("Lima", "Titicaca", "1911"))


def seen(text: str, spans: list[tuple[int, int]], title: str | None = None) -> list[str]:
    """Gives the text that each span's suffix sees."""
    marked = mark_spans(BYTES, text, spans, title)
    return [BYTES.decode(marked.ids[:stop]) for stop in marked.stops]


def test_a_span_sees_the_text_as_far_as_its_sentence_with_the_spans_marked():
    assert seen(TEXT, [LIMA, LAKE, YEAR]) == [
        "The capital of Peru is [1: Lima].",
        "The capital of Peru is [1: Lima]. Its great lake ([2: Titicaca]) is old.",
        "The capital of Peru is [1: Lima]. Its great lake ([2: Titicaca]) is old. In [3: 1911] a man came.",
    ]


@given(documents(), st.integers(1, NUMBERS))
def test_nothing_of_the_text_is_lost_and_each_span_is_in_what_it_sees(document, first: int):
    spans = [(span.start, span.end) for span in document.facts]
    marked = mark_spans(BYTES, document.text, spans, document.title, first=first)
    whole = document.text
    for i, (start, end) in reversed(list(enumerate(spans))):
        before = whole[:start]
        lead, before = (
            (" ", before[:-1])
            if before.endswith(" ") and start > (spans[i - 1][1] if i else 0)
            else ("", before)
        )
        whole = f"{before}{lead}[{span_number(i, first)}: {document.text[start:end]}]{whole[end:]}"
    assert BYTES.decode(marked.ids) == whole
    assert marked.stops == sorted(marked.stops)
    for i, ((start, end), stop) in enumerate(zip(spans, marked.stops, strict=True)):
        visible = BYTES.decode(marked.ids[:stop])
        assert f"[{span_number(i, first)}: {document.text[start:end]}]" in visible


@given(documents(), documents())
def test_what_a_span_sees_does_not_depend_on_what_comes_after_its_sentence(document, other):
    spans = [(span.start, span.end) for span in document.facts]
    marked = mark_spans(BYTES, document.text, spans, document.title)
    for end, stop in zip(sentence_stops(document.text, spans), marked.stops, strict=True):
        kept = [span for span in spans if span[1] <= end]
        changed = f"{document.text[:end]}\n\n{other.text}"
        assert mark_spans(BYTES, changed, kept, document.title).ids[:stop] == marked.ids[:stop]


def test_a_sentence_without_an_end_is_cut():
    text = "x " + "word " * 300
    (visible,) = seen(text, [(0, 1)])
    assert 300 < len(visible) < 420 and visible.endswith("word")
    (visible,) = seen("x" * 2000, [(0, 5)])
    assert len(visible) < 420


def test_a_special_token_in_a_document_is_its_characters():
    marked = mark_spans(BYTES, "a <|endoftext|> b", [(0, 1)], "<|endoftext|>")
    assert BYTES.end_of_text not in marked.ids and marked.lead.count(BYTES.end_of_text) == 1


@given(documents(), st.integers(40, 120))
def test_windows_hold_every_span_once_with_its_sentence_and_half_a_window_before(document, size: int):
    spans = [(span.start, span.end) for span in document.facts]
    marked = mark_spans(BYTES, document.text, spans, document.title)
    found = sorted(cut_prefixes(marked, size), key=lambda p: p.spans)
    assert [span for prefix in found for span in prefix.spans] == list(range(len(spans)))
    room = size - min(len(marked.lead), size // 4)
    for prefix in found:
        assert len(prefix.ids) <= size and max(prefix.stops) == len(prefix.ids)
        for span, stop in zip(prefix.spans, prefix.stops, strict=True):
            text = marked.ids[: marked.stops[span]]
            kept = stop - (size - room)
            assert kept == len(text) or kept >= room // 2
            assert prefix.ids[:stop][-kept:] == text[-kept:] if kept else not text


def test_unshared_prefixes_are_what_each_span_sees():
    (prefix,) = cut_prefixes(mark_spans(BYTES, TEXT, [LIMA, LAKE], "Peru"), 500)
    alone = prefix_for_each(prefix)
    assert [p.spans for p in alone] == [[0], [1]]
    assert [BYTES.decode(p.ids) for p in alone] == [f"Peru\n\n{s}" for s in seen(TEXT, [LIMA, LAKE])]


@given(st.text(min_size=1).filter(str.strip), st.text(min_size=1).filter(str.strip))
def test_what_is_written_is_read_back(question: str, answer: str):
    try:
        question.encode(), answer.encode()
    except UnicodeEncodeError:
        return
    one_line = [" ".join(words.split()) for words in (question, answer)]
    written = BYTES.decode(question_target(BYTES, GeneratedQuestion(question, answer)))
    if "\x00" in written:
        assert parse_question(written) is None
    else:
        assert parse_question(written) == GeneratedQuestion(*one_line)


@pytest.mark.parametrize(
    "written",
    ["", "\n", " \nAnswer: Lima", " Where?\n", " Where?\nAnswer:", " Where?\nAnswer: \n", "Where?",
     " Where?\n\nAnswer: Lima", "\x00?\nAnswer: a"],
)  # fmt: skip
def test_what_is_no_question_with_an_answer_is_none(written: str):
    assert parse_question(written) is None


def test_what_comes_after_the_two_lines_does_not_count():
    assert parse_question(" Where?\nAnswer: Lima\n\n[2: x]") == GeneratedQuestion("Where?", "Lima")


def test_a_suffix_names_its_span_and_numbers_come_round():
    assert BYTES.decode(question_suffix(BYTES, "Lima", 3)) == "\n\n[3: Lima]\nQuestion:"
    assert [span_number(i, 98) for i in range(4)] == [98, 99, 1, 2]
