"""Mending: questions are edited, spans moved and facts marked by hand, with their history, and undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from colmlm.kb.errors import FactNotFound, InvalidValue
from colmlm.kb.evidence.shown import CallerView
from colmlm.kb.facts.records import Edit, FactEdit, Marking
from colmlm.kb.facts.sentences import find_astray_sentences
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, ask, document, fact_id, ingest, values
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}
EMMA, NOVEL = "Who wrote Emma?", "Who is the author of the novel Emma?"
SEAT = "Where is the seat of Peru's government?"


@pytest.fixture
def peru(kb: KnowledgeBase) -> KnowledgeBase:
    ingest(kb, PERU)
    kb.facts.add(EMMA, "Jane Austen", **WHO)
    return kb


def keyed(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    keyset = kb.keysets.rekey(encoder)
    if keyset.state == "ready":
        kb.keysets.activate(keyset.keyset_id, actor="tester", reason="test", force=True)


def document_of(kb: KnowledgeBase, value: str = "Lima") -> int:
    source = kb.facts.show(fact_id(kb, value)).source
    assert source is not None
    return source.document_id


def span(value: str) -> Marking:
    at = PERU.text.index(value)
    return {"start": at, "end": at + len(value)}


def test_a_question_is_edited_alone_or_with_the_value(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    edit = peru.facts.edit(lima, question=SEAT, **WHO)
    fact = peru.facts.show(lima)
    assert (fact.value, fact.question, fact.version, edit.kind) == ("Lima", SEAT, 2, "update")
    assert not edit.keyed
    peru.facts.edit(lima, "Cusco", question=CAPITAL, **WHO)
    fact = peru.facts.show(lima)
    assert (fact.value, fact.question, fact.version) == ("Cusco", CAPITAL, 3)
    assert peru.facts.edit(lima, "Lima", **WHO).keyed, "a value alone leaves keys as they are"


def test_an_edit_of_neither_value_nor_question_is_refused(peru: KnowledgeBase):
    with pytest.raises(InvalidValue, match="neither"):
        peru.facts.edit(fact_id(peru, "Lima"), **WHO)
    with pytest.raises(InvalidValue, match="blank"):
        peru.facts.edit(fact_id(peru, "Lima"), question=" ", **WHO)


def test_a_trace_tells_what_each_version_asked_and_where_it_stood(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    peru.facts.edit(lima, "Cusco", **WHO)
    peru.facts.edit(lima, question=SEAT, **WHO)
    peru.facts.move(lima, {"text": "capital"}, **WHO)
    told = peru.outputs.trace_fact(lima).versions
    assert [(one.value, one.question) for one in told] == [
        ("Lima", CAPITAL), ("Cusco", CAPITAL), ("Cusco", SEAT), ("capital", SEAT),
    ]  # fmt: skip
    assert [PERU.text[one.start : one.end] for one in told] == ["Lima", "Lima", "Lima", "capital"]


def test_the_log_holds_digests_and_offsets_and_no_text(peru: KnowledgeBase):
    peru.facts.edit(fact_id(peru, "Lima"), question=SEAT, **WHO)
    peru.facts.move(fact_id(peru, "Lima"), {"text": "capital"}, **WHO)
    said = "".join(peru.log.export())
    assert SEAT not in said and "seat" not in said and '"places"' in said and '"questions"' in said
    assert peru.log.verify().ok


def test_an_edited_question_is_found_at_once_by_nothing_and_after_a_rekey_by_its_new_key(
    kb: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    emma = kb.facts.add(EMMA, "Jane Austen", **WHO).fact_ids[0]
    keyed(kb, encoder)
    assert values(kb, encoder, [EMMA, CAPITAL]) == ["Jane Austen", "Lima"]
    kb.facts.edit_many([FactEdit(emma, None, NOVEL), FactEdit(fact_id(kb, "Lima"), None, SEAT)], **WHO)
    assert values(kb, encoder, [EMMA, NOVEL, CAPITAL, SEAT]) == [None] * 4
    keyed(kb, encoder)
    assert values(kb, encoder, [EMMA, NOVEL, CAPITAL, SEAT]) == [None, "Jane Austen", None, "Lima"]
    report = kb.upkeep.fsck()
    assert report.ok and report.unkeyed_facts == 0


def test_an_index_opened_from_a_snapshot_forgets_the_old_key(kb: KnowledgeBase, encoder: FakeEncoder):
    emma = kb.facts.add(EMMA, "Jane Austen", **WHO).fact_ids[0]
    keyed(kb, encoder)
    kb.upkeep.snapshot()
    kb.facts.edit(emma, question=NOVEL, **WHO)
    with KnowledgeBase.open(kb.settings) as other:
        assert values(other, encoder, [EMMA, NOVEL]) == [None, None]


def test_question_keys_of_a_document_are_made_anew(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder, kinds=("context", "question"))
    before = kb.keysets.all()[0].num_keys
    kb.facts.edit(fact_id(kb, "Lima"), question=SEAT, **WHO)
    assert kb.keysets.all()[0].num_unkeyed == 1
    assert kb.keysets.rekey(encoder).num_keys == before


def test_a_key_that_was_read_before_an_edit_is_not_stored_after_it(kb: KnowledgeBase, encoder: FakeEncoder):
    emma = kb.facts.add(EMMA, "Jane Austen", **WHO).fact_ids[0]

    class Slow(FakeEncoder):
        def encode_questions(self, questions: list[str]):  # type: ignore[override]
            if EMMA in questions:
                kb.facts.edit(emma, question=NOVEL, **WHO)
            return super().encode_questions(questions)

    keyed(kb, Slow())
    assert values(kb, encoder, [EMMA, NOVEL]) == [None, "Jane Austen"]


def test_a_fact_without_a_document_is_found_by_the_words_of_its_new_question(kb: KnowledgeBase):
    emma = kb.facts.add(EMMA, "Jane Austen", **WHO).fact_ids[0]
    kb.facts.edit(emma, question=NOVEL, **WHO)
    with kb.sessions() as session:
        assert not find_astray_sentences(session)


def test_a_diff_shows_a_question_that_changed(peru: KnowledgeBase):
    before = peru.log.head_seq()
    seq = peru.facts.edit(fact_id(peru, "Lima"), question=SEAT, **WHO).seq
    (found,) = peru.log.diff(before, seq).facts
    assert (found.kind, found.old, found.new) == ("updated", "Lima", "Lima")
    assert (found.old_question, found.new_question) == (CAPITAL, SEAT)


def test_a_former_question_is_withheld_from_who_may_not_read_the_past(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    peru.facts.edit(lima, question=SEAT, **WHO)
    told = CallerView(peru, past=False).trace_fact(lima)
    assert [one.question for one in told.versions] == ["█" * len(CAPITAL), SEAT]
    assert told.fact.question == SEAT and told.fact.value == "Lima"


def test_a_move_takes_the_words_there_and_keeps_where_it_was(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    edit = peru.facts.move(lima, {"text": "South America"}, **WHO)
    fact = peru.facts.show(lima)
    assert fact.source is not None and PERU.text[fact.source.start : fact.source.end] == "South America"
    assert (fact.value, fact.version, fact.answer, edit.kind) == ("South America", 2, None, "move")
    assert peru.upkeep.fsck().non_verbatim_facts == ()
    assert [c.kind for c in peru.log.changes(fact_id=lima)] == ["ingest", "move"]


def test_a_move_with_a_question_is_one_change_and_contradicts_on_purpose_alone(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    with raises_code("AnsweredAlready"):
        peru.facts.move(lima, {"text": "South America"}, question=EMMA, **WHO)
    assert peru.facts.show(lima).version == 1, "nothing was done"
    edit = peru.facts.move(lima, {"text": "South America"}, question=EMMA, anyway=True, **WHO)
    fact = peru.facts.show(lima)
    assert (fact.value, fact.question, fact.version, edit.kind) == ("South America", EMMA, 2, "move")
    change = peru.log.changes(fact_id=lima)[-1]
    assert change.seq == edit.seq
    with pytest.raises(InvalidValue, match="blank"):
        peru.facts.move(lima, {"text": "capital"}, question=" ", **WHO)


def test_a_span_that_is_no_good_is_refused_with_the_cause(peru: KnowledgeBase, subtests: pytest.Subtests):
    for to, cause in (
        ({"start": 5, "end": 5}, "empty"),
        ({"start": 5, "end": 10_000}, "outside"),
        ({"start": -1, "end": 4}, "outside"),
        ({"start": 3}, "offsets"),
        ({}, "offsets"),
        ({"text": "Bogotá"}, "does not contain"),
        ({"text": "in"}, "begins at"),
        ({"start": 0, "end": 4, "text": "Lima"}, "differs from"),
        ({"start": 4, "end": 5}, "blank"),
    ):
        with subtests.test(to=to, cause=cause):
            with raises_code("InvalidSpan", "InvalidValue", match=cause):
                peru.facts.move(fact_id(peru, "Lima"), to, **WHO)
            with raises_code("InvalidSpan", "InvalidValue", match=cause):
                peru.facts.add_to(document_of(peru), to, **WHO)


def test_a_text_that_is_there_twice_is_refused_with_its_offsets(kb: KnowledgeBase):
    ingest(kb, document("two", "Ann met Ann in ", ("Rome", "Where?"), "."))
    with raises_code("InvalidSpan", match=r"begins at 0, 8\."):
        kb.facts.move(fact_id(kb, "Rome"), {"text": "Ann"}, **WHO)
    kb.facts.move(fact_id(kb, "Rome"), {"text": "Ann", "start": 8, "end": 11}, **WHO)
    assert kb.facts.show(fact_id(kb, "Ann")).source.start == 8  # type: ignore[union-attr]


def test_no_span_overlaps_another_live_or_deleted(peru: KnowledgeBase):
    lima, amazon = fact_id(peru, "Lima"), fact_id(peru, "Amazon")
    with raises_code("SpanTaken") as taken:
        peru.facts.move(lima, {"text": "the Amazon"}, **WHO)
    assert taken.value.fact_ids == (amazon,)
    peru.facts.delete([amazon], **WHO)
    with raises_code("SpanTaken"):
        peru.facts.add_to(document_of(peru), {"text": "the Amazon"}, **WHO)
    peru.facts.move(lima, {"text": "is Lima"}, **WHO)
    assert peru.facts.show(lima).value == "is Lima", "it may overlap where it stood itself"


def test_a_fact_is_moved_only_where_it_is_not_and_only_in_a_document(peru: KnowledgeBase):
    with raises_code("InvalidSpan", match="already"):
        peru.facts.move(fact_id(peru, "Lima"), {"text": "Lima"}, **WHO)
    with pytest.raises(InvalidValue, match="no document"):
        peru.facts.move(fact_id(peru, "Jane Austen"), {"text": "Lima"}, **WHO)
    peru.facts.edit(fact_id(peru, "Lima"), "Cusco", **WHO)
    peru.facts.move(fact_id(peru, "Cusco"), {"text": "Lima"}, **WHO)
    assert peru.facts.show(fact_id(peru, "Lima")).version == 3, "a corrected value goes back to the words"


def test_a_moved_fact_gets_a_key_of_its_new_place(kb: KnowledgeBase, encoder: FakeEncoder):
    plain = document("plain", "It rains in ", ("Lima", ""), " today.")
    ingest(kb, plain)
    keyed(kb, encoder)
    before = "It rains in "
    assert values(kb, encoder, [before]) == ["Lima"]
    kb.facts.move(fact_id(kb, "Lima"), {"text": "today"}, **WHO)
    assert values(kb, encoder, [before, "It rains in Lima "]) == [None, None]
    keyed(kb, encoder)
    assert values(kb, encoder, [before, "It rains in Lima "]) == [None, "today"]


def test_a_fact_is_marked_in_a_document(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    edit = kb.facts.add_to(document_of(kb), {"text": "South America"}, question="Where is Peru?", **WHO)
    fact = kb.facts.show(edit.fact_ids[0])
    assert fact.source is not None and (fact.source.start, fact.source.end) == (13, 26)
    assert (fact.value, fact.question, edit.kind, edit.keyed) == (
        "South America",
        "Where is Peru?",
        "insert",
        False,
    )
    keyed(kb, encoder)
    assert values(kb, encoder, ["Where is Peru?", CAPITAL]) == ["South America", "Lima"]
    assert kb.upkeep.fsck().ok


def test_a_replaced_document_takes_no_fact(peru: KnowledgeBase):
    before = document_of(peru)
    ingest(peru, document("peru", "Another text about ", ("Peru", "What?"), "."))
    with raises_code("DocumentReplaced"):
        peru.facts.add_to(before, {"text": "South America"}, **WHO)


def test_an_export_carries_what_was_mended(peru: KnowledgeBase):
    peru.facts.edit(fact_id(peru, "Lima"), question=SEAT, **WHO)
    peru.facts.move(fact_id(peru, "Amazon"), {"text": "mountains"}, **WHO)
    peru.facts.add_to(document_of(peru), {"text": "South America"}, **WHO)
    (exported,) = peru.corpora.export("lands", live_only=True)
    assert [(f.value, f.question) for f in exported.facts][:3] == [
        ("South America", None), ("Lima", SEAT), ("mountains", "Which river rises there?"),
    ]  # fmt: skip
    ingest(peru, exported, corpus="again")
    assert len(peru.facts.find(corpus="again")) == 4


def test_an_edited_question_outlives_the_next_edition_of_its_document(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    peru.facts.edit(lima, question=SEAT, **WHO)
    ingest(peru, PERU)
    assert peru.facts.show(lima).question == SEAT
    longer = document(
        "peru", "Peru lies in South America. Its capital is ", ("Lima", CAPITAL), ". That is all."
    )
    ingest(peru, longer)
    fact = peru.facts.show(lima)
    assert (fact.question, fact.deleted_seq) == (SEAT, None)


def test_erasing_reaches_former_questions_and_places(peru: KnowledgeBase):
    lima, emma = fact_id(peru, "Lima"), fact_id(peru, "Jane Austen")
    peru.facts.edit(emma, question=NOVEL, **WHO)
    peru.facts.move(lima, {"text": "capital"}, **WHO)
    at = document_of(peru, "capital")
    erased = Erasure(peru).erase([lima, emma], mentions="none", **WHO)
    assert erased.erased is not None
    text = peru.documents.text(at)
    assert "Lima" not in text and "capital" not in text and "Amazon" in text
    assert all(one.question in (None, "█") for one in peru.outputs.trace_fact(emma).versions)
    for question in (EMMA, NOVEL):
        with raises_code("FactSuppressed"):
            peru.facts.add(question, "Jane Austen", **WHO)
    ingest(peru, PERU)
    assert peru.facts.find(text="Lima") == [], "the file that it came with does not bring it back"
    assert peru.upkeep.fsck().ok


def test_erased_words_are_not_marked_again(kb: KnowledgeBase):
    ingest(kb, PERU, corpus="one")
    ingest(kb, PERU, corpus="two")
    one, two = (kb.facts.find(corpus=corpus, text="Lima")[0] for corpus in ("one", "two"))
    kb.facts.delete([two.fact_id], **WHO)
    Erasure(kb).erase([one.fact_id], mentions="none", **WHO)
    at = one.source.document_id  # type: ignore[union-attr]
    with raises_code("InvalidSpan", match="erased"):
        kb.facts.add_to(at, {"start": 40, "end": 60}, **WHO)
    ingest(kb, document("peru", "Peru lies in South America. Its capital is Lima."), corpus="three")
    fresh = kb.documents.find(corpus="three")[0].document_id
    Erasure(kb).erase([two.fact_id], **WHO)
    with raises_code("FactSuppressed"):
        kb.facts.add_to(fresh, {"text": "Lima"}, question=CAPITAL, **WHO)
    kb.facts.add_to(fresh, {"text": "Lima"}, question=CAPITAL, allow_erased=True, **WHO)


def test_another_value_drops_the_answer_and_an_undo_brings_it_back(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    assert peru.facts.show(lima).answer == "Lima"
    peru.facts.edit(lima, question=SEAT, **WHO)
    assert peru.facts.show(lima).answer == "Lima", "another question is no other value"
    edit = peru.facts.edit(lima, "Cusco", **WHO)
    assert peru.facts.show(lima).answer is None
    undone = peru.facts.undo(edit.seq, **WHO)
    assert peru.facts.show(lima).answer == "Lima"
    peru.facts.undo(undone.seq, **WHO)
    longer = replace(PERU, text=f"{PERU.text} It rains.")
    ingest(peru, longer)
    assert (peru.facts.show(lima).value, peru.facts.show(lima).answer) == ("Cusco", None)


EDITS: dict[str, Callable[[KnowledgeBase, int], Edit]] = {
    "value": lambda kb, fact: kb.facts.edit(fact, "Cusco", **WHO),
    "question": lambda kb, fact: kb.facts.edit(fact, question=SEAT, **WHO),
    "both": lambda kb, fact: kb.facts.edit(fact, "Cusco", question=SEAT, **WHO),
    "move": lambda kb, fact: kb.facts.move(fact, {"text": "South America"}, **WHO),
    "move and question": lambda kb, fact: kb.facts.move(
        fact, {"text": "South America"}, question=SEAT, **WHO
    ),
    "delete": lambda kb, fact: kb.facts.delete([fact], **WHO),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_diff_does_not_list_an_edit_that_was_undone(peru: KnowledgeBase, edit: str):
    lima, first = fact_id(peru, "Lima"), peru.log.head_seq()
    edited = EDITS[edit](peru, lima).seq
    assert [one.fact_id for one in peru.log.diff(first, edited).facts] == [lima]
    undone = peru.facts.undo(edited, **WHO).seq
    assert peru.log.diff(first, undone).facts == ()
    assert [one.fact_id for one in peru.log.diff(edited, undone).facts] == [lima]


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_undone_and_the_undo_too(peru: KnowledgeBase, edit: str):
    lima = fact_id(peru, "Lima")
    told = lambda: [getattr(peru.facts.show(lima), n) for n in ("value", "question", "answer", "source")]  # noqa: E731
    before = told()
    seq = EDITS[edit](peru, lima).seq
    after = told(), peru.facts.show(lima).deleted_seq is None
    undone = peru.facts.undo(seq, **WHO)
    assert told() == before and peru.facts.show(lima).deleted_seq is None
    assert peru.upkeep.fsck().non_verbatim_facts == ()
    peru.facts.undo(undone.seq, **WHO)
    assert (told(), peru.facts.show(lima).deleted_seq is None) == after


def test_a_fact_that_was_added_is_taken_away_by_an_undo(peru: KnowledgeBase):
    edit = peru.facts.add_to(document_of(peru), {"text": "South America"}, **WHO)
    assert peru.facts.undo(edit.seq, **WHO).kind == "delete"
    assert peru.facts.show(edit.fact_ids[0]).deleted_seq is not None


def test_what_changed_since_is_not_undone_and_named(peru: KnowledgeBase):
    lima, amazon = fact_id(peru, "Lima"), fact_id(peru, "Amazon")
    both = peru.facts.edit_many([FactEdit(lima, "Cusco"), FactEdit(amazon, "Ucayali")], **WHO)
    peru.facts.edit(lima, question=SEAT, **WHO)
    with raises_code("NotUndoable") as refused:
        peru.facts.undo(both.seq, **WHO)
    assert refused.value.fact_ids == (lima,) and peru.facts.show(amazon).value == "Ucayali"
    ingested = peru.log.changes(kind="ingest")[0].seq
    with raises_code("NotUndoable", match="former file"):
        peru.facts.undo(ingested, **WHO)
    seq = peru.facts.edit(amazon, "Amazon", **WHO).seq
    Erasure(peru).erase([amazon], **WHO)
    with raises_code("FactErased"):
        peru.facts.undo(seq, **WHO)


def test_who_undoes_a_restoration_has_the_fact_abstain_as_before(peru: KnowledgeBase, encoder: FakeEncoder):
    peru.keysets.rekey(encoder)
    lima, amazon = fact_id(peru, "Lima"), fact_id(peru, "Amazon")
    peru.facts.delete([lima], abstain=True, **WHO)
    restored = peru.facts.restore([lima], **WHO)
    undone = peru.facts.undo(restored.seq, **WHO)
    (found,) = ask(peru, encoder, CAPITAL)
    assert found.abstained == lima and peru.upkeep.fsck().ok
    peru.facts.undo(undone.seq, **WHO)
    peru.facts.delete([lima], abstain=True, **WHO)
    peru.facts.delete([amazon], **WHO)
    both = peru.facts.restore([lima, amazon], **WHO)
    with raises_code("NotUndoable", match="some of its facts were deleted to abstain"):
        peru.facts.undo(both.seq, **WHO)


def test_a_move_is_not_undone_over_another_fact(peru: KnowledgeBase):
    lima = fact_id(peru, "Lima")
    seq = peru.facts.move(lima, {"text": "South America"}, **WHO).seq
    other = peru.facts.add_to(document_of(peru, "South America"), {"text": "Lima"}, **WHO).fact_ids
    with raises_code("SpanTaken") as taken:
        peru.facts.undo(seq, **WHO)
    assert taken.value.fact_ids == other


def test_many_edits_are_one_change_or_none(peru: KnowledgeBase):
    lima, amazon = fact_id(peru, "Lima"), fact_id(peru, "Amazon")
    head = peru.log.head_seq()
    for bad, error in ((FactEdit(998, "x"), FactNotFound), (FactEdit(lima, "y"), InvalidValue)):
        with pytest.raises(error):
            peru.facts.edit_many([FactEdit(lima, "Cusco"), bad], **WHO)
    peru.facts.delete([amazon], **WHO)
    with raises_code("FactDeleted"):
        peru.facts.edit_many([FactEdit(lima, "Cusco"), FactEdit(amazon, question=SEAT)], **WHO)
    assert peru.facts.show(lima).value == "Lima" and peru.log.head_seq() == head + 1
