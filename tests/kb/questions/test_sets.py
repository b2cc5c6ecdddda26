"""Sets of questions are kept, asked, compared, erased from, and withheld like everything else that says facts."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from colmlm.kb.answers.answering import Answering
from colmlm.kb.errors import InvalidQuestions, InvalidValue, QuestionSetNotFound
from colmlm.kb.evidence.attribution import StoredAnswers
from colmlm.kb.facts.records import ReviewVerdict
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.lookup.questions import Questions
from colmlm.kb.questions.asking import KEPT_RUNS, ByAnswers
from colmlm.kb.questions.reading import MOST
from colmlm.kb.questions.records import DraftQuestion, QuestionRun
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import NearReader, WordEncoder
from tests.kb.corpora import CAPITAL, CHILE, HEIGHT, PERU, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
KEPT = [
    DraftQuestion(CAPITAL, ("Lima",)),
    DraftQuestion("What is the capital of Chile?", ("Santiago",)),
    DraftQuestion(HEIGHT, ("8,848 m",)),
    DraftQuestion("Who rules?"),
]


@pytest.fixture
def reader() -> NearReader:
    return NearReader()


@pytest.fixture
def answering(kb: KnowledgeBase, reader: NearReader) -> Answering:
    ingest(kb, PERU, CHILE)
    encoder = WordEncoder()
    kb.keysets.rekey(encoder)
    return Answering(kb, Questions(kb, [encoder]), reader)


@pytest.fixture
def lands(kb: KnowledgeBase, answering: Answering) -> str:
    return kb.questions.add("lands", KEPT, corpus="lands", actor="ann").name


def run(kb: KnowledgeBase, answering: Answering, name: str = "lands") -> QuestionRun:
    return kb.questions.run(name, ByAnswers(answering), actor="ann")


def test_a_set_is_made_by_its_first_questions(kb: KnowledgeBase, lands: str) -> None:
    (found,) = kb.questions.all()
    assert (found.name, found.corpus, found.num_questions, found.actor, found.last_run) == (
        "lands", "lands", 4, "ann", None,
    )  # fmt: skip
    kept = kb.questions.questions(lands)
    assert [(one.question, one.expected) for one in kept] == [(one.question, one.expected) for one in KEPT]
    assert kb.questions.questions(lands, kept[1].question_id, 1) == kept[2:3]


def test_a_question_that_is_kept_already_gets_the_new_values(kb: KnowledgeBase, lands: str) -> None:
    kb.questions.add(
        lands, [DraftQuestion(HEIGHT, ("6,768 m", "6,768 m")), DraftQuestion("New?")], actor="bob"
    )
    kept = {one.question: one.expected for one in kb.questions.questions(lands)}
    assert kept[HEIGHT] == ("6,768 m",) and kept["New?"] == () and len(kept) == 5
    assert kb.questions.show(lands).corpus == "lands"


def test_a_run_that_takes_accepted_facts_only_says_so_and_is_compared_as_such(
    kb: KnowledgeBase, lands: str, answering: Answering
) -> None:
    lima = fact_id(kb, "Lima")
    kb.review.settle([ReviewVerdict(lima, "propose", 1, "accepted")], **WHO)
    first = run(kb, answering)
    for way in ("read", "paper"):
        asker = ByAnswers(answering, way, 0.0 if way == "read" else None, {"accepted_only": True})
        second = kb.questions.run(lands, asker, actor="ann")
        assert (first.accepted_only, second.accepted_only) == (False, True)
        items = {one.question: one for one in kb.questions.items(lands, second.run_id)}
        assert items[CAPITAL].outcome != "right" and items[CAPITAL].fact_id != lima
    assert kb.questions.runs(lands)[0] == second
    assert "accepted_only" in kb.questions.compare(lands, first.run_id, second.run_id).settings
    kb.review.settle([ReviewVerdict(lima, "accept", 1)], **WHO)
    third = kb.questions.run(lands, ByAnswers(answering, only={"accepted_only": True}), actor="ann")
    assert third.right == first.right


def test_a_question_is_edited_and_removed(kb: KnowledgeBase, lands: str) -> None:
    first, second, *_ = kb.questions.questions(lands)
    kb.questions.edit(lands, first.question_id, "Peru's capital?", ["Lima", "Lima, Peru"])
    assert kb.questions.questions(lands)[0].expected == ("Lima", "Lima, Peru")
    with raises_code("QuestionNotFound"):
        kb.questions.remove(lands, [second.question_id, 998])
    with pytest.raises(InvalidValue, match="none is named"):
        kb.questions.remove(lands, [])
    assert kb.questions.show(lands).num_questions == 4, "all of them or none"
    kb.questions.remove(lands, [second.question_id])
    assert kb.questions.show(lands).num_questions == 3
    with raises_code("QuestionNotFound"):
        kb.questions.edit(lands, second.question_id, "x", [])
    kb.questions.remove(lands)
    with pytest.raises(QuestionSetNotFound):
        kb.questions.show(lands)


def test_what_cannot_be_kept_is_refused(kb: KnowledgeBase, answering: Answering) -> None:
    for draft, cause in (
        (DraftQuestion(" "), "number 1 .*blank"),
        (DraftQuestion("x" * 2001), "limit is 2000"),
        (DraftQuestion("x", ("a\0",)), "NUL"),
        (DraftQuestion("x", ("a",) * 51), "Give it at most 50"),
    ):
        with pytest.raises(InvalidQuestions, match=cause):
            kb.questions.add("new", [draft], actor="ann")
    many = [DraftQuestion(f"Number {n}?") for n in range(MOST + 1)]
    with pytest.raises(InvalidQuestions, match="5,001"):
        kb.questions.add("new", many, actor="ann")
    for name in ("", "a b", "a/b", "x" * 101, "a\n", "-a"):
        with pytest.raises(InvalidValue):
            kb.questions.add(name, KEPT, actor="ann")
    with raises_code("CorpusNotFound"):
        kb.questions.add("new", KEPT, corpus="nowhere", actor="ann")
    assert kb.questions.all() == []
    with pytest.raises(QuestionSetNotFound):
        run(kb, answering, "new")
    kb.questions.add("empty", [], actor="ann")
    with pytest.raises(InvalidQuestions, match="no question that can be asked"):
        run(kb, answering, "empty")


def test_a_run_is_kept_with_what_it_was_asked_with(
    kb: KnowledgeBase, answering: Answering, lands: str
) -> None:
    done = run(kb, answering)
    assert (done.asked, done.right, done.wrong, done.abstained, done.skipped) == (4, 3, 1, 0, 0)
    assert (done.how, done.threshold, done.reader, done.actor) == ("read", 0.5, "near", "ann")
    assert done.keyset_id == kb.keysets.active().keyset_id and done.first_seq == done.seq == kb.log.head_seq()
    assert kb.questions.show(lands).last_run == done and kb.questions.runs(lands) == [done]
    items = kb.questions.items(lands, done.run_id)
    assert [item.outcome for item in items] == ["right", "right", "wrong", "right"]
    assert kb.questions.items(lands, done.run_id, 1, 2) == items[1:3]
    assert kb.outputs.find() == [], "a run is no output"
    kb.questions.add("other", KEPT, actor="ann")
    with raises_code("QuestionRunNotFound"):
        kb.questions.items("other", done.run_id)


def test_old_runs_are_dropped(kb: KnowledgeBase, answering: Answering, lands: str) -> None:
    assert KEPT_RUNS == 50
    kb.questions.remove(lands, [one.question_id for one in kb.questions.questions(lands)[1:]])
    ids = [run(kb, answering).run_id for _ in range(KEPT_RUNS + 2)]
    assert [one.run_id for one in kb.questions.runs(lands)] == ids[:1:-1]
    assert [one.run_id for one in kb.questions.runs(lands, ids[3], 1)] == [ids[2]]


def test_two_runs_are_compared_with_what_happened_between(
    kb: KnowledgeBase, answering: Answering, lands: str
) -> None:
    with pytest.raises(InvalidValue, match="not have two runs"):
        kb.questions.compare(lands)
    before = run(kb, answering)
    lima, santiago = fact_id(kb, "Lima"), fact_id(kb, "Santiago")
    corrected = kb.facts.edit(lima, "Cusco", **WHO).seq
    kb.facts.edit(fact_id(kb, "Amazon"), "Orinoco", **WHO)
    deleted = kb.facts.delete([santiago], **WHO).seq
    after = run(kb, answering)
    found = kb.questions.compare(lands)
    assert (found.before, found.after, found.same, found.settings) == (before, after, 2, ())
    assert (found.first_seq, found.last_seq) == (before.first_seq, kb.log.head_seq())
    assert found.changes == {"delete": 1, "update": 2}
    capital, chile = found.items
    assert capital.before and capital.after and chile.before and chile.after
    assert (capital.before.value, capital.before.outcome) == ("Lima", "right")
    assert (capital.after.value, capital.after.reason) == ("Cusco", "no fact holds it")
    assert (chile.after.outcome, chile.after.reason) == ("abstained", "withheld")
    assert (capital.seqs, chile.seqs) == ((corrected,), (deleted,))
    assert kb.questions.compare(lands, before.run_id, after.run_id) == found
    turned = kb.questions.compare(lands, after.run_id, before.run_id)
    assert (turned.before, turned.after, turned.changes) == (after, before, found.changes)


def test_a_comparison_names_another_threshold_and_questions_that_came_later(
    kb: KnowledgeBase, answering: Answering, lands: str
) -> None:
    run(kb, answering)
    kb.questions.add(lands, [DraftQuestion("Which river rises there?", ("Amazon",))], actor="ann")
    kb.questions.run(lands, ByAnswers(answering, threshold=0.99999), actor="ann")
    found = kb.questions.compare(lands)
    assert found.settings == ("threshold",) and found.changes == {}
    assert [item.before is None for item in found.items] == [False, False, False, True]
    assert {item.after.reason for item in found.items[:2] if item.after} == {"below the threshold"}


def test_a_question_is_taken_from_an_answer(kb: KnowledgeBase, answering: Answering) -> None:
    stored = StoredAnswers(kb, answering)
    said, silent = stored.answer(CAPITAL).generation_id, stored.answer("Unheard of?").generation_id
    assert said is not None and silent is not None
    assert kb.questions.draft_of_output(said) == DraftQuestion(CAPITAL, ("Lima",))
    kb.questions.take("seen", said, actor="ann")
    kb.questions.take("seen", silent, actor="ann")
    kb.questions.take("seen", said, question="Peru's capital?", expected=["Lima", "Callao"], actor="ann")
    kept = kb.questions.questions("seen")
    assert [(one.question, one.expected) for one in kept] == [
        (CAPITAL, ("Lima",)), ("Unheard of?", ()), ("Peru's capital?", ("Lima", "Callao")),
    ]  # fmt: skip
    assert kept[0].fact_ids == (fact_id(kb, "Lima"),)
    with raises_code("GenerationNotFound"):
        kb.questions.take("seen", 998, actor="ann")


def test_an_erasure_redacts_questions_and_outcomes(
    kb: KnowledgeBase, answering: Answering, lands: str
) -> None:
    kb.questions.add(lands, [DraftQuestion("Is it Lima that rules?", ("Lima",))], actor="ann")
    done = run(kb, answering)
    report = Erasure(kb).erase([fact_id(kb, "Lima")], **WHO)
    assert report.erased and len(report.erased.questions) == 2 and len(report.erased.question_outcomes) == 2
    kept = kb.questions.questions(lands)
    assert kept[0].question == MARK * len(CAPITAL) and kept[0].expected == (MARK * 4,)
    assert kept[4].question == f"Is it {MARK * 4} that rules?"
    (item, *_) = kb.questions.items(lands, done.run_id)
    assert (item.question, item.expected, item.value) == (MARK * len(CAPITAL), (MARK * 4,), MARK * 4)
    with kb.engine.connect() as connection:
        for table in ("question", "question_outcome"):
            said = connection.scalars(text(f"SELECT t::text FROM {table} t")).all()
            assert not any("Lima" in row for row in said)
    assert kb.upkeep.fsck().quoting == ()
    again = run(kb, answering)
    assert (again.asked, again.skipped) == (3, 2), "what is erased in part is not asked"


def test_a_part_of_an_erased_value_is_redacted_too(kb: KnowledgeBase, answering: Answering) -> None:
    kb.questions.add("peak", [DraftQuestion("How high is the highest peak?", ("6,768",))], actor="ann")
    done = run(kb, answering, "peak")
    (item,) = kb.questions.items("peak", done.run_id)
    assert item.value == "6,768 m"
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE question_outcome SET value = '6,768'"))
    Erasure(kb).erase([fact_id(kb, "6,768 m")], **WHO)
    (item,) = kb.questions.items("peak", done.run_id)
    assert item.value == MARK * 5 and item.expected == (MARK * 5,)


def test_what_is_erased_while_a_set_is_asked_is_not_stored(
    kb: KnowledgeBase, answering: Answering, reader: NearReader, lands: str
) -> None:
    lima = fact_id(kb, "Lima")
    done = 0

    def erase(number: int, total: int | None) -> None:
        nonlocal done
        done = number
        if number == 1:
            Erasure(kb).erase([lima], **WHO)

    found = kb.questions.run(lands, ByAnswers(answering), erase, actor="ann")
    (item, *_) = kb.questions.items(lands, found.run_id)
    assert done == 4 and item.value == MARK * 4 and item.expected == (MARK * 4,)
    assert kb.upkeep.fsck().quoting == ()


def test_a_set_that_is_removed_while_it_is_asked_keeps_no_run(
    kb: KnowledgeBase, answering: Answering, lands: str
) -> None:
    with pytest.raises(QuestionSetNotFound):
        kb.questions.run(
            lands,
            ByAnswers(answering),
            lambda n, _: kb.questions.remove(lands) if n == 4 else None,
            actor="ann",
        )
    assert kb.questions.all() == []


def test_who_may_not_audit_sees_no_past(kb: KnowledgeBase, answering: Answering, lands: str) -> None:
    before = run(kb, answering)
    shown = kb.caller_view(past=False)

    def items(run_id: int) -> list[tuple[str, tuple[str, ...], str | None]]:
        found = shown.asked_items(kb.questions.items(lands, run_id))
        return [(item.question, item.expected, item.value) for item in found]

    first = (CAPITAL, ("Lima",), "Lima")
    assert items(before.run_id)[0] == first
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    after = run(kb, answering)
    assert items(before.run_id)[0] == (CAPITAL, (MARK * 4,), MARK * 4)
    assert items(after.run_id)[0] == (CAPITAL, (MARK * 4,), "Cusco")
    assert shown.questions(kb.questions.questions(lands))[0].expected == (MARK * 4,)
    (changed,) = shown.comparison(kb.questions.compare(lands)).items
    assert (
        changed.before
        and changed.before.value == MARK * 4
        and changed.after
        and changed.after.value == "Cusco"
    )
    assert items(before.run_id)[1] == ("What is the capital of Chile?", ("Santiago",), "Santiago")
    kb.facts.delete([fact_id(kb, "Cusco")], **WHO)
    assert items(after.run_id)[0] == (MARK * len(CAPITAL), (MARK * 4,), MARK * 5)
    assert kb.caller_view(past=True).asked_items(kb.questions.items(lands, before.run_id))[0].value == "Lima"
