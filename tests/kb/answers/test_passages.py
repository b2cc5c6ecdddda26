"""Where no few words are sure enough, the lines that answer are said: verbatim, cited, and only what is live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.reading import UNFITTED, Confidence, Passage, PassageReading
from colmlm.kb.answers.records import PASSAGE, SPAN
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.lookup.likeness import fill_sentence_vectors
from colmlm.kb.service import KnowledgeBase
from tests.fakes import SURE_OF_PASSAGES, SayingReader
from tests.kb.corpora import fact_id, ingest

WHO = {"actor": "tester", "reason": "test"}
TEXT = """Badges

I have lost my badge. What do I do?

Tell the reception at once. They block it within ten minutes.
A new badge costs 5 euros.

5.4 Parking

Everybody with a permit parks in lot P2.
"""
VALUES = ("ten minutes", "5 euros", "lot P2")
BADGES = AnnotatedDocument(
    "badges",
    TEXT,
    tuple(FactSpan(TEXT.index(value), TEXT.index(value) + len(value), value) for value in VALUES),
    title="House rules",
)
HOW = "How do I replace my lost badge?"
UNSURE_OF_SPANS = Confidence(
    **{name: getattr(UNFITTED, name) for name in ("search", "bias", "weights", "means", "scales")},
    threshold=1.0,
    passage=SURE_OF_PASSAGES,
)
LINES = "Tell the reception at once. They block it within ten minutes.\nA new badge costs 5 euros."


class ToldReader(SayingReader):
    """Remembers what it was told."""

    def read(self, question: str, windows: Sequence[Passage]) -> list[PassageReading]:
        self.told = list(windows)
        return super().read(question, windows)


@pytest.fixture
def answers(kb: KnowledgeBase) -> Answering:
    ingest(kb, BADGES)
    return Answering(kb, None, SayingReader("5 euros", confidence=UNSURE_OF_SPANS))


def test_the_lines_that_answer_are_said_with_their_place_and_facts(
    answers: Answering, kb: KnowledgeBase
) -> None:
    found = answers.ask("What does a new badge cost?")
    assert (found.answer, found.grain) == (LINES, PASSAGE)
    assert found.source is not None and TEXT[found.source.start : found.source.end] == LINES
    assert [fact.value for fact in found.facts] == ["ten minutes", "5 euros"]


def test_sure_words_are_said_unless_more_than_words_are_asked_for(answers: Answering) -> None:
    sure = replace(UNSURE_OF_SPANS, threshold=0.5)
    answers = replace(answers, reader=SayingReader("5 euros", confidence=sure))
    assert (answers.ask("What does a new badge cost?").answer, answers.ask(HOW).answer) == ("5 euros", LINES)
    without = replace(answers, reader=SayingReader("5 euros", confidence=replace(sure, passage=None)))
    assert (without.ask(HOW).answer, without.ask(HOW).grain) == ("5 euros", SPAN)


def test_beside_a_deleted_fact_one_sentence_is_said_and_over_it_nothing(
    answers: Answering, kb: KnowledgeBase
) -> None:
    kb.facts.delete([fact_id(kb, "ten minutes")], **WHO)
    beside = answers.ask("What does a new badge cost?")
    assert (beside.answer, beside.grain) == ("A new badge costs 5 euros.", PASSAGE)
    assert not beside.withheld
    kb.facts.restore([fact_id(kb, "ten minutes")], **WHO)
    kb.facts.delete([fact_id(kb, "5 euros")], **WHO)
    gone = answers.ask("What does a new badge cost?")
    assert gone.answer is None and gone.grain == SPAN and not gone.facts
    assert gone.withheld and gone.why is not None and "deleted" in gone.why
    assert all("5 euros" not in one.text for one in gone.nearest)


def test_a_corrected_fact_is_said_in_its_lines_as_it_is_now(answers: Answering, kb: KnowledgeBase) -> None:
    kb.facts.edit(fact_id(kb, "ten minutes"), value="an hour", **WHO)
    found = answers.ask("What does a new badge cost?")
    assert found.answer == LINES.replace("ten minutes", "an hour")


def test_lines_are_stored_with_each_fact_that_they_say(answers: Answering, kb: KnowledgeBase) -> None:
    found = StoredAnswers(kb, answers).answer("What does a new badge cost?")
    assert found.generation_id is not None
    trace = kb.outputs.trace(found.generation_id)
    assert trace.output == LINES and [one.value for one in trace.splices] == ["ten minutes", "5 euros"]
    for one in trace.splices:
        assert LINES[one.output_start : one.output_end] == one.value


def test_a_reader_is_told_what_a_sentence_stands_under(kb: KnowledgeBase) -> None:
    ingest(kb, BADGES)
    reader = ToldReader("lot P2")
    assert Answering(kb, None, reader).ask("Where does everybody park?").answer == "lot P2"
    (parking,) = (one for one in reader.told if "lot P2" in one.text)
    assert parking.text.startswith("5.4 Parking") and parking.title.startswith("House rules")
    Answering(kb, None, reader).ask("What does a new badge cost?")
    (cost,) = (one for one in reader.told if one.text.rstrip().endswith("5 euros."))
    assert cost.text.startswith("I have lost my badge.") and cost.title == "House rules › Badges"


def test_the_number_of_a_section_is_no_answer(kb: KnowledgeBase) -> None:
    ingest(kb, BADGES)
    assert Answering(kb, None, SayingReader("5.4")).ask("Where does everybody park?").abstained


class Counting:
    """Embeds a text by two numbers: whether it speaks of badges, and of parking."""

    encoder = 7

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        rows = [[float("badge" in text.lower()), float("park" in text.lower())] for text in texts]
        found = np.array(rows, dtype=np.float32) + 0.1
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_what_means_the_same_comes_first_and_every_sentence_gets_a_vector_once(kb: KnowledgeBase) -> None:
    ingest(kb, BADGES)
    assert fill_sentence_vectors(kb, Counting()) == 4 and fill_sentence_vectors(kb, Counting()) == 0
    answers = Answering(kb, None, SayingReader("lot P2"), Counting())
    found = answers.ask("parking: everybody, badge or permit or reception")
    assert found.answer == "lot P2" and "lot P2" in found.nearest[0].text
    places = answers.read_question("parking: everybody").places
    assert places and places[0].candidate.likeness is not None and places[0].candidate.likeness > 0.9
    kb.facts.edit(fact_id(kb, "lot P2"), value="lot P3", **WHO)
    assert fill_sentence_vectors(kb, Counting()) == 0  # a document's own text stays as it is


def test_passages_move_with_the_threshold_of_spans(answers: Answering) -> None:
    confidence = replace(UNSURE_OF_SPANS, threshold=0.8)
    levels = [confidence.passage_threshold(threshold) for threshold in (0.0, 0.2, 0.5, 0.8, 0.9, 1.0)]
    assert levels == sorted(levels) and (levels[0], levels[3]) == (0.0, 0.5) and levels[-1] > 1
    for score in (0.05, 0.4, 0.99):
        assert confidence.passage_threshold(confidence.span_threshold_of(score)) == pytest.approx(score)
    assert UNFITTED.passage_threshold(0.5) > 1 and UNFITTED.span_threshold_of(0.9) == 0


def test_a_said_passage_names_the_threshold_that_it_passed(kb: KnowledgeBase) -> None:
    ingest(kb, BADGES)
    confidence = replace(UNSURE_OF_SPANS, threshold=0.999)
    answering = Answering(kb, None, SayingReader("5 euros", confidence=confidence))
    found = answering.ask(HOW)
    assert (found.grain, found.threshold) == (PASSAGE, 0.5) and found.score >= found.threshold
    assert answering.ask(HOW, threshold=1.0).abstained
    assert answering.ask(HOW, threshold=0.0).grain == PASSAGE
