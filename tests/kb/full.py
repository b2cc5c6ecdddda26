"""A base with something in every table, for what has to hold of all of them."""

from __future__ import annotations

from sqlalchemy import text

from colmlm.kb.evidence.records import NewFeedback, NewOutput, QuotedStretch, Splice
from colmlm.kb.facts.corpora import SyncedFile
from colmlm.kb.removal.holds import Holds, Retention
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CAPITAL, HEIGHT, PERU, RIVER, fact_id, ingest

WHO = {"actor": "tester", "reason": "test"}


def fill(kb: KnowledgeBase, encoder: FakeEncoder) -> None:
    """Puts something in every table."""
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    kb.keysets.rekey(FakeEncoder(salt="2"))
    kb.facts.add("Who wrote Emma?", "Jane Austen", **WHO)
    kb.facts.delete([fact_id(kb, "Amazon")], abstain=True, **WHO)
    kb.facts.edit(fact_id(kb, "Lima"), "Cusco", **WHO)
    lima = fact_id(kb, "Cusco")
    splice = Splice(6, 11, "hit", lima, 2, 0.9, b"\x00\x3c" * 32)
    kb.outputs.record(NewOutput(CAPITAL, "It is Cusco.", "fake", "auto", kb.log.head_seq(), (splice,)))
    (peru,) = kb.documents.find()
    start = PERU.text.index("has 6,768")
    part = Splice(4, 9, "hit", fact_id(kb, "6,768 m"), 1, 0.9, None, 0, 5, start + 4, start + 9)
    quotes = QuotedStretch(peru.document_id, start, start + 9)
    kb.outputs.record(NewOutput(HEIGHT, "has 6,768", "", "read", kb.log.head_seq(), (part,), quotes))
    missed = Splice(0, 0, "no_match", score=0.1)
    output = kb.outputs.record(NewOutput(RIVER, "", "", "read", kb.log.head_seq(), (missed,)))
    kb.outputs.give_feedback(output, NewFeedback("down", "no", "Ucayali"), actor="ann")
    kb.misses.group()
    kb.corpora.follow("lands", ("/srv/lands",))
    kb.corpora.note_seen("lands", ["peru"])
    Retention(kb).set_rule("lands", days=90, action="delete", counts_from="seen", **WHO)
    held = Holds(kb).place(fact_ids=[fact_id(kb, "6,768 m")], **WHO)
    Holds(kb).release(held.hold_id, **WHO)
    kb.corpora.keep_synced("lands", [SyncedFile("peru.txt", "digest", ("peru",))], ())
    with kb.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO api_key (name, key_hash, role, issuer, subject)"
                " VALUES ('ann', '\\x00', 'reader', 'https://login.example.org', 'ann')"
            )
        )
        connection.execute(
            text("INSERT INTO answer_calibration (seq, reader, threshold, report) VALUES (1, 'r', 0.6, '{}')")
        )
        connection.execute(text("INSERT INTO question_set (name, actor) VALUES ('lands', 'ann')"))
        connection.execute(
            text("INSERT INTO question (set_id, text, expected, fact_ids) VALUES (1, 'Who?', '{Ann}', '{1}')")
        )
        connection.execute(
            text(
                "INSERT INTO question_run (set_id, how, threshold, first_seq, seq, num_asked, num_right, num_wrong,"
                " num_abstained, num_skipped, actor, seconds) VALUES (1, 'read', 0.5, 1, 1, 1, 1, 0, 0, 0, 'ann', 1)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO question_outcome (run_id, question_id, question, expected, value, fact_ids, score,"
                " outcome, seq) VALUES (1, 1, 'Who?', '{Ann}', 'Ann', '{1}', 0.9, 'right', 1)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO webhook (url, kinds, format, secret, delivered_seq, state)"
                " VALUES ('https://example.org/', '{}', 'standard', '\\x00', 1, 'paused')"
            )
        )
        connection.execute(text("INSERT INTO suppression VALUES ('\\x01', 1)"))
        connection.execute(text("INSERT INTO corpus_review VALUES ('lands', true, 1)"))
        connection.execute(text("INSERT INTO fact_past (fact_id, version, said_version) VALUES (3, 0, 1)"))
        connection.execute(
            text(
                "INSERT INTO fact_pair (fact_id, other_id, version, other_version, given_seq, other_given_seq,"
                " same_value) VALUES (1, 3, 1, 1, 1, 1, true)"
            )
        )
        connection.execute(text("INSERT INTO erased_text VALUES (1, '\\x01', '\\x02', 1, 1, now(), true)"))
        connection.execute(
            text(
                "INSERT INTO idempotency (api_key_id, key, request_sha256, claim) VALUES (1, 'k', '\\x02', 'c')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO browser_session (secret_hash, api_key_id, expires_at) VALUES ('\\x03', 1, now())"
            )
        )
        connection.execute(text("INSERT INTO provider_logout (jti_hash, expires_at) VALUES ('\\x04', now())"))
        connection.execute(
            text(
                "INSERT INTO erasure_request (state, fact_ids, actor, reason, asked_by)"
                " VALUES ('waiting', '{1}', 'ann', 'test', 1)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO denial (request_id, method, path, status, cause, num_unrecorded)"
                " VALUES ('r', 'GET', '/', 403, 'RightMissing', 0)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO forget_run (state, policy, selector, fact_ids, plan, planned_seq, actor, reason)"
                " VALUES ('planned', 'abstain', '{}', '{1}', '{}', 3, 'ann', 'test')"
            )
        )
