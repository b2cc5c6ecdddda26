"""Edits of facts: what they do, what they refuse, and that a refused one does nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from colmlm.kb.errors import FactNotFound, InvalidValue
from colmlm.kb.facts.facts import PAGE
from colmlm.kb.service import KnowledgeBase
from tests.gates import await_that, gate
from tests.kb.corpora import CHILE, PERU, fact_id, ingest, numbered
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}


def test_an_inserted_fact_has_no_source(kb: KnowledgeBase):
    edit = kb.facts.add("Who wrote Emma?", "Jane Austen", answer="Jane Austen did.", **WHO)
    fact = kb.facts.show(edit.fact_ids[0])
    assert (fact.value, fact.version, fact.source, fact.created_seq) == ("Jane Austen", 1, None, edit.seq)


def test_an_ingested_fact_names_its_place_in_its_document(kb: KnowledgeBase):
    ingest(kb, PERU)
    source = kb.facts.show(fact_id(kb, "Amazon")).source
    assert source is not None and (source.corpus, source.external_id) == ("lands", "peru")
    assert kb.documents.text(source.document_id)[source.start : source.end] == "Amazon"


def test_update_opens_the_next_version(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    edit = kb.facts.edit(lima, "Cusco", **WHO)
    fact = kb.facts.show(lima)
    assert (fact.value, fact.version, edit.kind, edit.fact_ids) == ("Cusco", 2, "update", (lima,))


def test_delete_and_restore_give_the_last_value_back(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima = fact_id(kb, "Lima")
    kb.facts.edit(lima, "Cusco", **WHO)
    deleted = kb.facts.delete([lima, lima], **WHO)
    assert deleted.fact_ids == (lima,) and kb.facts.show(lima).deleted_seq == deleted.seq
    assert kb.facts.show(lima).value == "Cusco"
    kb.facts.restore([lima], **WHO)
    assert kb.facts.show(lima).deleted_seq is None and kb.facts.show(lima).value == "Cusco"


def test_a_refused_edit_names_every_id_and_does_nothing(kb: KnowledgeBase):
    ingest(kb, PERU)
    lima, amazon = fact_id(kb, "Lima"), fact_id(kb, "Amazon")
    with pytest.raises(FactNotFound) as missing:
        kb.facts.delete([lima, 998, 2**70, -1], **WHO)
    assert missing.value.fact_ids == (-1, 998, 2**70)
    with raises_code("FactNotDeleted"):
        kb.facts.restore([lima], **WHO)
    kb.facts.delete([amazon], **WHO)
    with raises_code("FactDeleted") as deleted:
        kb.facts.delete([lima, amazon], **WHO)
    assert deleted.value.fact_ids == (amazon,)
    with raises_code("FactDeleted"):
        kb.facts.edit(amazon, "Ucayali", **WHO)
    assert kb.facts.show(lima).deleted_seq is None and [c.kind for c in kb.log.changes()] == [
        "ingest",
        "delete",
    ]


def test_a_value_that_cannot_be_stored_is_refused(kb: KnowledgeBase, subtests: pytest.Subtests):
    for value in ("", " \n", "a\x00b", "x" * 10_001, "\ud800"):
        with subtests.test(value=value):
            with pytest.raises(InvalidValue):
                kb.facts.add("Who?", value, **WHO)
            ingest(kb, PERU)
            with pytest.raises(InvalidValue):
                kb.facts.edit(fact_id(kb, "Lima"), value, **WHO)


def test_an_edit_needs_an_actor(kb: KnowledgeBase):
    with pytest.raises(InvalidValue, match="actor"):
        kb.facts.add("Who?", "Me", actor=" ", reason="")


def test_all_facts_come_page_after_page_and_once(kb: KnowledgeBase):
    ingest(kb, PERU)
    ingest(kb, *numbered(PAGE + 1), corpus="others")
    kb.facts.delete([kb.facts.find(corpus="others")[0].fact_id], **WHO)
    ids = [fact.fact_id for fact in kb.facts.every()]
    assert len(ids) == 3 + PAGE and ids == sorted(set(ids))
    assert [fact.value for fact in kb.facts.every("lands")] == ["Lima", "Amazon", "6,768 m"]
    with raises_code("CorpusNotFound"):
        list(kb.facts.every("nowhere"))


def test_lists_page_by_id_and_tell_deleted_from_live(kb: KnowledgeBase):
    ingest(kb, PERU)
    ingest(kb, CHILE, corpus="others")
    first = kb.facts.find(limit=2)
    assert [f.value for f in first + kb.facts.find(after=first[-1].fact_id)] == [
        "Lima",
        "Amazon",
        "6,768 m",
        "Santiago",
    ]
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    assert [f.value for f in kb.facts.find(deleted=True)] == ["Lima"]
    assert len(kb.facts.find(deleted=None, corpus="lands")) == 3 and len(kb.facts.find(corpus="lands")) == 2


def test_corpora_count_what_is_there(kb: KnowledgeBase):
    ingest(kb, PERU)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    (stats,) = kb.corpora.all()
    assert (stats.corpus, stats.documents, stats.facts, stats.deleted) == ("lands", 1, 2, 1)
    assert stats.characters == len(PERU.text)


def test_export_leaves_out_deleted_facts_and_corrected_values(kb: KnowledgeBase):
    ingest(kb, PERU)
    kb.facts.delete([fact_id(kb, "Lima")], **WHO)
    kb.facts.edit(fact_id(kb, "Amazon"), "Ucayali", **WHO)
    (document,) = kb.corpora.export("lands")
    assert [span.value for span in document.facts] == ["6,768 m"]


def test_what_does_not_exist_is_named(kb: KnowledgeBase):
    with pytest.raises(FactNotFound):
        kb.facts.show(2**80)
    with raises_code("DocumentNotFound"):
        kb.documents.text(1)
    with raises_code("CorpusNotFound"):
        kb.corpora.export("nowhere")


def test_a_fact_that_is_corrected_while_its_deletion_waits_is_deleted_with_the_new_value(kb: KnowledgeBase):
    ingest(kb, PERU)
    one = fact_id(kb, "Amazon")
    url = kb.engine.url.render_as_string(hide_password=False)
    with ThreadPoolExecutor() as threads:
        with gate(url, "INSERT ON change", "NEW.kind = 'update'") as reached:
            corrected = threads.submit(kb.facts.edit, one, "Ucayali", **WHO)
            await_that(reached)
            deleted = threads.submit(kb.facts.delete, [one], **WHO)
            await_that(lambda: _waiting(kb) == 2)
        assert corrected.result().seq < deleted.result().seq
    fact = kb.facts.show(one)
    assert (fact.value, fact.version, fact.deleted_seq) == ("Ucayali", 2, deleted.result().seq)
    assert kb.log.verify().ok


def _waiting(kb: KnowledgeBase) -> int:
    with kb.sessions() as session:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return session.scalar(text(f"{waiting} AND datname = current_database()")) or 0
