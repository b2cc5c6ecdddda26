"""Bulk: keys made elsewhere are found by every process, and whole documents go and come back in one change each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colmlm.kb.corpus.format import Parsed
from colmlm.kb.service import KnowledgeBase
from tests.fakes import DIM, FakeEncoder
from tests.kb.corpora import CAPITAL, CHILE, PERU, RIVER, fact_id, ingest, numbered, values
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "test"}


def keyset_of(kb: KnowledgeBase, encoder: FakeEncoder) -> int:
    return kb.keysets.create(encoder.checkpoint).keyset_id


def test_keys_that_are_given_are_found_here_and_in_a_process_that_follows(
    kb: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    assert values(another_process, encoder, [CAPITAL]) == ["Lima"]
    ingest(kb, *numbered(70))
    facts = [fact for fact in kb.facts.find(limit=1000) if fact.value.startswith("value")]
    questions = [fact.question or "" for fact in facts]
    ids, keys = np.array([fact.fact_id for fact in facts]), encoder.encode_questions(questions)
    heard: list[tuple[int, int]] = []
    edits = kb.keysets.store_keys(
        keyset_of(kb, encoder),
        ids,
        keys.astype(np.float16),
        batch=30,
        on_facts=lambda *done: heard.append(done),
        **WHO,
    )
    assert heard == [(30, 70), (60, 70), (70, 70)]
    assert [(c.seq, c.kind, c.num_facts, c.fact_ids) for c in kb.log.changes(after=edits[0].seq - 1)] == [
        (edit.seq, "key", n, ()) for edit, n in zip(edits, (30, 30, 10), strict=True)
    ]
    for reader in (kb, another_process):
        assert values(reader, encoder, questions) == [fact.value for fact in facts]
    assert kb.upkeep.fsck().ok and kb.upkeep.fsck().unkeyed_facts == 0
    stored_ids, stored = kb.keysets.keys(keyset_of(kb, encoder))
    assert stored_ids[-70:].tolist() == ids.tolist()
    assert np.array_equal(stored[-70:], keys.astype(np.float16).astype(np.float32))


def test_a_first_keyset_made_of_given_keys_answers_once_finished(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    keyset_id, ids = keyset_of(kb, encoder), np.array([fact_id(kb, "Lima"), fact_id(kb, "Amazon")])
    kb.keysets.store_keys(keyset_id, ids, encoder.encode_questions([CAPITAL, RIVER]), **WHO)
    assert kb.keysets.finish(keyset_id).state == "active"
    assert values(kb, encoder, [CAPITAL, RIVER]) == ["Lima", "Amazon"]
    assert kb.upkeep.fsck().unkeyed_facts == 1
    kb.keysets.rekey(encoder)
    assert kb.upkeep.fsck().ok and kb.upkeep.fsck().unkeyed_facts == 0


def test_keys_that_do_not_fit_are_refused_and_none_is_stored(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU)
    keyset_id = keyset_of(kb, encoder)
    lima, amazon, peak = (fact_id(kb, value) for value in ("Lima", "Amazon", "6,768 m"))
    kb.facts.delete([peak], **WHO)
    keys = encoder.encode_questions([CAPITAL, RIVER])
    kb.keysets.store_keys(keyset_id, np.array([lima]), keys[:1], **WHO)
    head, nan = kb.log.head_seq(), keys.copy()
    nan[0, 0] = np.nan
    for ids, given, kind, error, words in (
        (
            [amazon, lima],
            keys,
            "context",
            "InvalidKeys",
            f"there already is a key of the kind .context. for fact {lima}",
        ),
        ([amazon, amazon], keys, "context", "InvalidKeys", "twice"),
        ([amazon, peak], keys, "context", "FactDeleted", str(peak)),
        ([amazon, 10**9], keys, "context", "FactNotFound", str(10**9)),
        ([amazon, -1], keys, "context", "FactNotFound", "-1"),
        ([amazon, lima], keys * 1.02, "question", "InvalidKeys", "unit"),
        ([amazon, lima], nan, "question", "InvalidKeys", "unit"),
        ([amazon, lima], keys[:, :-1], "question", "InvalidKeys", "shape"),
        ([amazon], keys, "question", "InvalidValue", "2 for 1"),
        ([amazon, lima], keys, "answer", "InvalidValue", "not one of"),
        ([1.5, 2.5], keys, "question", "InvalidValue", "integers"),
    ):
        with raises_code(error, match=words):
            kb.keysets.store_keys(keyset_id, np.array(ids), given, kind, **WHO)
    assert kb.log.head_seq() == head and len(kb.keysets.keys(keyset_id)[0]) == 1
    kb.keysets.store_keys(keyset_id, np.array([amazon, lima]), keys[:, :DIM], "question", **WHO)
    kb.keysets.store_keys(keyset_id, np.array([lima, lima]), keys, "alias", **WHO)
    assert kb.keysets.all()[0].num_keys == 5


def test_documents_are_deleted_in_one_change_that_a_restore_undoes(kb: KnowledgeBase, encoder: FakeEncoder):
    ingest(kb, PERU, CHILE)
    ingest(kb, CHILE, corpus="others")
    kb.keysets.rekey(encoder)
    kb.facts.delete([fact_id(kb, "Amazon")], **WHO)
    assert kb.corpora.count("lands", ["peru"]) == (1, 2)
    edit = kb.corpora.delete("lands", ["peru", "peru"], **WHO)
    change = kb.log.changes(after=edit.seq - 1)[0]
    assert (change.kind, change.fact_ids, change.num_facts) == ("delete", edit.fact_ids, 2)
    assert values(kb, encoder, [CAPITAL]) == [None]
    report = ingest(kb, PERU, CHILE)
    assert (report.unchanged, report.still_deleted, report.seq) == (2, 3, None)
    edition = replace(PERU, revision="2")
    assert (ingest(kb, edition).still_deleted, values(kb, encoder, [CAPITAL])) == (3, [None])
    kb.facts.restore(edit.fact_ids, **WHO)
    assert values(kb, encoder, [CAPITAL, RIVER]) == ["Lima", None] and kb.upkeep.fsck().ok


def test_a_corpus_is_deleted_whole_and_deleting_it_again_is_no_change(kb: KnowledgeBase):
    ingest(kb, PERU, CHILE)
    ingest(kb, CHILE, corpus="others")
    with raises_code("CorpusNotFound"):
        kb.corpora.delete("nowhere", **WHO)
    with raises_code("ExternalIdNotFound", match=r"'a\\x00', 'b' in corpus 'lands'"):
        kb.corpora.delete("lands", ["a\0", "peru", "b"], **WHO)
    assert kb.corpora.count("lands") == (2, 4)
    edit = kb.corpora.delete("lands", **WHO)
    assert len(edit.fact_ids) == 4 and [f.source.corpus for f in kb.facts.find() if f.source] == ["others"]
    again = kb.corpora.delete("lands", **WHO)
    assert (again.fact_ids, again.seq, kb.log.head_seq()) == ((), edit.seq, edit.seq)
    assert kb.corpora.count("lands") == (2, 0)


def test_an_ingest_in_pieces_goes_on_where_it_stopped(kb: KnowledgeBase):
    documents = numbered(25)

    def broken():
        yield from map(Parsed, documents[:23])
        raise RuntimeError("the disk went away")

    heard: list[int] = []
    with pytest.raises(RuntimeError):
        kb.corpora.ingest(
            broken(), "lands", commit_every=10, on_piece=lambda so_far: heard.append(so_far.documents), **WHO
        )
    assert heard == [10, 20] and kb.corpora.all()[0].documents == 20
    twice = [Parsed(d) for d in (*documents, documents[0])]
    report = kb.corpora.ingest(twice, "lands", commit_every=10, **WHO)
    assert (report.documents, report.facts, report.unchanged, report.seq) == (5, 5, 20, 3)
    assert [r.document for r in report.refusals] == ["d0"], "a duplicate is one across pieces too"
    assert [c.num_facts for c in kb.log.changes()] == [10, 10, 5] and kb.upkeep.fsck().ok
    assert list(kb.corpora.export("lands")) == documents
