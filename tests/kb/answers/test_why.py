"""Where nothing is said, a sentence says why, and the likeliest words are marked in the passages."""

from __future__ import annotations

import pytest

from colmlm.kb.answers.answering import COMPARES, DELETED, NOT_LATIN, Answering, language_note
from colmlm.kb.answers.records import Answer
from colmlm.kb.corpus.format import AnnotatedDocument, FactSpan
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.texts.asked import asks_to_compare
from tests.fakes import SayingReader
from tests.kb.corpora import fact_id, ingest

TEXT = "Full-time staff have 30 days of leave. Part-time staff have 15 days of leave."
LEAVE = AnnotatedDocument(
    "leave",
    TEXT,
    tuple(
        FactSpan(TEXT.index(value), TEXT.index(value) + len(value), value) for value in ("30 days", "15 days")
    ),
    title="Leave",
)


@pytest.fixture
def answers(kb: KnowledgeBase) -> Answering:
    ingest(kb, LEAVE)
    return Answering(kb, None, SayingReader("30 days"))


def test_a_comparison_shows_both_passages_and_says_no_half_of_it(answers: Answering) -> None:
    found = answers.ask("What is the difference between full-time and part-time leave?", threshold=0.0)
    assert (found.answer, found.why) == (None, COMPARES)
    shown = " ".join(one.text for one in found.nearest)
    assert "30 days" in shown and "15 days" in shown


@pytest.mark.parametrize(
    ("question", "is_comparison"),
    [
        ("Compare the two plans.", True),
        ("Which plan is cheaper, Gold or Basic?", True),
        ("Who has more leave: interns or staff?", True),
        ("How many days of leave do staff have?", False),
        ("Who discovered hydrogen or helium?", False),
        ("What does the newer badge cost?", False),
    ],
)
def test_what_asks_to_compare(question: str, is_comparison: bool) -> None:
    assert asks_to_compare(question) is is_comparison


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("Wie viele Tage Urlaub haben die Angestellten in der Probezeit?", "German"),
        ("Combien de jours de congé ont les employés dans la société ?", "French"),
        ("¿Cuántos días de permiso tiene el personal de la empresa?", "Spanish"),
        ("Сколько дней отпуска?", NOT_LATIN),
        ("How many days of leave do staff have?", None),
        ("leave days staff", None),
        ("Who wrote Die Zauberflöte?", None),
        ("What is the Place de la Concorde?", None),
        ("42", None),
    ],
)
def test_another_language_is_named(kb: KnowledgeBase, question: str, said: str | None) -> None:
    with kb.sessions() as session:
        found = language_note(session, question)
    assert (found is None) if said is None else (found is not None and said in found)


def test_silence_says_what_was_missing_and_marks_the_likeliest_words(
    answers: Answering, kb: KnowledgeBase
) -> None:
    def asked() -> Answer:
        return answers.ask("How much leave do full-time staff have?", threshold=1.0)

    found = asked()
    assert found.answer is None and found.why is not None and "an answer needs 1.00" in found.why
    marked = [one.text[one.likeliest_start : one.likeliest_end] for one in found.nearest if one.likeliest_end]
    assert "30 days" in marked
    kb.facts.delete([fact_id(kb, "30 days")], actor="tester", reason="test")
    gone = answers.ask("How much leave do full-time staff have?", threshold=0.0)
    assert (gone.answer, gone.withheld, gone.why) == (None, True, DELETED)
    assert not any("30 days" in one.text for one in gone.nearest)
    assert not any(
        "█" in one.text[one.likeliest_start : one.likeliest_end] for one in gone.nearest if one.likeliest_end
    )
