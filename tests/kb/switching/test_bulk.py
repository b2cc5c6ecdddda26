"""Bulk: keys made elsewhere are found by every process, and whole documents go and come back in one change each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.errors import (
    CorpusNotFound,
    ExternalIdNotFound,
    FactDeleted,
    FactNotFound,
    InvalidKeys,
    InvalidValue,
)
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.switching.bulk import Bulk
from tests.fakes import DIM, FakeEncoder
from tests.kb.corpora import CAPITAL, CHILE, PERU, RIVER, fact_id, ingest, numbered, values

WHO = {"actor": "tester", "reason": "test"}


def keyset_of(kb: KnowledgeBase, encoder: FakeEncoder) -> int:
    return kb.create_keyset(encoder.checkpoint).keyset_id


def test_keys_that_are_given_are_found_here_and_in_a_process_that_follows(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
):
    ingest(kb, PERU)
    kb.rekey(encoder)
    assert values(another_process, encoder, [CAPITAL]) == ["Lima"]
    monkeypatch.setattr("colmlm.kb.switching.bulk.KEYS_A_CHANGE", 30)
    ingest(kb, *numbered(70))
    facts = [fact for fact in kb.facts(limit=1000) if fact.value.startswith("value")]
    questions = [fact.question or "" for fact in facts]
    ids, keys = np.array([fact.fact_id for fact in facts]), encoder.encode_questions(questions)
    heard: list[tuple[int, int]] = []
    edits = Bulk(kb).store_keys(
        keyset_of(kb, encoder),
        ids,
        keys.astype(np.float16),
        on_facts=lambda *done: heard.append(done),
        **WHO,
    )
    assert heard == [(30, 70), (60, 70), (70, 70)]
    assert [(c.seq, c.kind, c.num_facts, c.fact_ids) for c in kb.changes(after=edits[0].seq - 1)] == [
        (edit.seq, "key", n, ()) for edit, n in zip(edits, (30, 30, 10), strict=True)
    ]
    for reader in (kb, another_process):
        assert values(reader, encoder, questions) == [fact.value for fact in facts]
    assert kb.fsck().ok and kb.fsck().unkeyed_facts == 0
    stored_ids, stored = kb.keys(keyset_of(kb, encoder))
    assert stored_ids[-70:].tolist() == ids.tolist()
    assert np.array_equal(stored[-70:], keys.astype(np.float16).astype(np.float32))


def test_a_first_keyset_made_of_given_keys_answers_once_finished(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    keyset_id, ids = keyset_of(kb, encoder), np.array([fact_id(kb, "Lima"), fact_id(kb, "Amazon")])
    Bulk(kb).store_keys(keyset_id, ids, encoder.encode_questions([CAPITAL, RIVER]), **WHO)
    assert Bulk(kb).finish_keyset(keyset_id).state == "active"
    assert values(kb, encoder, [CAPITAL, RIVER]) == ["Lima", "Amazon"]
    assert kb.fsck().unkeyed_facts == 1
    kb.rekey(encoder)
    assert kb.fsck().ok and kb.fsck().unkeyed_facts == 0


def test_keys_that_do_not_fit_are_refused_and_none_is_stored(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    keyset_id, bulk = keyset_of(kb, encoder), Bulk(kb)
    lima, amazon, peak = (fact_id(kb, value) for value in ("Lima", "Amazon", "6,768 m"))
    kb.delete([peak], **WHO)
    keys = encoder.encode_questions([CAPITAL, RIVER])
    bulk.store_keys(keyset_id, np.array([lima]), keys[:1], **WHO)
    head, nan = kb.head_seq(), keys.copy()
    nan[0, 0] = np.nan
    for ids, given, kind, error, words in (
        (
            [amazon, lima],
            keys,
            "context",
            InvalidKeys,
            f"already of fact {lima}|there already of fact {lima}",
        ),
        ([amazon, amazon], keys, "context", InvalidKeys, "twice"),
        ([amazon, peak], keys, "context", FactDeleted, str(peak)),
        ([amazon, 10**9], keys, "context", FactNotFound, str(10**9)),
        ([amazon, -1], keys, "context", FactNotFound, "-1"),
        ([amazon, lima], keys * 1.02, "question", InvalidKeys, "unit"),
        ([amazon, lima], nan, "question", InvalidKeys, "unit"),
        ([amazon, lima], keys[:, :-1], "question", InvalidKeys, "shape"),
        ([amazon], keys, "question", InvalidValue, "2 for 1"),
        ([amazon, lima], keys, "answer", InvalidValue, "none of"),
        ([1.5, 2.5], keys, "question", InvalidValue, "integers"),
    ):
        with pytest.raises(error, match=words):
            bulk.store_keys(keyset_id, np.array(ids), given, kind, **WHO)
    assert kb.head_seq() == head and len(kb.keys(keyset_id)[0]) == 1
    bulk.store_keys(keyset_id, np.array([amazon, lima]), keys[:, :DIM], "question", **WHO)
    bulk.store_keys(keyset_id, np.array([lima, lima]), keys, "alias", **WHO)
    assert kb.keysets()[0].num_keys == 5


def test_documents_are_deleted_in_one_change_that_a_restore_undoes(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU, CHILE)
    ingest(kb, CHILE, corpus="others")
    kb.rekey(encoder)
    bulk = Bulk(kb)
    kb.delete([fact_id(kb, "Amazon")], **WHO)
    assert bulk.count_documents("lands", ["peru"]) == (1, 2)
    edit = bulk.delete_documents("lands", ["peru", "peru"], **WHO)
    change = kb.changes(after=edit.seq - 1)[0]
    assert (change.kind, change.fact_ids, change.num_facts) == ("delete", edit.fact_ids, 2)
    assert values(kb, encoder, [CAPITAL]) == [None]
    report = ingest(kb, PERU, CHILE)
    assert (report.unchanged, report.still_deleted, report.seq) == (2, 3, None)
    edition = replace(PERU, revision="2")
    assert (ingest(kb, edition).still_deleted, values(kb, encoder, [CAPITAL])) == (3, [None])
    kb.restore(edit.fact_ids, **WHO)
    assert values(kb, encoder, [CAPITAL, RIVER]) == ["Lima", None] and kb.fsck().ok


def test_a_corpus_is_deleted_whole_and_deleting_it_again_is_no_change(kb: KnowledgeBase):
    ingest(kb, PERU, CHILE)
    ingest(kb, CHILE, corpus="others")
    bulk = Bulk(kb)
    with pytest.raises(CorpusNotFound):
        bulk.delete_documents("nowhere", **WHO)
    with pytest.raises(ExternalIdNotFound, match=r"'a\\x00', 'b' in corpus 'lands'"):
        bulk.delete_documents("lands", ["a\0", "peru", "b"], **WHO)
    assert bulk.count_documents("lands") == (2, 4)
    edit = bulk.delete_documents("lands", **WHO)
    assert len(edit.fact_ids) == 4 and [f.source.corpus for f in kb.facts() if f.source] == ["others"]
    again = bulk.delete_documents("lands", **WHO)
    assert (again.fact_ids, again.seq, kb.head_seq()) == ((), edit.seq, edit.seq)
    assert bulk.count_documents("lands") == (2, 0)


def test_an_ingest_in_pieces_goes_on_where_it_stopped(kb: KnowledgeBase):
    documents = numbered(25)

    def broken():
        yield from map(Parsed, documents[:23])
        raise RuntimeError("the disk went away")

    heard: list[int] = []
    with pytest.raises(RuntimeError):
        kb.ingest(
            broken(), "lands", commit_every=10, on_piece=lambda so_far: heard.append(so_far.documents), **WHO
        )
    assert heard == [10, 20] and kb.corpora()[0].documents == 20
    twice = [Parsed(d) for d in (*documents, documents[0])]
    report = kb.ingest(twice, "lands", commit_every=10, **WHO)
    assert (report.documents, report.facts, report.unchanged, report.seq) == (5, 5, 20, 3)
    assert [r.document for r in report.refusals] == ["d0"], "a duplicate is one across pieces too"
    assert [c.num_facts for c in kb.changes()] == [10, 10, 5] and kb.fsck().ok
    assert list(kb.export("lands")) == documents
