"""Facts that answer one question: contradictions are refused and listed, duplicates told, and both may be right."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, text

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.errors import Conflict
from colmlm.kb.evidence.shown import CallerView
from colmlm.kb.facts.records import FactDraft, FactEdit, ReviewVerdict
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.upkeep.comparing import FACTS_AT_ONCE, compare_all_facts
from tests.fakes import FakeEncoder, WordEncoder, activated
from tests.kb.corpora import CAPITAL, PERU, document, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
TOWER = "When was the Eiffel Tower opened?"


def add(kb: KnowledgeBase, value: str, question: str = TOWER, *, anyway: bool = True) -> int:
    return kb.facts.add(question, value, anyway=anyway, **WHO).fact_ids[0]


def against(kb: KnowledgeBase, **sought: object) -> list[tuple[str, str]]:
    return [
        (pair.fact.value, pair.other.value) for pair in kb.comparisons.pairs("contradictions", **sought).pairs
    ]


def alike(kb: KnowledgeBase) -> list[tuple[int, int]]:
    return [(pair.fact.fact_id, pair.other.fact_id) for pair in kb.comparisons.pairs("duplicates").pairs]


def test_a_second_answer_to_a_question_is_refused_and_names_the_first(kb: KnowledgeBase):
    first = add(kb, "1889")
    head = kb.log.head_seq()
    for question in (TOWER, "when was  the Eiffel tower opened"):
        with raises_code(
            "AnsweredAlready", match=rf'Fact {first} answers this already \("1889"\)'
        ) as refused:
            add(kb, "1890", question, anyway=False)
        assert refused.value.fact_ids == (first,)
    assert kb.log.head_seq() == head and len(kb.facts.find()) == 1
    add(kb, "1890")
    assert against(kb) == [("1889", "1890")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1889", "1889."),
        ("the Seine", "Seine"),
        ("twelve thousand", "12,000"),
        ("March 31, 1889", "31.3.1889"),
        ("1889", "31 March 1889"),
        ("Gustave Eiffel", "Eiffel"),
        ("+", "+"),
    ],
)
def test_values_that_say_the_same_are_duplicates(kb: KnowledgeBase, one: str, other: str):
    first = add(kb, one, anyway=False)
    edit = kb.facts.add(TOWER, other, **WHO)
    assert edit.also_said_by == (() if other in ("31 March 1889", "Eiffel") else (first,)), (
        "one that says more or less"
    )
    assert against(kb) == [] and alike(kb) == [(first, edit.fact_ids[0])]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("How long is 1.5 km?", "How long is 15 km?", False),
        ("Wo liegt KÖLN?", "wo liegt köln", True),
        ("ГДЕ МОСКВА?", "где москва", True),
        ("¿Dónde está “Lima”?", "DÓNDE ESTÁ LIMA", True),
        ("東京はどこですか。", "東京はどこですか", True),
        ("東京はどこ", "京都はどこ", False),
        ("???", "!!!", False),
        ("What’s that?", "What's that?", True),
    ],
)
def test_questions_are_the_same_by_their_words(kb: KnowledgeBase, one: str, other: str, same: bool):
    add(kb, "a river", one)
    add(kb, "a mountain", other)
    assert bool(against(kb)) is same


def test_two_of_one_request_that_contradict_are_refused(kb: KnowledgeBase):
    drafts = [FactDraft(TOWER, "1889"), FactDraft(TOWER, "1890")]
    with raises_code("AnsweredAlready", match="Two of these facts"):
        kb.facts.add_many(drafts, **WHO)
    assert kb.facts.find() == []
    assert len(kb.facts.add_many(drafts, anyway=True, **WHO).fact_ids) == 2


def test_an_edit_is_refused_where_it_makes_a_contradiction(kb: KnowledgeBase):
    first, second = add(kb, "1889"), add(kb, "1889")
    with raises_code("AnsweredAlready"):
        kb.facts.edit(second, "1890", **WHO)
    other = add(kb, "1890", "When did it close?")
    with raises_code("AnsweredAlready") as refused:
        kb.facts.edit_many([FactEdit(other, None, TOWER)], **WHO)
    assert refused.value.fact_ids == (first, second)
    assert kb.facts.edit(second, "1890", anyway=True, **WHO).also_said_by == ()
    assert against(kb) == [("1889", "1890")]


def test_an_edit_of_one_that_contradicts_already_is_not_refused(kb: KnowledgeBase):
    add(kb, "1889")
    second = add(kb, "1890")
    kb.facts.edit(second, "1891", **WHO)
    assert against(kb) == [("1889", "1891")]
    kb.facts.edit(second, "1889", **WHO)
    assert against(kb) == [] and len(alike(kb)) == 1


def test_marks_and_moves_are_refused_as_well(kb: KnowledgeBase):
    ingest(kb, PERU)
    at = kb.documents.find()[0].document_id
    with raises_code("AnsweredAlready"):
        kb.facts.add_to(at, {"text": "South America"}, question=CAPITAL, **WHO)
    add(kb, "Lima", CAPITAL)
    with raises_code("AnsweredAlready"):
        kb.facts.move(fact_id_in(kb, "Lima", at), {"text": "capital"}, **WHO)
    kb.facts.move(fact_id_in(kb, "Lima", at), {"text": "capital"}, anyway=True, **WHO)
    assert against(kb) == [("capital", "Lima")]


def fact_id_in(kb: KnowledgeBase, value: str, document_id: int) -> int:
    (found,) = [one.fact_id for one in kb.facts.every_of(document_id) if one.value == value]
    return found


def test_what_is_deleted_or_asks_something_else_contradicts_no_more(kb: KnowledgeBase):
    first, second, third = add(kb, "1889"), add(kb, "1890"), add(kb, "1891")
    kb.facts.delete([first], **WHO)
    assert against(kb) == [("1890", "1891")]
    kb.facts.edit(third, question="When was it closed?", **WHO)
    assert against(kb) == []
    kb.facts.restore([first], **WHO)
    assert against(kb) == [("1889", "1890")]
    edit = kb.facts.delete([second], **WHO)
    assert against(kb) == []
    kb.facts.undo(edit.seq, **WHO)
    assert against(kb) == [("1889", "1890")]


def test_an_ingest_counts_what_contradicts_and_is_not_refused(kb: KnowledgeBase):
    add(kb, "Cusco", CAPITAL)
    report = ingest(kb, PERU, document("twice", "Of it ", ("Lima", CAPITAL), " is the capital."))
    assert (report.contradictions, report.duplicates) == (2, 1)
    assert against(kb) == [("Cusco", "Lima")] * 2
    assert against(kb, corpus="lands") == against(kb)
    with raises_code("CorpusNotFound"):
        kb.comparisons.pairs("contradictions", corpus="nowhere")


def test_lists_come_in_parts(kb: KnowledgeBase):
    for value in ("1889", "1890", "1891"):
        add(kb, value)
    first = kb.comparisons.pairs("contradictions", limit=2)
    assert (len(first.pairs), first.total, first.is_exact) == (2, 3, True) and first.next_after is not None
    rest = kb.comparisons.pairs("contradictions", after=first.next_after)
    assert len(rest.pairs) == 1 and rest.next_after is None
    assert len({pair.pair_id for pair in (*first.pairs, *rest.pairs)}) == 3


def test_both_hold_until_one_of_them_is_edited(kb: KnowledgeBase):
    first, second = add(kb, "1889"), add(kb, "1890")
    edit = kb.comparisons.note_both_right(second, first, **WHO)
    (change,) = kb.log.changes(after=edit.seq - 1)
    assert (change.kind, change.fact_ids) == ("both-right", (first, second)) and kb.log.verify().ok
    assert against(kb) == [] and against(kb, noted=True) == [("1889", "1890")]
    with raises_code("PairNotFound"):  # noted before
        kb.comparisons.note_both_right(first, second, **WHO)
    kb.comparisons.note_both_right(first, second, both_right=False, **WHO)
    assert against(kb) == [("1889", "1890")]
    kb.comparisons.note_both_right(first, second, **WHO)
    kb.facts.edit(second, "1891", **WHO)
    assert against(kb) == [("1889", "1891")] and against(kb, noted=True) == []
    for one, other in ((first, first), (first, 999), (1 << 70, first)):
        with raises_code("PairNotFound"):
            kb.comparisons.note_both_right(one, other, **WHO)


def test_a_deletion_is_told_who_says_the_same(kb: KnowledgeBase):
    first, second, third = add(kb, "1889"), add(kb, "1889"), add(kb, "1890")
    said = kb.comparisons.also_said([first, third])
    assert [(one.fact_id, one.by) for one in said] == [(first, (second,))]
    assert kb.comparisons.also_said([first, second]) == []


def test_the_accepted_one_answers_and_else_the_newer_value(kb: KnowledgeBase):
    first, second = add(kb, "1889"), add(kb, "1890")

    def answering() -> int | None:
        (pair,) = kb.comparisons.pairs("contradictions").pairs
        return pair.answering

    assert answering() == second
    kb.facts.edit(first, "1888", **WHO)
    assert answering() == first, "its value is newer"
    kb.facts.edit(second, question=f"{TOWER} ", **WHO)
    assert answering() == first, "another question gives no value"
    kb.facts.undo(kb.facts.delete([second], **WHO).seq, **WHO)
    assert answering() == first, "a restore gives none either"
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE fact SET review = 'proposed' WHERE id = :id"), {"id": first})
    assert answering() == second
    kb.comparisons.note_both_right(first, second, **WHO)
    (pair,) = kb.comparisons.pairs("contradictions", noted=True).pairs
    assert pair.answering is None and pair.noted_seq == kb.log.head_seq()


def test_of_two_who_add_at_once_one_is_refused(kb: KnowledgeBase):
    def one(value: str) -> bool:
        try:
            add(kb, value, anyway=False)
        except Conflict as error:
            assert error.code == "AnsweredAlready"
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(one, [str(1880 + n) for n in range(16)]))
    assert sum(done) == 1 and len(kb.facts.find()) == 1


def test_stale_facts_are_those_restored_or_corrected_before_a_newer_text(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima, height = fact_id(kb, "Lima"), fact_id(kb, "6,768 m")
    kb.facts.edit(lima, "Cusco", **WHO)
    assert kb.comparisons.stale().facts == ()
    river = PERU.facts[1]
    newer = document("peru", PERU.text[: river.start], ("Amazon", river.question or ""), ".")
    cut = document(
        "peru", PERU.text[: PERU.facts[0].start], ("Lima", CAPITAL), ". In its mountains rises the ",
        ("Amazon", river.question or ""), ".",
    )  # fmt: skip
    assert newer.text == cut.text
    ingest(kb, cut)
    kb.facts.restore([height], **WHO)
    found = kb.comparisons.stale(corpus="lands")
    assert [(one.fact_id, one.why) for one in found.facts] == [
        (lima, "corrected-before"),
        (height, "replaced"),
    ]
    assert found.total == 2
    part = kb.comparisons.stale(limit=1)
    assert part.next_after == lima
    assert [one.fact_id for one in kb.comparisons.stale(after=lima).facts] == [height]
    counts = kb.comparisons.counts()
    assert (counts.contradictions, counts.duplicates, counts.stale) == (0, 0, 2)
    kb.facts.edit(lima, "Lima Region", **WHO)
    assert [one.fact_id for one in kb.comparisons.stale().facts] == [height]


def test_who_may_not_audit_is_shown_no_past_answer(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    add(kb, "Callao", CAPITAL)
    kb.facts.edit(lima, "Cusco", **WHO)
    with kb.engine.begin() as connection:  # as a release before left it
        connection.execute(text("UPDATE fact SET answer = 'Lima, that is' WHERE id = :id"), {"id": lima})
    (pair,) = CallerView(kb, past=False).pairs("contradictions").pairs
    assert (pair.fact.value, pair.fact.answer, pair.other.value) == ("Cusco", None, "Callao")
    assert CallerView(kb, past=True).pairs("contradictions").pairs[0].fact.answer == "Lima, that is"
    assert CallerView(kb, past=False).stale().facts == ()


def forget_pairs(kb: KnowledgeBase) -> None:
    with kb.engine.begin() as connection:
        connection.execute(text("DELETE FROM fact_pair"))


def compared(kb: KnowledgeBase, radius: float | None = None) -> tuple[int, int]:
    report = compare_all_facts(kb, radius, lambda done, total, of: None)
    return report.contradictions, report.duplicates


def test_a_comparison_of_everything_finds_what_was_there_before(kb: KnowledgeBase):
    add(kb, "1889"), add(kb, "1890"), add(kb, "1889")
    before = against(kb), alike(kb)
    forget_pairs(kb)
    assert compared(kb) == (2, 1)
    assert (sorted(against(kb)), alike(kb)) == (sorted(before[0]), before[1])


def test_a_comparison_counts_the_live_facts(kb: KnowledgeBase):
    deleted, _ = add(kb, "1889"), add(kb, "1890")
    kb.facts.delete([deleted], **WHO)
    assert compare_all_facts(kb, None, lambda *_: None).facts == 1


def test_keys_tell_of_questions_in_other_words(kb: KnowledgeBase):
    encoder = WordEncoder()
    add(kb, "1889", "When was the opening of the Eiffel Tower?")
    add(kb, "1890", "When was the Eiffel Tower opening?")
    add(kb, "1889", "When was the opening of the tall Eiffel Tower?")
    add(kb, "Lima", CAPITAL)
    activated(kb, kb.keysets.rekey(encoder).keyset_id)
    assert compared(kb, 0.99) == (1, 1)
    assert compared(kb, 0.8) == (2, 1)
    pairs = kb.comparisons.pairs("contradictions").pairs
    assert all(pair.score is not None and pair.score >= 0.8 and pair.answering is None for pair in pairs)
    assert compared(kb, 0.99) == (1, 1), "what is not found again goes"


def test_that_both_hold_is_undone_and_the_undo_too(kb: KnowledgeBase):
    first, second = add(kb, "1889"), add(kb, "1890")
    noted = kb.comparisons.note_both_right(first, second, **WHO)
    undone = kb.facts.undo(noted.seq, **WHO)
    assert (undone.kind, undone.fact_ids, undone.keyed) == ("both-right", (first, second), True)
    assert against(kb) == [("1889", "1890")] and against(kb, noted=True) == []
    with raises_code("NotUndoable", match="a later change"):
        kb.facts.undo(noted.seq, **WHO)
    kb.facts.undo(undone.seq, **WHO)
    assert against(kb, noted=True) == [("1889", "1890")] and kb.log.verify().ok
    other = kb.comparisons.note_both_right(first, second, both_right=False, **WHO)
    kb.facts.edit(second, "1891", **WHO)
    with raises_code("NotUndoable", match="a later change") as refused:
        kb.facts.undo(other.seq, **WHO)
    assert refused.value.fact_ids == (first, second)


def test_both_hold_still_where_a_rejection_or_a_deletion_is_taken_back(kb: KnowledgeBase):
    first, second = add(kb, "1889"), add(kb, "1890")
    kb.comparisons.note_both_right(first, second, **WHO)
    now = kb.facts.show(second)
    (rejected,) = kb.review.settle([ReviewVerdict(second, "reject", now.version, now.review)], **WHO).seqs
    assert against(kb, noted=True) == []
    compare_all_facts(kb, None, lambda *_: None)
    kb.facts.undo(rejected, **WHO)
    assert against(kb) == [] and against(kb, noted=True) == [("1889", "1890")]
    kb.facts.delete([first, second], **WHO)
    kb.facts.restore([second], **WHO)
    kb.facts.restore([first], **WHO)
    assert against(kb) == [] and against(kb, noted=True) == [("1889", "1890")]
    kb.facts.delete([second], **WHO)
    kb.facts.edit(first, question="When was the tower opened?", **WHO)
    kb.facts.edit(first, question=TOWER, **WHO)
    kb.facts.restore([second], **WHO)
    assert against(kb) == [("1889", "1890")], "it asked something else for a time"


def test_a_comparison_keeps_what_was_said_to_hold(kb: KnowledgeBase, encoder: FakeEncoder):
    first, second = add(kb, "1889"), add(kb, "1890")
    kb.comparisons.note_both_right(first, second, **WHO)
    activated(kb, kb.keysets.rekey(encoder).keyset_id)
    assert compared(kb) == (0, 0) and against(kb, noted=True) == [("1889", "1890")]
    kb.facts.delete([second], **WHO)
    assert compared(kb) == (0, 0) and against(kb, noted=True) == []


def bare(name: str, *parts: str, title: str | None = None) -> AnnotatedDocument:
    """Make a document without questions; every second part is a fact."""
    made = document(name, *((part, None) if n % 2 else part for n, part in enumerate(parts)))
    return replace(made, title=title or name)


def test_facts_without_questions_are_compared_by_their_sentences(kb: KnowledgeBase):
    ingest(kb, bare("guide", "Come soon. The museum of Lundvik opened in ", "1902", ". It is free."))
    report = ingest(
        kb,
        bare("leaflet", "The MUSEUM of Lundvik opened in ", "1902", "!"),
        bare("website", "Welcome. The museum of Lundvik opened in ", "1904", "."),
        bare("other", "The museum of Lundvik closed in ", "1950", "."),
    )
    assert (report.contradictions, report.duplicates) == (2, 1)
    assert sorted(against(kb)) == [("1902", "1904"), ("1902", "1904")] and len(alike(kb)) == 1
    (one, other) = alike(kb)[0]
    assert kb.comparisons.also_said([one])[0].by == (other,)
    assert {pair.score for pair in kb.comparisons.pairs("contradictions").pairs} == {1.0}


def test_two_values_of_one_sentence_refuse_no_edit_and_neither_answers_for_the_other(kb: KnowledgeBase):
    ingest(kb, bare("guide", "The museum of Lundvik opened in ", "1902", "."))
    ingest(kb, bare("leaflet", "The museum of Lundvik opened in ", "1902", "."))
    (first, second) = alike(kb)[0]
    kb.facts.edit(second, "1904", **WHO)
    assert against(kb) == [("1902", "1904")] and alike(kb) == []
    assert [pair.answering for pair in kb.comparisons.pairs("contradictions").pairs] == [None]
    with kb.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM fact_yield")).scalar_one() == 0
    kb.facts.edit(first, "1904", **WHO)
    assert against(kb) == [] and len(alike(kb)) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("Area: ", "12 km", "."), ("Area: ", "15 km", ".")),  # too few words
        (("He was born in Lundvik in ", "1902", "."), ("He was born in Lundvik in ", "1904", ".")),
        (("", "Emma", " was written by an Englishwoman."), ("", "Persuasion", " was written by an Englishwoman.")),
        (("The river runs " + "on and " * 100, "far", "."), ("The river runs " + "on and " * 100, "near", ".")),
    ],
)  # fmt: skip
def test_sentences_that_speak_of_something_else_contradict_nothing(
    kb: KnowledgeBase, one: tuple[str, ...], other: tuple[str, ...]
):
    report = ingest(kb, bare("one", *one), bare("other", *other))
    assert (report.contradictions, report.duplicates) == (0, 0)


def test_facts_that_both_have_questions_are_not_compared_by_sentence(kb: KnowledgeBase):
    said = "The metal was discovered in the year "
    lithium = document("lithium", said, ("1817", "When was lithium discovered?"), ".")
    neon = document("neon", said, ("1898", "When was neon discovered?"), ".")
    report = ingest(kb, lithium, neon)
    assert (report.contradictions, report.duplicates) == (0, 0)


def test_a_pronoun_is_the_same_under_the_same_title(kb: KnowledgeBase):
    ingest(kb, bare("one", "He was born in Lundvik in ", "1902", ".", title="Ole Berg"))
    ingest(kb, bare("two", "He was born in Lundvik in ", "1904", ".", title="Ole Berg"), corpus="others")
    assert against(kb) == [("1902", "1904")]
    ingest(kb, bare("one", "He was born in Lundvik in ", "1902", ".", title="Nils Berg"))
    assert against(kb) == [], "a new edition has another title"


def test_a_form_of_words_that_many_share_pairs_none(kb: KnowledgeBase):
    ingest(kb, *(bare(str(n), "The population of the town was ", str(1000 + n), ".") for n in range(12)))
    assert compared(kb) == (0, 0)


def test_frames_follow_the_text_and_a_comparison_computes_those_that_lack(kb: KnowledgeBase):
    ingest(kb, bare("guide", "The museum of Lundvik opened in ", "1902", "."))
    ingest(kb, bare("leaflet", "The museum of Lundvik opened in ", "1904", "."))
    (pair,) = kb.comparisons.pairs("contradictions").pairs
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE fact SET frame = NULL"))
    forget_pairs(kb)
    assert compared(kb) == (1, 0)
    ingest(kb, bare("guide", "The museum of Bergen opened in ", "1902", "."))
    assert compared(kb) == (0, 0)
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE document SET text = replace(text, 'Lundvik', '███████')"))
        left = connection.execute(
            text("SELECT count(*) FROM fact WHERE id = :id AND frame IS NOT NULL"), {"id": pair.other.fact_id}
        ).scalar_one()
    assert left == 0


TERMS = "This invoice has to be paid within ", " days of its date."


def test_a_form_of_words_keeps_no_pair_once_more_than_eleven_share_it(kb: KnowledgeBase):
    for n in range(20):
        ingest(kb, bare(str(n), TERMS[0], str(10 + n), TERMS[1], title="Terms"))
        if n == 10:
            pairs = kb.comparisons.pairs("contradictions", limit=100).pairs
            assert len(pairs) == 55
            kb.comparisons.note_both_right(pairs[0].fact.fact_id, pairs[0].other.fact_id, **WHO)
        elif n > 10:
            assert against(kb) == [], "what an earlier ingest found goes, too"
    assert against(kb, noted=True) == [("10", "11")], "but not what somebody said"
    kb.facts.delete([fact_id(kb, str(10 + n)) for n in range(3, 12)], **WHO)
    kb.facts.edit(fact_id(kb, "29"), "99", **WHO)
    assert len(against(kb)) == 10
    kb.facts.restore([fact_id(kb, "13")], **WHO)
    assert against(kb) == []


def test_a_form_of_words_is_known_before_any_of_its_facts_is_compared(kb: KnowledgeBase):
    ingest(kb, *(bare(str(n), TERMS[0], str(10 + n), TERMS[1], title="Terms") for n in range(11)))
    with kb.engine.begin() as connection:
        connection.execute(text("SELECT setval('fact_id_seq', :id)"), {"id": FACTS_AT_ONCE})
    ingest(kb, bare("last", TERMS[0], "99", TERMS[1], title="Terms"))
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE fact SET frame = NULL"))
    forget_pairs(kb)
    assert compared(kb) == (0, 0)


def test_what_a_form_of_words_would_pair_is_not_read(kb: KnowledgeBase):
    read: list[int] = []

    @event.listens_for(kb.engine, "after_cursor_execute")
    def _count(_connection: object, cursor: Any, statement: str, *_: object) -> None:
        if "w.value AS other_value" in statement:
            read.append(cursor.rowcount)

    ingest(kb, *(bare(str(n), TERMS[0], str(10 + n), TERMS[1], title="Terms") for n in range(12)))
    assert read and sum(read) == 0


def test_a_pair_by_sentence_goes_and_comes_with_the_editions_of_the_text(kb: KnowledgeBase):
    begins = "The museum of Lundvik opened in "
    ingest(kb, bare("guide", begins, "1902", "."), bare("leaflet", begins, "1904", "."))
    ingest(kb, bare("guide", begins, "1902", " as a school."))
    assert against(kb) == [], "the fact was kept, but its sentence is another"
    ingest(kb, bare("leaflet", begins, "1904", " as a school."))
    assert against(kb) == [("1902", "1904")]
    kb.comparisons.note_both_right(fact_id(kb, "1902"), fact_id(kb, "1904"), **WHO)
    ingest(kb, bare("leaflet", begins, "1904", "."))
    assert against(kb, noted=True) == [("1902", "1904")]


def test_a_key_that_scores_one_is_no_pair_by_sentence(kb: KnowledgeBase):
    encoder = WordEncoder()
    ingest(kb, bare("guide", "Opened in ", "1902", "."), bare("leaflet", "Opened in ", "1904", "."))
    activated(kb, kb.keysets.rekey(encoder).keyset_id)
    compared(kb, 0.5)
    assert all(
        pair.score is not None and pair.score < 1 for pair in kb.comparisons.pairs("contradictions").pairs
    )


def test_a_pair_by_sentence_goes_with_an_erasure_in_one_of_the_sentences(kb: KnowledgeBase):
    ingest(
        kb,
        bare(
            "guide", "The museum of ", "Lundvik", " opened in ", "1902", ". It has a garden of ", "7 ha", "."
        ),
    )
    ingest(
        kb,
        bare(
            "leaflet",
            "The museum of Lundvik opened in ",
            "1904",
            ". It has a garden of ",
            "8 ha",
            ".",
            title="guide",
        ),
    )
    assert sorted(against(kb)) == [("1902", "1904"), ("7 ha", "8 ha")]
    Erasure(kb).erase([fact_id(kb, "Lundvik")], **WHO)
    assert against(kb) == [("7 ha", "8 ha")]


def test_sentences_and_titles_with_erased_words_are_compared_with_none(kb: KnowledgeBase):
    for name, year in (("Anna Berg", "1902"), ("Ole Dahl", "1904")):
        ingest(
            kb,
            bare(
                year,
                "",
                name,
                " was born in Lundvik in ",
                year,
                ". He moved to Bergen in ",
                f"{year}-05",
                ".",
                title=name,
            ),
        )
    assert against(kb) == []
    Erasure(kb).erase([fact_id(kb, "Anna Berg"), fact_id(kb, "Ole Dahl")], **WHO)
    assert against(kb) == [] and compared(kb) == (0, 0)
