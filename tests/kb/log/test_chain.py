"""A log that somebody wrote into by SQL: what does not fit is named, the rest is checked, and it can be sealed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from colmlm.kb.backup.restore import restore_backup
from colmlm.kb.backup.write import write_backup
from colmlm.kb.errors import LogRefused, NoFormerKeyset
from colmlm.kb.log import audit
from colmlm.kb.log.chain import CheckedChain, verify_chain
from colmlm.kb.log.signing import signing_key
from colmlm.kb.log.witness import check_log, read_log
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.backup.test_backup import empty
from tests.kb.corpora import CAPITAL, PERU, ask, fact_id, ingest
from tests.kb.log.rewriting import tamper
from tests.refusals import raises_code

__all__ = ["empty"]

WHO = {"actor": "tester", "reason": "because"}


@pytest.fixture
def edited(kb: KnowledgeBase, encoder: FakeEncoder) -> KnowledgeBase:
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    return kb


def put_in(kb: KnowledgeBase, *, in_order: bool = True, readable: bool = True, **other: Any) -> int:
    """Insert a row as the database's owner can; and what guards the log off where that is in the way."""
    row = {
        "seq": kb.log.head_seq() + 1,
        "kind": "update",
        "fact_ids": "{1}",
        "num_facts": 1,
        "actor": "mallory",
        "reason": "put in by hand",
        "at": "2026-01-01",
        "prev_hash": "made up",
        "hash": "made up too",
        "payload": "{}",
        **other,
    }
    with kb.engine.begin() as connection:
        if not in_order:
            connection.execute(text("ALTER TABLE change DISABLE TRIGGER change_in_order"))
        if not readable:
            connection.execute(text("ALTER TABLE change DROP CONSTRAINT IF EXISTS change_readable"))
        names = ", ".join(row)
        values = ", ".join(f"CAST(:{name} AS {_TYPES.get(name, 'text')})" for name in row)
        connection.execute(text(f"INSERT INTO change ({names}) VALUES ({values})"), row)
        connection.execute(text("ALTER TABLE change ENABLE TRIGGER change_in_order"))
    return int(row["seq"])


_TYPES = {
    "seq": "bigint",
    "fact_ids": "bigint[]",
    "num_facts": "bigint",
    "at": "timestamptz",
    "payload": "jsonb",
}


def verified(kb: KnowledgeBase) -> CheckedChain:
    with kb.sessions() as session:
        return verify_chain(session)


def causes(chained: CheckedChain) -> dict[int, tuple[str, ...]]:
    return {found.seq: found.causes for found in chained.breaks}


def test_a_row_put_in_is_named_and_what_comes_after_is_checked(edited: KnowledgeBase):
    bogus = put_in(edited)
    edited.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    edited.facts.edit(fact_id(edited, "Cusco"), "Lima", **WHO)
    found = verified(edited)
    assert causes(found) == {bogus: ("prev_hash", "hash")} and found.checked == found.seq == bogus + 2
    assert found.breaks[0].hash == "made up too" and found.breaks[0].expected_prev_hash != "made up"
    tamper(edited, f"UPDATE change SET reason = 'another' WHERE seq = {bogus + 1}")
    tamper(edited, "UPDATE change SET hash = repeat('0', 64) WHERE seq = 2")
    assert causes(verified(edited)) == {
        2: ("hash",), 3: ("prev_hash",), bogus: ("prev_hash", "hash"), bogus + 1: ("hash",)
    }  # fmt: skip
    tamper(edited, "DELETE FROM change WHERE seq = 2")
    assert causes(verified(edited))[3] == ("gap", "prev_hash") and verified(edited).first_break == 2


def test_a_sealed_break_is_told_and_any_other_still_fails(edited: KnowledgeBase):
    bogus = put_in(edited)
    assert not edited.upkeep.fsck().ok and not edited.log.verify().ok
    preview = edited.log.seal([bogus], **WHO, dry_run=True)
    assert preview.seq == bogus + 1 and edited.log.head_seq() == bogus
    sealed = edited.log.seal([bogus], actor="ann", reason="inserted by hand")
    report, fsck = edited.log.verify(), edited.upkeep.fsck()
    assert report.ok and report.first_break is None and report.breaks == ()
    assert report.sealed == sealed.breaks and report.sealed[0].sealed_by == sealed.seq == bogus + 1
    assert fsck.ok and fsck.chain_ok and (fsck.chain_breaks, fsck.chain_sealed) == ((), (bogus,))
    change = edited.log.changes()[-1]
    assert (change.kind, change.actor, change.reason) == ("seal", "ann", "inserted by hand")
    for seqs in ([bogus], [1], [bogus, 99]):
        with raises_code("NoOpenBreak"):
            edited.log.seal(seqs, **WHO)
    another = put_in(edited)
    fsck = edited.upkeep.fsck()
    assert (fsck.ok, fsck.chain_breaks, fsck.chain_sealed) == (False, (another,), (bogus,))
    assert fsck.chain_first_break == another


def test_what_is_altered_after_it_was_sealed_is_a_new_break(edited: KnowledgeBase):
    bogus = put_in(edited)
    edited.log.seal([bogus], **WHO)
    tamper(edited, f"UPDATE change SET reason = 'yet another' WHERE seq = {bogus}")
    assert causes(verified(edited)) == {bogus: ("prev_hash", "hash")} and verified(edited).sealed == ()


def test_a_seal_that_was_put_in_by_hand_seals_nothing(edited: KnowledgeBase):
    bogus = put_in(edited)
    said = {"breaks": [verified(edited).breaks[0].statement()]}
    forged = put_in(edited, kind="seal", payload=json.dumps(said))
    assert set(causes(verified(edited))) == {bogus, forged}


def test_edits_and_lookups_go_on_after_a_row_far_ahead(
    edited: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder
):
    ask(another_process, encoder, CAPITAL)
    with pytest.raises(DBAPIError, match="goes on with change"):
        put_in(edited, seq=2**62)
    ahead = put_in(edited, seq=2**62, in_order=False)
    edited.facts.edit(fact_id(edited, "Cusco"), "Lima", **WHO)
    for base in (edited, another_process):
        (found,) = ask(base, encoder, CAPITAL)
        assert found.hits[0].value == "Lima" and base.log.head_seq() == ahead + 1
    edited.lookups.snapshot()
    assert causes(verified(edited)) == {ahead: ("gap", "prev_hash", "hash")}
    edited.log.seal([ahead], **WHO)
    assert edited.upkeep.fsck().ok and edited.facts.add("Q?", "A", **WHO).seq == ahead + 3


NO_OBJECTS = ("[]", '"x"', "1", "null", '[{"abstain": true}]')
HOSTILE = (
    {"keyset": "abc", "keys": [1, 2**62], "dropped_keys": [1, 2, 3]},
    {"keyset": 2**62, "keys": "ab", "dropped_keys": {"1": 2}},
    {"keyset": 1.5, "keys": [None, {}], "dropped_keys": ["x"], "abstain": True},
    {"keyset": 1, "keys": [1], "request_id": {"a": 1}, "principal": "root", "on_behalf_of": 7},
    {"keyset": 1, "keys": [1, 2**62], "dropped_keys": [1, 2, 3]},
    {"principal": {"kind": 3}, "client_request_id": [], "breaks": [1, {"seq": "x"}, {"seq": 3}]},
    {"breaks": {"seq": 1}},
)


@pytest.mark.parametrize("kind", ["update", "activate", "key", "erase", "seal", "no such kind"])
def test_rows_of_no_sense_break_nothing_but_the_chain(
    edited: KnowledgeBase, another_process: KnowledgeBase, encoder: FakeEncoder, kind: str
):
    ask(another_process, encoder, CAPITAL)
    with pytest.raises(DBAPIError, match="change_readable"):
        put_in(edited, payload="[]")
    rows = [json.dumps(payload) for payload in HOSTILE] + list(NO_OBJECTS)
    bogus = [put_in(edited, kind=kind, payload=said, fact_ids="{1,-5,77}", readable=False) for said in rows]
    _use(edited, another_process, encoder, bogus)


def _use(kb: KnowledgeBase, follower: KnowledgeBase, encoder: FakeEncoder, bogus: list[int]) -> None:
    """Everything that reads the log."""
    assert kb.log.changes()[-1].seq == bogus[-1]
    kb.outputs.trace_fact(fact_id(kb, "Cusco"))
    kb.log.diff(0, bogus[-1])
    for base in (kb, follower):
        (found,) = ask(base, encoder, CAPITAL)
        assert found.hits[0].value == "Cusco"
    with pytest.raises(NoFormerKeyset):
        kb.keysets.rollback(**WHO)
    report = kb.upkeep.fsck()
    assert report.chain_breaks == tuple(bogus) and not report.keys_missing_from_index and not report.problems
    lines = list(kb.log.export())
    assert [found.seq for found in check_log(lines, "log").breaks] == bogus
    with pytest.raises(LogRefused):
        list(read_log(lines, "log")[1])
    kb.log.seal(bogus, **WHO)
    assert kb.upkeep.fsck().ok and check_log(list(kb.log.export()), "log").ok


def test_a_row_that_no_reader_could_take_in_is_refused_by_the_database(
    edited: KnowledgeBase, subtests: pytest.Subtests
):
    for other in (
        {"at": "infinity"},
        {"at": "0044-03-15 BC"},
        {"fact_ids": "{1,NULL}"},
        {"fact_ids": "{{1,2},{3,4}}"},
        {"payload": '{"n": 1e5000}'},
        {"payload": '{"a":' * 30 + "1" + "}" * 30},
        {"num_facts": -1},
    ):
        with subtests.test(other=other):
            with pytest.raises(DBAPIError, match="change_readable"):
                put_in(edited, **other)
            assert edited.upkeep.fsck().ok


def test_a_base_with_a_break_is_backed_up_and_restored_and_its_bogus_erasure_is_not_repeated(
    edited: KnowledgeBase, empty: KnowledgeBase, tmp_path: Any
):
    key = signing_key(edited.settings.home)
    before = put_in(edited)
    write_backup(edited, file := tmp_path / "kb.backup", key, key_file=(then := tmp_path / "then.keys"))
    (emma,) = edited.facts.add("Who wrote Emma?", "Jane Austen", **WHO).fact_ids
    Erasure(edited).erase([emma, river := fact_id(edited, "Amazon")], **WHO)
    bogus = put_in(edited, kind="erase", fact_ids="{1}")
    log = tmp_path / "log.jsonl"
    log.write_text("".join(edited.log.export()))
    with pytest.raises(LogRefused):
        restore_backup(empty, file, actor="tester", log_file=log, key_file=then)
    edited.log.seal([before, bogus], **WHO)
    log.write_text("".join(edited.log.export()))
    report = restore_backup(empty, file, actor="tester", log_file=log, key_file=then)
    assert (report.erased_again, report.sealed) == ((river,), (bogus,))
    assert empty.upkeep.fsck().chain_breaks == (before,) and fact_id(empty, "Cusco") == 1
    with pytest.raises(DBAPIError, match="goes on with change"):  # the guard is back in its place
        put_in(empty, seq=999)


def test_the_log_says_of_a_bogus_row_only_what_can_be_shown(edited: KnowledgeBase):
    put_in(edited, payload=json.dumps({"request_id": 3, "principal": {"kind": "key", "name": "root"}}))
    with edited.sessions() as session:
        (shown,) = audit.list_changes(session, edited.log.head_seq() - 1, 1)
    assert shown.request_id is None and shown.actor == "mallory"
