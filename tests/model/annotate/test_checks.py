"""The checks of annotations: every fault is named, and only the part at fault is removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan, parse_inline
from colmlm.model.annotate.checks import Fault, ReviewedDocument, review, span_fault, spans_of, words_of_text
from tests.kb.corpora import inline
from tests.strategies import texts

TEXT = (
    "The harbour of Lundvik was built in 1834 by the engineer Astrid Holm. It has nine piers. "
    "In July 1913 the painter Nils Berg drew its lighthouse, which stood since 21 May 1871."
)


def spans_kept(text: str, title: str | None, *values: str) -> list[str]:
    spans = tuple(FactSpan(text.index(v), text.index(v) + len(v), v) for v in values)
    return [span.value for span in review(AnnotatedDocument("d", text, spans, title=title)).document.facts]


def test_a_span_that_names_what_the_document_is_about_is_no_fact_of_it() -> None:
    text = "George James Rankin was a soldier and a politician. In 1943 Rankin joined the Country Party."
    values = ("George James Rankin", "soldier", "politician", "1943", "Country Party")
    assert spans_kept(text, "George Rankin (politician)", *values) == list(values[1:])
    assert spans_kept(text, "Rankin of the Country Party", *values) == ["George James Rankin", *values[1:4]]
    assert spans_kept(text, None, *values) == list(values)


def test_a_title_of_one_word_may_be_a_part_of_another_name() -> None:
    assert spans_kept("In Paris plays Paris Saint-Germain.", "Paris", "Paris", "Paris Saint-Germain") == [
        "Paris Saint-Germain"
    ]


def reviewed(value: str, question: str | None, answer: str | None = None, *later: str) -> ReviewedDocument:
    """Reviews TEXT with this one fact, and with `later` values as further facts without a question."""
    values = sorted((value, *later), key=TEXT.index)
    spans = (FactSpan(TEXT.index(v), TEXT.index(v) + len(v), v) for v in values)
    asked = (FactSpan(s.start, s.end, s.value, question, answer) if s.value == value else s for s in spans)
    return review(AnnotatedDocument("harbour", TEXT, tuple(asked), title="Lundvik's old harbour"))


@pytest.mark.parametrize(
    "value, question, answer",
    [
        ("1834", "When was the harbour of Lundvik built?", "in the year 1834"),
        (
            "1834",
            "In which year did Astrid Holm build the harbor of Lundvik?",
            None,
        ),  # the same sentence continues
        (
            "Astrid Holm",
            "Who was the engineer that constructed Lundvik's old harbour?",
            "engineer Astrid Holm",
        ),
        ("nine piers", "How many piers does the harbour of Lundvik have?", "piers numbering nine"),
        ("Nils Berg", "Which painter drew the lighthouse of Lundvik in 1913?", "Nils Berg"),
        (
            "21 May 1871",
            "How long did the lighthouse of Lundvik stand when Nils Berg drew it?",
            "May 21, 1871",
        ),
        (
            "July 1913",
            "When did Nils Berg draw Lundvik's lighthouse?",
            "the drawing that was made in Jul 1913",
        ),
        ("Astrid Holm", None, None),
    ],
)
def test_what_is_sound_stays_as_it_is(value: str, question: str | None, answer: str | None) -> None:
    got = reviewed(value, question, answer)
    assert got.rejected == ()
    assert (got.document.facts[0].question, got.document.facts[0].answer) == (question, answer)


@pytest.mark.parametrize(
    "value, question, code, said",
    [
        ("1834", "When was the harbour that Nils Berg drew built?", "forward", "'Nils'"),
        ("1834", "When was the harbour with the lighthouse built?", "forward", "'lighthouse'"),
        ("1834", "When was the harbour of Lundvik in Norway built?", "forward", "'Norway'"),
        ("1834", "What was built 79 years before the war?", "forward", "'79'"),
        ("1834", "When was it built?", "pointing", "'it'"),
        ("nine piers", "What does this harbour have?", "pointing", "'this'"),
        ("1834", "Which year does the text give for Lundvik?", "pointing", "'the text'"),
        ("1834", "When was the harbour mentioned above built?", "pointing", "'mentioned above'"),
        ("1834", "When was he born?", "pointing", "'he'"),
        ("1834", "In which year?", "vague", "names nothing"),
        ("1834", "What was built in 1834 in Lundvik?", "answered", "'1834'"),
        ("Astrid Holm", "Which Holm, called Astrid, built the harbour?", "answered", "'Astrid Holm'"),
        ("1834", "Why?\nWhen was the harbour built?", "form", "one line"),
        ("1834", "When was the <FACT> harbour built?", "form", "tag"),
        ("1834", "W?", "form", "2 characters"),
        ("1834", "When " * 80, "form", "400 characters".replace("400", "399")),
    ],
)
def test_a_question_at_fault_goes_with_its_answer_and_leaves_the_fact(
    value: str, question: str, code: str, said: str
) -> None:
    got = reviewed(value, question, value)
    (rejected,) = got.rejected
    assert rejected.code == code and said in rejected.reason
    assert (rejected.document, rejected.start, rejected.question) == ("harbour", TEXT.index(value), question)
    (fact,) = got.document.facts
    assert (fact.value, fact.question, fact.answer) == (value, None, None)


def test_a_question_gives_no_later_fact_away_in_its_own_sentence_either() -> None:
    question = "In which year did Astrid Holm build the harbour of Lundvik?"
    assert reviewed("1834", question).rejected == ()
    (rejected,) = reviewed("1834", question, None, "Astrid Holm").rejected
    assert rejected.code == "reveals" and "'Astrid Holm'" in rejected.reason
    earlier = reviewed("Astrid Holm", "Who built the harbour of Lundvik in 1834?", None, "1834")
    assert earlier.rejected == ()  # text before the span is no secret


@pytest.mark.parametrize(
    "value, answer, code, said",
    [
        ("Astrid Holm", "the engineer Astrid", "lossy", "'Holm'"),
        ("21 May 1871", "May 1871", "lossy", "'21'"),
        ("nine piers", "it is nine piers", "clause", "'it'"),
        ("nine piers", "the harbour has nine piers", "clause", "'has'"),
        ("nine piers", "Piers to the number of nine.", "clause", "ends like a sentence"),
        ("1834", "1834 " + "and so on " * 8, "clause", "25 words"),
        ("1834", "...", "clause", "no word"),
    ],
)
def test_an_answer_at_fault_goes_and_leaves_the_question(
    value: str, answer: str, code: str, said: str
) -> None:
    question = "What is known of the harbour of Lundvik?"
    got = reviewed(value, question, answer)
    (rejected,) = got.rejected
    assert rejected.code == code and said in rejected.reason and rejected.answer == answer
    assert (got.document.facts[0].question, got.document.facts[0].answer) == (question, None)


@pytest.mark.parametrize(
    "text, value, sound",
    [
        ("It rose by 12 m", "12", True),
        ("It rose by 12 m", "1", False),
        ("the lighthouse", "light", False),
        ("the lighthouse", "house", False),
        ("year 1913, in", ",", False),
        ("利马是首都", "首都", True),
        ("The band", "The", False),
        ("as one of the", "of the", False),
        ("The Who played", "The Who", True),
        ("They work in IT", "IT", True),
        ("at the same time", "same time", False),
        ("one of two", "one", True),
        ("the Old Town", "Old Town", True),
    ],
)
def test_a_span_is_of_whole_words(text: str, value: str, sound: bool) -> None:
    span = FactSpan(text.index(value), text.index(value) + len(value), value)
    assert (span_fault(text, span) is None) is sound
    got = review(AnnotatedDocument("x", text, (span,)))
    assert len(got.document.facts) == sound and [r.code for r in got.rejected] == ["span"] * (not sound)


def test_facts_without_a_question_can_be_dropped() -> None:
    document = reviewed("1834", "When was it built?", None, "Astrid Holm").document
    assert len(document.facts) == 2
    assert review(document, drop_unquestioned=True).document.facts == ()


def test_the_tags_are_taken_off_only_from_the_very_text() -> None:
    marked = 'Lima & co are <FACT q="What is in &quot;Peru&quot;?" a="Lima">Lima</FACT>.'
    (span,) = spans_of("Lima & co are Lima.", marked)  # type: ignore[misc]
    assert (span.start, span.question) == (14, 'What is in "Peru"?')  # type: ignore[union-attr]
    for source, code, said in (
        ("Lima & co is Lima.", "altered", "at character 10"),
        ("Lima & co are Lima", "altered", "at character 18"),
        ("Lima & co are Lima.", "malformed", "never closed"),
    ):
        fault = spans_of(source, marked if code == "altered" else marked.replace("</FACT>", ""))
        assert isinstance(fault, Fault) and fault.code == code and said in fault.reason


@given(texts, st.data())
def test_a_verbatim_annotation_is_always_recognised(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1)) if text else 0
    end = data.draw(st.integers(start, len(text)))
    if not text[start:end].strip() or "<" in text:
        return
    marked = inline(AnnotatedDocument("x", text, (FactSpan(start, end, text[start:end]),)))
    assert spans_of(text, marked) == parse_inline(marked)[1]
    assert isinstance(spans_of(text + "x", marked), Fault)


@pytest.mark.parametrize(
    "one, other, same",
    [
        ("cities", "city", True), ("discovery", "discovered", True), ("Holm's", "holm", True),
        ("Diogo Cão", "diogo cao", True), ("1,834", "1834", True), ("19th", "19", True), ("Sept", "September", True),
        ("avant-garde", "avant garde", True), ("1834", "1835", False), ("pier", "harbour", False),
    ],
)  # fmt: skip
def test_words_are_compared_by_their_roots(one: str, other: str, same: bool) -> None:
    assert ([w.key for w in words_of_text(one)] == [w.key for w in words_of_text(other)]) is same
