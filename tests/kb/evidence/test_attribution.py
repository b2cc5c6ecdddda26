"""Traces: from an output to its evidence and back, also after the evidence is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import event

from colmlm.kb.errors import FactNotFound
from colmlm.kb.evidence.records import NewOutput, Splice, Use, Version
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, PERU, best, fact_id, ingest
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "wrong"}


def _spliced(kb: KnowledgeBase, value: str = "Lima") -> NewOutput:
    fact = kb.facts.show(fact_id(kb, value))
    output = f"It is {value}."
    hit = Splice(6, 6 + len(value), "hit", fact.fact_id, fact.version, 0.9)
    splices = (hit, Splice(len(output), len(output), "no_match", score=0.2))
    return NewOutput(CAPITAL, output, "fake", "generate", kb.log.head_seq(), splices)


def test_an_output_is_traced_to_the_words_of_a_document(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    hit = best(kb, encoder, CAPITAL)
    trace = kb.outputs.trace(kb.outputs.record(_spliced(kb)))
    spliced, missed = trace.splices
    assert (spliced.value, spliced.fact_id, spliced.version) == ("Lima", hit.fact_id, hit.version)
    assert spliced.live and spliced.current_value == "Lima" and spliced.history == ()
    assert spliced.source is not None and trace.output[spliced.output_start : spliced.output_end] == "Lima"
    source = spliced.source
    assert kb.documents.text(source.document_id)[source.start : source.end] == "Lima"
    assert (missed.outcome, missed.fact_id, missed.value, missed.live) == ("no_match", None, "", False)


def test_a_corrected_value_is_told_by_who_entered_it_and_never_as_a_quotation(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    edited = kb.facts.edit(lima, "Cusco", actor="ann", reason="moved").seq
    kb.facts.edit(lima, question="Where does Peru's parliament meet?", actor="bob", reason="clearer")
    output = kb.outputs.record(_spliced(kb, "Cusco"))
    spliced = kb.outputs.trace(output).splices[0]
    assert spliced.entry == f'value entered by ann, change {edited} (moved); the document says "Lima"'
    assert spliced.sentence == "Its capital is Lima." and spliced.history == () and spliced.is_current
    assert [one.document_says for one in kb.outputs.trace_fact(lima).versions] == [None, "Lima", "Lima"]
    assert kb.outputs.impact(lima).outputs[0].entered
    back = kb.facts.edit(lima, "Lima", actor="cy", reason="no").seq
    spliced = kb.outputs.trace(output).splices[0]
    assert spliced.correction == f"cy, change {back}: no"
    assert not kb.outputs.trace_fact(lima).versions[-1].document_says, "the document says it again"


@pytest.mark.parametrize(
    "entered", ["Cusco", "Rome"]
)  # of another length than the document's value, and of the same
def test_who_entered_a_value_is_still_told_once_it_is_erased(kb: KnowledgeBase, entered: str):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    edited = kb.facts.edit(lima, entered, actor="ann", reason="moved").seq
    kb.facts.edit(lima, question="Where does Peru's parliament meet?", actor="bob", reason="clearer")
    back = kb.facts.edit(lima, "Lima", actor="cy", reason="no").seq
    output = kb.outputs.record(_spliced(kb, "Lima"))
    last = kb.facts.edit(lima, entered, actor="dan", reason="yes").seq
    before = kb.outputs.trace_fact(lima).versions
    Erasure(kb).erase([lima], actor="eve", reason="asked")
    after = kb.outputs.trace_fact(lima).versions
    assert (
        [one.given_seq for one in after]
        == [one.given_seq for one in before]
        == [1, edited, edited, back, last]
    )
    assert [bool(one.document_says) for one in after] == [False, True, True, False, True]
    assert {mark for one in after for mark in one.value} == {"█"}
    assert kb.outputs.trace(output).splices[0].entry is None, "the document said it"


def test_a_value_is_traced_to_the_place_it_had_before_its_fact_moved(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    output = kb.outputs.record(_spliced(kb))
    kb.facts.move(lima, {"text": "capital"}, **WHO)
    (spliced, _) = kb.outputs.trace(output).splices
    assert spliced.source is not None and (spliced.source.start, spliced.source.end) == (43, 47)
    assert spliced.document_says is None and spliced.current_value == "capital"


def test_storing_gives_the_trace_that_is_read_afterwards(kb: KnowledgeBase):
    ingest(kb, PERU)
    made = _spliced(kb)
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    stored = kb.outputs.record_traced(made)
    assert stored == kb.outputs.trace(stored.generation_id)
    assert [(s.outcome, len(s.history)) for s in stored.splices] == [("hit", 1), ("no_match", 0)]


def test_an_output_with_many_facts_is_stored_and_traced_by_as_many_statements_as_one_with_one(
    kb: KnowledgeBase,
):
    ingest(kb, PERU)
    made = _spliced(kb)
    hit = made.splices[0]
    twice = replace(
        made,
        output=made.output + " " + made.output,
        splices=(hit, replace(hit, output_start=18, output_end=22)),
    )
    counted: list[str] = []

    def count(_c: object, _cursor: object, statement: str, *_: object) -> None:
        counted.append(statement)

    def statements(output: NewOutput) -> int:
        counted.clear()
        trace = kb.outputs.record_traced(output)
        assert {splice.value for splice in trace.splices if splice.outcome == "hit"} == {"Lima"}
        return len(counted)

    event.listen(kb.outputs.store.engine, "before_cursor_execute", count)
    assert statements(replace(made, splices=(hit,))) == statements(twice) <= 8
    event.remove(kb.outputs.store.engine, "before_cursor_execute", count)


def test_a_trace_answers_after_its_fact_was_corrected_and_deleted(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    generation_id = kb.outputs.record(_spliced(kb))
    updated = kb.facts.edit(lima, "Cusco", **WHO)
    (spliced, _) = kb.outputs.trace(generation_id).splices
    assert (spliced.value, spliced.current_value, spliced.live) == ("Lima", "Cusco", True)
    deleted = kb.facts.delete([lima], **WHO)
    (spliced, _) = kb.outputs.trace(generation_id).splices
    assert (spliced.value, spliced.version, spliced.current_value, spliced.live) == ("Lima", 1, None, False)
    assert [(c.seq, c.kind, c.actor, c.reason) for c in spliced.history] == [
        (updated.seq, "update", "tester", "wrong"),
        (deleted.seq, "delete", "tester", "wrong"),
    ]


def test_a_fact_is_traced_to_its_sentence_its_past_and_its_uses(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    lima = fact_id(kb, "Lima")
    generation_id = kb.outputs.record(_spliced(kb))
    seq = kb.facts.edit(lima, "Cusco", **WHO).seq
    trace = kb.outputs.trace_fact(lima)
    assert trace.context == "Its capital is Lima."
    at = (CAPITAL, 1, 43, 47)
    assert trace.versions == (
        Version(1, "Lima", 1, seq, *at, 1),
        Version(2, "Cusco", seq, None, *at, seq, "Lima"),
    )
    assert [c.kind for c in trace.history] == ["ingest", "update"], "keying is no edit"
    at = kb.outputs.trace(generation_id).at
    assert trace.uses == (Use(generation_id, 1, 6, 10, at),)


def test_versions_tell_when_a_fact_was_live(kb: KnowledgeBase):
    insert = kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    deleted = kb.facts.delete(insert.fact_ids, **WHO)
    restored = kb.facts.restore(insert.fact_ids, **WHO)
    trace = kb.outputs.trace_fact(insert.fact_ids[0])
    assert trace.context is None
    assert [(v.from_seq, v.to_seq) for v in trace.versions] == [
        (insert.seq, deleted.seq),
        (restored.seq, None),
    ]


def test_a_splice_that_is_not_evidence_is_refused(kb: KnowledgeBase, subtests: pytest.Subtests):
    ingest(kb, PERU)
    generation = _spliced(kb)
    for damage in (
        {"output_end": 9},
        {"output_start": -1},
        {"output_end": 99},
        {"fact_id": 999},
        {"fact_id": None},
        {"version": 2},
        {"outcome": "guess"},
        {"outcome": "no_match"},
    ):
        with subtests.test(damage=damage):
            wrong = replace(generation, splices=(replace(generation.splices[0], **damage),))
            with raises_code("InvalidSplice"):
                kb.outputs.record(wrong)
            assert kb.outputs.find() == []


def test_stored_outputs_are_listed_newest_first(kb: KnowledgeBase):
    ingest(kb, PERU)
    first, second, third = (kb.outputs.record(_spliced(kb)) for _ in range(3))
    assert [g.generation_id for g in kb.outputs.find(limit=2)] == [third, second]
    (oldest,) = kb.outputs.find(after=second)
    assert (oldest.generation_id, oldest.num_splices, oldest.num_hits) == (first, 2, 1)


def test_what_was_never_stored_cannot_be_traced(kb: KnowledgeBase):
    with raises_code("GenerationNotFound"):
        kb.outputs.trace(1)
    with pytest.raises(FactNotFound):
        kb.outputs.trace_fact(1)


def test_what_no_fact_stands_behind_is_named_by_its_offsets(kb: KnowledgeBase):
    ingest(kb, PERU)
    made = _spliced(kb)
    assert kb.outputs.record_traced(made).uncited_spans == ((0, 6), (10, 11))
    bare = replace(made, output=" Lima ", splices=(replace(made.splices[0], output_start=1, output_end=5),))
    assert kb.outputs.record_traced(bare).uncited_spans == (), "blanks say nothing"


@pytest.mark.parametrize("accepted_only", [False, True])
def test_a_trace_says_whether_proposed_facts_were_left_out(kb: KnowledgeBase, accepted_only: bool):
    made = NewOutput("Who?", "Me.", "", "auto", kb.log.head_seq(), (), accepted_only=accepted_only)
    assert kb.outputs.trace(kb.outputs.record(made)).accepted_only is accepted_only
