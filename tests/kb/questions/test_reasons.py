"""Each question that is not right says exactly why, on a real base."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from colmlm.kb.answers.answering import Answering
from colmlm.kb.answers.ranked import RankedLookups
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.questions.asking import Asker, ByAnswers, ByRanking
from colmlm.kb.questions.records import AskedItem, DraftQuestion, Way
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, fact_id, ingest, numbered

WHO = {"actor": "tester", "reason": "test"}
Ask = Callable[..., AskedItem]


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture
def answering(kb: KnowledgeBase, encoder: WordEncoder) -> Answering:
    ingest(kb, PERU, CHILE)
    ingest(kb, *numbered(30), corpus="numbers")
    kb.keysets.rekey(encoder)
    return Answering(kb, Questions(kb, [encoder]), NearReader())


@pytest.fixture
def ask(kb: KnowledgeBase, answering: Answering, encoder: WordEncoder) -> Ask:
    """A function that keeps one question in a set of its own, asks it, and gives what came of it."""

    def asked(
        question: str,
        *expected: str,
        way: Way = "read",
        corpus: str | None = None,
        threshold: float | None = None,
    ) -> AskedItem:
        name = f"set{len(kb.questions.all())}"
        kb.questions.add(name, [DraftQuestion(question, expected)], corpus=corpus, actor="tester")
        asker: Asker = ByAnswers(answering, way, threshold)
        if way in ("words", "reader"):
            lookups = RankedLookups(kb, lambda: answering.reader)
            asker = ByRanking(answering, lookups, encoder, way, threshold)
        done = kb.questions.run(name, asker, actor="tester")
        (item,) = kb.questions.items(name, done.run_id)
        assert done.asked == done.right + done.wrong + done.abstained == 1
        return item

    return asked


def came(item: AskedItem) -> tuple[str | None, str, str | None]:
    return item.value, item.outcome, item.reason


@pytest.mark.parametrize("way", ["read", "paper", "words", "reader"])
def test_a_right_value_is_right_in_every_way(ask: Ask, kb: KnowledgeBase, way: Way) -> None:
    item = ask(CAPITAL, "Cusco", "the Lima", way=way)
    assert came(item) == ("Lima", "right", None)
    assert (item.fact_id, item.fact_ids) == (fact_id(kb, "Lima"), (fact_id(kb, "Lima"),))
    assert item.question == CAPITAL and item.expected == ("Cusco", "the Lima")


def test_to_say_nothing_is_right_where_nothing_is_expected(ask: Ask) -> None:
    assert came(ask("Who rules?")) == (None, "right", None)
    assert came(ask(CAPITAL)) == ("Lima", "wrong", "another answer")


def test_a_value_that_nothing_holds_is_named_so(ask: Ask) -> None:
    assert came(ask(HEIGHT, "8,848 m"))[1:] == ("wrong", "no fact holds it")
    assert came(ask("Who rules?", "Queen Anne"))[1:] == ("abstained", "no fact holds it")


def test_a_value_is_not_held_by_another_corpus(ask: Ask) -> None:
    question = "Which Text says so?"
    assert ask(question, "Lima", corpus="lands").reason == "not found"
    assert ask(question, "Lima", corpus="numbers").reason == "no fact holds it"


@pytest.mark.parametrize("way", ["read", "words", "reader"])
def test_a_value_that_is_held_elsewhere_was_not_found(ask: Ask, way: Way) -> None:
    item = ask("Which Text says so?", "Lima", way=way, threshold=0.0 if way != "words" else -1.0)
    assert item.outcome == "wrong" and item.reason == "not found"


def test_a_value_in_a_document_without_a_fact_is_held(ask: Ask) -> None:
    assert ask("Which Text says so?", "South America").reason == "not found"


def test_a_right_value_below_the_threshold_is_named_so(ask: Ask) -> None:
    assert came(ask(CAPITAL, "Lima", threshold=0.99999)) == (None, "abstained", "below the threshold")
    near = "Name the capital"
    assert came(ask(near, "Lima", "Santiago", way="paper", threshold=0.9999))[1:] == (
        "abstained", "below the threshold",
    )  # fmt: skip
    assert came(ask(near, "Lima", "Santiago", way="words", threshold=1.0))[1:] == (
        "abstained", "below the threshold",
    )  # fmt: skip
    assert came(ask(CAPITAL, "Lima", way="reader", threshold=0.99999))[1:] == (
        "abstained",
        "below the threshold",
    )


def test_a_part_of_the_value_is_a_cut_one(ask: Ask) -> None:
    assert came(ask(CAPITAL, "the city of Lima")) == ("Lima", "wrong", "cut value")
    assert came(ask(CAPITAL, "the city of Lima", threshold=0.99999)) == (None, "abstained", "cut value")


def test_what_was_read_and_not_said_lost_to_another_answer(ask: Ask) -> None:
    assert came(ask(CAPITAL, "South America")) == ("Lima", "wrong", "another answer")
    assert came(ask(CAPITAL, "Santiago", way="paper")) == ("Lima", "wrong", "another answer")


def test_a_deleted_fact_withholds_and_is_remembered(ask: Ask, kb: KnowledgeBase) -> None:
    lima = fact_id(kb, "Lima")
    kb.facts.delete([lima], abstain=True, **WHO)
    item = ask(CAPITAL, "Lima")
    assert came(item) == (None, "abstained", "withheld")
    assert (item.fact_id, item.fact_ids) == (None, (lima,))
    for way in ("reader", "paper"):
        assert came(ask(CAPITAL, "Lima", way=way)) == (None, "abstained", "withheld")


def test_text_under_a_deleted_fact_holds_nothing(ask: Ask, kb: KnowledgeBase) -> None:
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    assert ask("Which Text says so?", "Lima").reason == "no fact holds it"


def test_a_corrected_value_is_held_and_not_the_one_before(ask: Ask, kb: KnowledgeBase) -> None:
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    assert came(ask(CAPITAL, "Lima")) == ("Cusco", "wrong", "no fact holds it")
    assert ask("Which Text says so?", "Cusco").reason == "not found"
