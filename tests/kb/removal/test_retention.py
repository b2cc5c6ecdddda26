"""Rules by which the documents of a corpus go after some days, by a clock that the tests set."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL, text

from colmlm.kb.backup.restore import restore_backup
from colmlm.kb.backup.write import write_backup
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.evidence.records import NewOutput, QuotedStretch
from colmlm.kb.facts.redaction import MARK
from colmlm.kb.jobs.worker import Worker
from colmlm.kb.log.signing import signing_key
from colmlm.kb.log.witness import export_log
from colmlm.kb.removal.certificate import check_here, issue_certificate
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.holds import AT_ONCE, Holds, Retention
from colmlm.kb.removal.records import RetentionTerms
from colmlm.kb.service import KnowledgeBase
from tests import servers
from tests.kb.corpora import PERU, document, fact_id, ingest, numbered
from tests.refusals import raises_code

WHO = {"actor": "ann", "reason": "policy 7"}
MANY = 1_000
FIRST, NOW = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 5, 1, tzinfo=UTC)


def terms(days: int = 90, action: str = "delete", counts_from: str = "seen") -> RetentionTerms:
    return {"days": days, "action": action, "counts_from": counts_from}  # type: ignore[typeddict-item]


def dated(external_id: str, revision: str | None) -> AnnotatedDocument:
    made = document(
        external_id, f"Text {external_id} says ", (f"value {external_id}", f"Question {external_id}?"), "."
    )
    return replace(made, revision=revision)


def soon(kb: KnowledgeBase, days: float) -> datetime:
    """Gives a time so many days after the database's."""
    with kb.engine.connect() as connection:
        now: datetime = connection.scalar(text("SELECT now()"))
    return now + timedelta(days=days)


@pytest.mark.parametrize("action", ["delete", "erase"])
def test_a_thousand_documents_go_by_their_dates_and_held_ones_stay(kb: KnowledgeBase, action: str) -> None:
    ingest(kb, *(dated(f"d{n}", f"{FIRST + timedelta(hours=n):%Y-%m-%d}") for n in range(MANY)))
    rule = Retention(kb).set_rule("lands", **terms(100, action, "date"), **WHO)
    due = [n for n in range(MANY) if FIRST + timedelta(days=n // 24 + 100) <= NOW]
    ids = {one.external_id: one.document_id for one in kb.documents.find(limit=MANY)}
    kept = [f"d{n}" for n in due[::100]]
    hold = Holds(kb).place(document_ids=[ids[name] for name in kept[:5]], **WHO)
    other = Holds(kb).place(fact_ids=[fact_id(kb, f"value {name}") for name in kept[5:]], **WHO)

    plan = Retention(kb).plan("lands", now=NOW)
    assert (plan.num_due, plan.num_held) == (len(due) - len(kept), len(kept)) and len(kept) > 5
    assert plan.rule == rule and plan.documents[0].external_id == "d0"
    assert plan.documents[0].hold_ids == (hold.hold_id,)
    assert plan.next_at is not None and timedelta(0) < plan.next_at - NOW <= timedelta(days=1)
    assert len(kb.documents.find(limit=2 * MANY)) == MANY, "a plan changes nothing"

    done = Retention(kb).carry_out(now=NOW)

    assert len(done) == -(-len(due) // AT_ONCE)
    left = {one.external_id for one in kb.documents.find(limit=2 * MANY)}
    assert left == {f"d{n}" for n in range(MANY) if n not in due} | set(kept)
    with kb.engine.connect() as connection:
        payload = connection.scalar(text("SELECT payload FROM change WHERE seq = :s"), {"s": done[0].seq})
        erased = connection.scalar(text("SELECT count(*) FROM document WHERE erased_seq IS NOT NULL"))
    (change,) = kb.log.changes(after=done[0].seq - 1, limit=1)
    assert change.kind == action and change.reason.startswith(
        f"retention rule of change {rule.seq}: {action} 100"
    )
    assert payload["rule"] == rule.seq and set(payload["held"]["holds"]) <= {hold.hold_id, other.hold_id}
    assert erased == (len(due) - len(kept) if action == "erase" else 0)
    assert Retention(kb).carry_out(now=NOW) == [] and kb.upkeep.fsck().ok and kb.log.verify().ok

    for one in (hold, other):
        Holds(kb).release(one.hold_id, **WHO)
    (last,) = Retention(kb).carry_out(now=NOW)
    assert len(last.fact_ids) == len(kept)
    if action == "delete":
        kb.facts.undo(last.seq, **WHO)
        assert set(kept) <= {one.external_id for one in kb.documents.find(limit=2 * MANY)}
    else:
        checked = check_here(kb, issue_certificate(kb, done[0].seq).encode())
        assert checked.ok and checked.held_part is not None and checked.held_part.documents


def test_a_document_that_is_found_again_counts_from_then(kb: KnowledgeBase) -> None:
    ingest(kb, *numbered(3))
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE document SET ingested_at = now() - interval '80 days'"))
    ingest(kb, numbered(3)[0])
    kb.corpora.note_seen("lands", ["d1", "not there"])
    Retention(kb).set_rule("lands", **terms(90), **WHO)
    plan = Retention(kb).plan("lands", now=soon(kb, 11))
    assert [one.external_id for one in plan.documents] == ["d2"] and plan.num_due == 1
    assert plan.next_at is not None and soon(kb, 89) < plan.next_at < soon(kb, 91)
    assert Retention(kb).plan("lands").num_due == 0


@pytest.mark.parametrize(
    "revision", [None, "7", "2026-02-31", "0000-01-01", "2026-13-01", "20260101", "of 2026-01-01"]
)
def test_a_document_without_a_date_counts_from_when_it_was_seen(
    kb: KnowledgeBase, revision: str | None
) -> None:
    ingest(kb, dated("one", revision), dated("two", "2026-01-01T10:00:00Z"))
    Retention(kb).set_rule("lands", **terms(1, "delete", "date"), **WHO)
    days = {one.external_id: one.due_at for one in Retention(kb).plan("lands", now=soon(kb, 400)).documents}
    assert days["two"] == datetime(2026, 1, 2, tzinfo=UTC) and soon(kb, 0.9) < days["one"] < soon(kb, 1.1)


def test_an_erasing_rule_destroys_the_whole_text_and_what_quotes_it(kb: KnowledgeBase) -> None:
    ingest(kb, replace(PERU, title="On Peru", uri="https://example.org/peru", revision="2026-01-01"))
    (peru,) = kb.documents.find()
    start = PERU.text.index("lies in")
    quoted = QuotedStretch(peru.document_id, start, start + 7)
    output = kb.outputs.record(NewOutput("Where?", "lies in", "", "read", kb.log.head_seq(), (), quoted))
    ingest(kb, document("peru", "Peru again has ", ("Lima", "Which one?"), "."))
    kb.corpora.remove("lands", ["peru"], **WHO)
    Retention(kb).set_rule("lands", **terms(1, "erase"), **WHO)
    (edit,) = Retention(kb).carry_out(now=soon(kb, 2))
    assert edit.kind == "erase"
    with kb.engine.connect() as connection:
        rows = connection.execute(text("SELECT text, title, uri, revision, erased_seq FROM document")).all()
    for row in rows:
        assert set(row.text) == {MARK} and row.erased_seq == edit.seq
    assert rows[0].title == MARK * 7 and rows[0].revision == MARK * 10
    assert kb.outputs.trace(output).output == MARK * 7
    assert kb.upkeep.fsck().ok and Retention(kb).carry_out(now=soon(kb, 3)) == []
    assert Retention(kb).due(peru.document_id) is None


def test_a_rule_is_set_replaced_and_ended_with_entries_of_the_log(kb: KnowledgeBase) -> None:
    ingest(kb, PERU)
    retention = Retention(kb)
    with raises_code("RetentionRuleNotFound"):
        retention.end_rule("lands", **WHO)
    assert retention.plan("lands").rule is None
    first = retention.set_rule("lands", **terms(90), **WHO)
    second = retention.set_rule("lands", **terms(30, "erase", "date"), **WHO)
    assert retention.rules() == [second] and (second.days, second.action, second.counts_from) == (
        30,
        "erase",
        "date",
    )
    assert retention.end_rule("lands", actor="bob", reason="no more") == second and retention.rules() == []
    changes = kb.log.changes(after=first.seq - 1)
    assert [(one.kind, one.actor, one.reason) for one in changes] == [
        ("retain", "ann", "policy 7"), ("retain", "ann", "policy 7"), ("retain", "bob", "no more"),
    ]  # fmt: skip
    for wrong in ({"days": 0}, {"days": 40_000}, {"action": "hide"}, {"counts_from": "birth"}):
        with raises_code("InvalidValue"):
            retention.set_rule("lands", **{**terms(), **wrong}, **WHO)  # type: ignore[typeddict-item]
    with raises_code("CorpusNotFound"):
        retention.set_rule("nowhere", **terms(), **WHO)
    kb.settings = replace(kb.settings, erase_needs_two=True)
    with raises_code("SecondPersonNeeded"):
        retention.set_rule("lands", **terms(30, "erase"), **WHO)
    assert retention.plan("lands", terms=terms(5), now=soon(kb, 6)).num_due == 1 and retention.rules() == []


def test_a_worker_carries_rules_out(kb: KnowledgeBase) -> None:
    ingest(kb, *numbered(3))
    Retention(kb).set_rule("lands", **terms(10), **WHO)
    with kb.engine.begin() as connection:
        connection.execute(text("UPDATE document SET ingested_at = now() - interval '11 days' WHERE id < 3"))
    Worker(kb, {}).run(once=True)
    assert [one.external_id for one in kb.documents.find()] == ["d2"]


def test_a_restore_keeps_rules_and_holds_and_repeats_what_became_of_them_since(
    kb: KnowledgeBase, server: URL, tmp_path: Path
) -> None:
    ingest(kb, PERU, *numbered(2))
    holds, retention = Holds(kb), Retention(kb)
    stays = holds.place(fact_ids=[fact_id(kb, "value 0")], **WHO)
    ends = holds.place(corpora=["lands"], **WHO)
    retention.set_rule("lands", **terms(90), **WHO)
    backup = tmp_path / "backup.zip"
    write_backup(kb, backup, signing_key(kb.settings.home))
    holds.release(ends.hold_id, **WHO)
    lima = fact_id(kb, "Lima")
    Erasure(kb).erase([lima], **WHO)
    new = holds.place(fact_ids=[fact_id(kb, "value 1")], actor="bob", reason="case 13")
    retention.set_rule("lands", **terms(30, "erase", "date"), **WHO)
    log = tmp_path / "log.jsonl"
    with kb.sessions() as session:
        log.write_text("".join(export_log(session, signing_key(kb.settings.home))))
    for newer in (None, log):
        with (
            servers.clone(server, servers.TEMPLATE) as url,
            KnowledgeBase.open(replace(kb.settings, database_url=url)) as restored,
        ):
            restore_backup(
                restored, backup, actor="ann", log_file=newer, without_later_erasures=newer is None
            )
            standing = [(one.hold_id, one.reason) for one in Holds(restored).all(standing=True)]
            (rule,) = Retention(restored).rules()
            if newer is None:
                assert standing == [(stays.hold_id, "policy 7"), (ends.hold_id, "policy 7")]
                assert (rule.days, rule.action) == (90, "delete")
            else:
                assert standing == [(stays.hold_id, "policy 7"), (new.hold_id, "case 13")]
                assert (rule.days, rule.action, rule.counts_from) == (30, "erase", "date")
                assert restored.facts.show(lima).erased_seq is not None
            with raises_code("HoldStands"):
                Erasure(restored).erase([fact_id(restored, "value 0")], **WHO)
            assert Holds(restored).place(corpora=["lands"], **WHO).hold_id > new.hold_id - (newer is None)
            assert restored.log.verify().ok
