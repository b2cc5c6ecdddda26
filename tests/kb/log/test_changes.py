"""The change log: one entry an edit, chained, ordered, and without fact text."""

from __future__ import annotations

import threading

from sqlalchemy import text

from colmlm.kb.log import audit
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, fact_id, ingest
from tests.kb.log.rewriting import tamper

WHO = {"actor": "tester", "reason": "because"}


def _edit_everything(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    ingest(kb, PERU)
    keyset = kb.keysets.rekey(encoder)
    kb.keysets.set_threshold(keyset.keyset_id, 0.1 + 0.2)
    lima = fact_id(kb, "Lima")
    kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    kb.facts.edit(lima, "Cusco", **WHO)
    kb.facts.delete([lima], **WHO)
    kb.facts.restore([lima], **WHO)


def test_every_edit_appends_one_chained_change(kb: KnowledgeBase, encoder: FakeEncoder):
    _edit_everything(kb, encoder)
    changes = kb.log.changes()
    kinds = ["ingest", "key", "activate", "threshold", "insert", "update", "delete", "restore"]
    assert [c.kind for c in changes] == kinds and [c.seq for c in changes] == list(range(1, 9))
    assert [c.prev_hash for c in changes] == [audit.GENESIS, *(c.hash for c in changes[:-1])]
    assert (changes[-1].actor, changes[-1].reason, changes[-1].num_facts) == ("tester", "because", 1)
    assert kb.log.changes(after=6, limit=1) == [changes[6]]
    assert kb.upkeep.fsck().changes_checked == 8 and kb.upkeep.fsck().chain_ok


def test_a_change_of_a_keyset_names_it_and_its_checkpoint(kb: KnowledgeBase, encoder: FakeEncoder):
    _edit_everything(kb, encoder)
    newer = FakeEncoder(salt="2")
    second = kb.keysets.rekey(newer).keyset_id
    kb.keysets.activate(second, force=True)
    kb.keysets.rollback()
    kb.keysets.retire(second)
    first, name = kb.keysets.active().keyset_id, encoder.checkpoint.name
    named = [(c.kind, c.keyset_id, c.checkpoint) for c in kb.log.changes() if c.kind in audit.OF_KEYSETS]
    assert named == [
        ("activate", first, name), ("threshold", first, name), ("activate", second, newer.checkpoint.name),
        ("activate", first, name), ("retire", second, newer.checkpoint.name),
    ]  # fmt: skip
    others = [c for c in kb.log.changes() if c.kind not in audit.OF_KEYSETS]
    assert {(c.keyset_id, c.checkpoint) for c in others} == {(None, None)}
    assert kb.log.changes_before(10**9, 1)[0] == kb.log.change(kb.log.head_seq()) == kb.log.changes()[-1]


def test_the_log_holds_no_fact_text(kb: KnowledgeBase, encoder: FakeEncoder):
    _edit_everything(kb, encoder)
    with kb.engine.connect() as connection:
        log = " ".join(connection.scalars(text("SELECT change::text FROM change")))
    assert not [word for word in ("Lima", "Cusco", "Austen", "Emma", "capital") if word in log]


def test_a_rewritten_entry_is_found(kb: KnowledgeBase, encoder: FakeEncoder):
    _edit_everything(kb, encoder)
    tamper(kb, "UPDATE change SET reason = 'another' WHERE seq = 5")
    report = kb.upkeep.fsck()
    assert (
        not report.ok
        and not report.chain_ok
        and report.chain_first_break == 5
        and report.changes_checked == 8
    )


def test_a_removed_entry_is_found(kb: KnowledgeBase, encoder: FakeEncoder):
    _edit_everything(kb, encoder)
    tamper(kb, "DELETE FROM change WHERE seq = 6")
    assert kb.upkeep.fsck().chain_first_break == 6


def test_a_cut_off_end_is_found(kb: KnowledgeBase, encoder: FakeEncoder):
    _edit_everything(kb, encoder)
    tamper(kb, "DELETE FROM change WHERE seq = 8")
    report = kb.upkeep.fsck()
    assert report.chain_ok and not report.ok and "not in the log" in report.problems[0]


def test_editors_at_once_leave_neither_gaps_nor_forks(kb: KnowledgeBase):
    def edit(number: int) -> None:
        for n in range(10):
            kb.facts.add(f"Question {number}/{n}?", "value", **WHO)

    threads = [threading.Thread(target=edit, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kb.log.head_seq() == 40 and kb.upkeep.fsck().chain_ok and kb.upkeep.fsck().changes_checked == 40
