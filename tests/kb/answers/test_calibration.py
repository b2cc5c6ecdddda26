"""Calibration: the threshold holds the stated rate as far as the sample can tell, or is refused with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.calibration import (
    JudgedAnswer,
    KnownQuestion,
    SampleAnswers,
    allowed_wrong,
    ask_each,
    calibrate_answers,
    draw_questions,
    least_questions,
    upper_bound,
)
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.kb.errors import CalibrationRefused
from colmlm.kb.lookup.options import FactFilter
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, document, fact_id, ingest

SHIPPED = 0.68
WHO = {"actor": "tester", "reason": "test"}


@pytest.fixture
def answers(kb: KnowledgeBase) -> Answering:
    ingest(kb, PERU, CHILE)
    encoder = WordEncoder()
    kb.keysets.rekey(encoder)
    return Answering(kb, Questions(kb, [encoder]), NearReader())


def sample(right: int, wrong: list[float], alarms: list[float], number: int = 100) -> SampleAnswers:
    """So many right answers at 0.9, wrong ones and answers to questions without one at these scores, else none."""

    def filled(said: list[JudgedAnswer]) -> list[JudgedAnswer]:
        return said + [JudgedAnswer(0.0, "none")] * (number - len(said))

    answered = [JudgedAnswer(0.9, "right")] * right + [JudgedAnswer(score, "wrong") for score in wrong]
    return SampleAnswers(filled(answered), filled([JudgedAnswer(score, "wrong") for score in alarms]))


def test_the_bound_is_clopper_and_pearsons() -> None:
    # scipy.stats.beta.ppf(0.8, wrong + 1, questions - wrong)
    assert upper_bound(0, 32) == pytest.approx(1 - 0.2 ** (1 / 32), abs=1e-9)
    assert upper_bound(11, 300) == pytest.approx(0.0489444, abs=1e-6)
    assert least_questions(0.05) == 32 and allowed_wrong(31, 0.05) == -1 and allowed_wrong(32, 0.05) == 0
    for number in (50, 155, 300, 1000):
        assert (
            upper_bound(allowed_wrong(number, 0.05), number)
            <= 0.05
            < upper_bound(allowed_wrong(number, 0.05) + 1, number)
        )


def test_the_threshold_goes_down_where_less_is_wrong_than_is_allowed() -> None:
    found = calibrate_answers(sample(60, [0.5, 0.3, 0.2, 0.1, 0.1], [0.2]), SHIPPED)
    assert 0.1 < found.here.threshold < SHIPPED
    assert found.here.wrong <= 0.05 and found.most_wrong <= 0.05
    assert (found.here.right, found.answerable, found.unanswerable) == (0.6, 100, 100)


def test_the_threshold_goes_up_where_the_sample_shows_more_than_the_rate() -> None:
    found = calibrate_answers(sample(60, [0.8] * 8, []), SHIPPED)
    assert 0.8 < found.here.threshold <= 0.9
    assert found.shipped.wrong == 0.08 and found.here.wrong == 0.0 and found.here.right == 0.6


def test_too_many_answers_to_questions_without_one_raise_it_too() -> None:
    found = calibrate_answers(sample(60, [], [0.75] * 9), SHIPPED)
    assert found.here.threshold > 0.75 and found.here.alarms == 0.0


def test_a_passage_counts_as_it_is_said() -> None:
    how = JudgedAnswer(0.9, "right", 0.8, "wrong", asks_for_several=True)
    assert [how.outcome_at(threshold) for threshold in (0.95, 0.9, 0.8)] == ["none", "right", "wrong"]
    what = JudgedAnswer(0.5, "wrong", 0.7, "right")
    assert [what.outcome_at(threshold) for threshold in (0.8, 0.7, 0.5)] == ["none", "right", "wrong"]
    read = sample(0, [], [])
    read.answerable[:60] = [JudgedAnswer(0.0, "none", 0.9, "right")] * 60
    read.others[:9] = [JudgedAnswer(0.0, "none", 0.75, "wrong")] * 9
    found = calibrate_answers(read, SHIPPED)
    assert found.here.threshold > 0.75 and (found.here.right, found.here.alarms) == (0.6, 0.0)


def test_a_small_sample_raises_nothing_for_want_of_certainty() -> None:
    read = sample(30, [0.8, 0.7], [], number=40)  # 5 % wrong, but it could be 10 %
    assert calibrate_answers(read, SHIPPED).here.threshold == SHIPPED
    assert calibrate_answers(read, SHIPPED).most_wrong > 0.05
    assert calibrate_answers(read, SHIPPED, 0.049).here.threshold > 0.8, (
        "the shipped one was not fitted to less"
    )


def test_what_cannot_hold_the_rate_is_refused_with_the_reason() -> None:
    with pytest.raises(CalibrationRefused, match=r"takes 32 questions with an answer .* these are 20"):
        calibrate_answers(sample(20, [], [], number=20), SHIPPED)
    few = sample(60, [], [])
    with pytest.raises(CalibrationRefused, match=r"without an answer .* these are 3"):
        calibrate_answers(replace(few, others=few.others[:3]), SHIPPED)
    with pytest.raises(CalibrationRefused, match="answered wrongly"):
        calibrate_answers(sample(60, [0.95] * 20, []), SHIPPED)
    with pytest.raises(CalibrationRefused, match="without an answer get one"):
        calibrate_answers(sample(60, [], [0.95] * 20), SHIPPED)


def test_a_question_is_asked_again_as_if_what_answers_it_were_not_there(answers: Answering) -> None:
    told: list[tuple[int, int | None]] = []
    read = ask_each(
        answers,
        [
            KnownQuestion(CAPITAL, ("the Lima",)),
            KnownQuestion(HEIGHT, ("8,848 m",)),
            KnownQuestion("Who rules?", ()),
        ],
        lambda done, total: told.append((done, total)),
    )
    assert [one.outcome for one in read.answerable] == ["right", "wrong"]
    assert read.answerable[0].score > 0.5
    assert len(read.others) == 2 and all(one.outcome != "right" for one in read.others)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_what_touches_the_facts_own_span_is_right(answers: Answering, kb: KnowledgeBase) -> None:
    lima = fact_id(kb, "Lima")
    for of, outcome in ((lima, "right"), (None, "wrong")):
        (found,) = ask_each(answers, [KnownQuestion(CAPITAL, ("The city",), of)], lambda *_: None).answerable
        assert found.outcome == outcome


def test_a_deleted_answer_counts_as_none(answers: Answering, kb: KnowledgeBase) -> None:
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    read = ask_each(answers, [KnownQuestion(CAPITAL, ("Lima",))], lambda *_: None)
    assert [one.outcome for one in read.answerable] == ["none"]


def test_questions_are_drawn_from_live_facts_of_the_named_corpora(
    answers: Answering, kb: KnowledgeBase
) -> None:
    kb.facts.add("What is the capital of Ecuador?", "Quito", **WHO)
    drawn = draw_questions(answers, ["lands"], 100, 0)
    assert {one.text for one in drawn} >= {CAPITAL, HEIGHT} and all(
        "Ecuador" not in one.text for one in drawn
    )
    assert drawn == draw_questions(answers, ["lands"], 100, 0)
    assert len(draw_questions(answers, ["lands"], 1, 0)) == 1 and not draw_questions(answers, ["other"], 9, 0)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    assert CAPITAL not in {one.text for one in draw_questions(answers, ["lands"], 100, 0)}
    kb.corpora.ingest([Parsed(PERU)], "made", **WHO, generated=True)
    assert not draw_questions(answers, ["made"], 9, 0), "these are answered too easily"


def catalogue(things: int) -> AnnotatedDocument:
    """A long document: so many things, each with a sentence of three facts."""
    pieces: list[str | tuple[str, str]] = []
    for n in range(things):
        pieces += [
            f"Thing {n} is made by ",
            (f"Maker{n}", f"Who makes thing {n}?"),
            " in ",
            (f"Town{n}", ""),
            ". ",
        ]
    return document("catalogue", *pieces)


def test_a_long_document_is_left_out_whole_however_many_sentences_it_has(kb: KnowledgeBase) -> None:
    ingest(kb, catalogue(250), CHILE)
    encoder = WordEncoder()
    kb.keysets.rekey(encoder)
    answers = Answering(kb, Questions(kb, [encoder]), NearReader())
    asked = [KnownQuestion(f"Who makes thing {n}?", (f"Maker{n}",)) for n in (7, 90)]
    read = ask_each(answers, asked, lambda *_: None)
    assert [one.outcome for one in read.answerable] == ["right", "right"]
    assert len(read.others) == 2 and all(one.outcome != "right" for one in read.others)
    with kb.sessions() as session:
        ids = frozenset(session.scalars(text("SELECT id FROM fact WHERE document_id = 1")))
    _, near = Questions(kb, [encoder]).nearest("Who makes thing 7?", 50, FactFilter(without=ids))
    assert [hit.value for hit in near.hits] == ["Santiago"]


def test_without_another_document_nothing_is_told_of_questions_that_nothing_answers(
    kb: KnowledgeBase,
) -> None:
    ingest(kb, catalogue(40))
    answers = Answering(kb, None, NearReader())
    asked = [KnownQuestion(f"Who makes thing {n}?", (f"Maker{n}",)) for n in range(40)]
    read = ask_each(answers, asked, lambda *_: None)
    assert (len(read.answerable), len(read.others)) == (40, 0)
    with pytest.raises(CalibrationRefused, match=r"without an answer .*Add 32 or more with an empty value"):
        calibrate_answers(read, SHIPPED)


def test_too_few_questions_are_refused_with_the_rate_that_they_can_tell() -> None:
    with pytest.raises(
        CalibrationRefused, match=r"Add 12 or more, or allow 7.8% wrong ones with --wrong 0.078"
    ):
        calibrate_answers(sample(20, [], [], number=20), SHIPPED)
