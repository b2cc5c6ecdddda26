"""Documents that are removed are out of use with their facts, and come back as they were."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from colmlm.kb.facts.records import FactRecord
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import document, ingest

WHO = {"actor": "tester", "reason": "gone"}
PERU = document(
    "peru", "The capital of Peru is ", ("Lima", "Where?"), ", its lake ", ("Titicaca", "Which?"), "."
)
CHILE = document("chile", "The capital of Chile is ", ("Santiago", "Where is it?"), ".")


@pytest.fixture
def facts(kb: KnowledgeBase, encoder: FakeEncoder) -> dict[str, FactRecord]:
    ingest(kb, PERU, CHILE, corpus="atlas")
    kb.keysets.rekey(encoder)
    return live(kb)


def live(kb: KnowledgeBase) -> dict[str, FactRecord]:
    return {fact.value: fact for fact in kb.facts.find()}


def sentences(kb: KnowledgeBase) -> int:
    with kb.sessions() as session:
        return session.scalar(text("SELECT count(*) FROM sentence")) or 0


def test_a_removed_document_is_out_of_use_with_its_facts_and_stays_as_evidence(
    kb: KnowledgeBase, facts: dict[str, FactRecord]
) -> None:
    edit = kb.corpora.remove("atlas", ["peru", "none"], **WHO)
    assert edit is not None
    assert set(edit.fact_ids) == {facts["Lima"].fact_id, facts["Titicaca"].fact_id}
    assert live(kb).keys() == {"Santiago"} and sentences(kb) == 1
    (change,) = kb.log.changes(edit.seq - 1)
    assert (change.kind, change.reason, change.num_facts) == ("delete", "gone", 2)
    assert [d.external_id for d in kb.documents.find(corpus="atlas")] == ["chile"]
    (kept,) = kb.documents.find(corpus="atlas", replaced=True)
    assert (kept.external_id, kept.replaced_seq) == ("peru", edit.seq)
    assert kb.documents.text(kept.document_id) == PERU.text
    assert [d.external_id for d in kb.corpora.export("atlas", live_only=False)] == ["chile"]
    assert kb.upkeep.fsck().ok
    assert kb.corpora.remove("atlas", ["peru"], **WHO) is None and kb.log.head_seq() == edit.seq


def test_a_document_that_comes_again_is_put_back_with_what_was_done_to_its_facts(
    kb: KnowledgeBase, facts: dict[str, FactRecord]
) -> None:
    kb.facts.delete([facts["Titicaca"].fact_id], **WHO)
    kb.facts.edit(facts["Lima"].fact_id, "Cusco", **WHO)
    removed = kb.corpora.remove("atlas", ["peru"], **WHO)
    assert removed is not None
    report = ingest(kb, PERU, corpus="atlas")
    assert (report.documents, report.unchanged, report.facts, report.seq) == (0, 1, 0, removed.seq + 1)
    assert live(kb).keys() == {"Cusco", "Santiago"} and sentences(kb) == 2
    assert live(kb)["Cusco"].fact_id == facts["Lima"].fact_id
    assert kb.log.changes(removed.seq)[0].kind == "restore"
    changed = document("peru", "The capital of Peru is ", ("Lima", "Where?"), ".")
    kb.corpora.remove("atlas", ["peru"], **WHO)
    report = ingest(kb, changed, corpus="atlas")
    assert (report.documents, report.replaced, report.facts) == (1, 1, 0)
    assert live(kb)["Cusco"].fact_id == facts["Lima"].fact_id and kb.upkeep.fsck().ok


def test_a_removal_is_undone_like_another_deletion(kb: KnowledgeBase, facts: dict[str, FactRecord]) -> None:
    removed = kb.corpora.remove("atlas", ["peru", "chile"], **WHO)
    assert removed is not None
    assert live(kb) == {} and sentences(kb) == 0
    kb.facts.undo(removed.seq, **WHO)
    assert {value: fact.fact_id for value, fact in live(kb).items()} == {
        value: fact.fact_id for value, fact in facts.items()
    }
    assert len(kb.documents.find(corpus="atlas")) == 2 and sentences(kb) == 2 and kb.upkeep.fsck().ok


def test_a_document_without_facts_is_removed_and_put_back_too(kb: KnowledgeBase) -> None:
    ingest(kb, document("note", "Nothing is marked here."), corpus="atlas")
    edit = kb.corpora.remove("atlas", ["note"], **WHO)
    assert edit is not None and edit.fact_ids == () and kb.documents.find() == [] and sentences(kb) == 0
    assert ingest(kb, document("note", "Nothing is marked here."), corpus="atlas").unchanged == 1
    assert len(kb.documents.find()) == 1 and sentences(kb) == 1 and kb.log.head_seq() == edit.seq + 1
