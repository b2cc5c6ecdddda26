"""Certificates: checked without a database, and refused for any byte that is not as it was issued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kb import signing
from kb.certificates import as_text, check, issue
from kb.errors import ForgetRunState
from kb.forgetting import Forgetting
from kb.selectors import Selector
from kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CHILE, PERU, ingest

WHO = {"actor": "tester", "reason": "request 12"}


@pytest.fixture
def issued(kb: KnowledgeBase, encoder: FakeEncoder) -> bytes:
    """The certificate of a run that forgot Peru's capital, as a file has it."""
    ingest(kb, PERU, CHILE)
    kb.rekey(encoder)
    forgetting = Forgetting(kb, encoder)
    plan = forgetting.plan(Selector(text="Lima"), policy="abstain", **WHO)
    forgetting.apply(plan.run_id, **WHO)
    with pytest.raises(ForgetRunState, match="not verified"):
        issue(kb, plan.run_id)
    forgetting.verify(plan.run_id)
    text = issue(kb, plan.run_id)
    assert issue(kb, plan.run_id) == text, "the same evidence is signed once"
    return text.encode()


def resigned(home: Path, issued: bytes, **other: Any) -> bytes:
    """The certificate with parts replaced, signed by whoever holds this home's key."""
    statement = {name: part for name, part in json.loads(issued).items() if name != "signature"}
    return as_text(signing.sign(signing.signing_key(home), {**statement, **other})).encode()


def test_a_certificate_says_what_was_done_and_holds_no_fact_text(kb: KnowledgeBase, issued: bytes):
    found = check(issued)
    assert (
        found.ok
        and found.problems == ()
        and (found.level, found.policy, found.num_facts) == (1, "abstain", 1)
    )
    change = kb.changes()[-1]
    assert (found.applied_seq, found.applied_hash, change.kind) == (change.seq, change.hash, "forget")
    for text in ("Lima", "capital", "Peru"):
        assert text not in issued.decode()
    statement = json.loads(issued)
    assert (
        statement["selector"]["parts"] == ["text"] and statement["applied"]["entry"]["reason"] == "request 12"
    )
    assert statement["after"]["question"]["leak_rate"] == "0.0000"
    assert statement["before"]["question"]["leak_rate"] == "1.0000"


def test_every_flipped_byte_is_seen(issued: bytes):
    for at in range(len(issued)):
        for bit in (1, 32):
            damaged = bytearray(issued)
            damaged[at] ^= bit
            assert not check(bytes(damaged)).ok, (at, damaged[max(0, at - 10) : at + 10])


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":1,"a":1}']
)
def test_what_is_no_certificate_is_refused(damage: bytes):
    found = check(damage)
    assert not found.ok and found.signed_by is None and found.problems


def test_added_and_respelt_bytes_are_refused(issued: bytes):
    for other in (issued + b"\n", issued.rstrip(), b" " + issued, json.dumps(json.loads(issued)).encode()):
        assert not check(other).ok


def test_another_signer_is_seen_only_by_the_fingerprint(kb: KnowledgeBase, issued: bytes, tmp_path: Path):
    mine = check(issued).signed_by
    forged = resigned(tmp_path / "elsewhere", issued)
    assert check(forged).ok and check(forged).signed_by != mine
    assert not check(forged, key=mine).ok and check(issued, key=mine).ok


@pytest.mark.parametrize(
    ("part", "path", "value", "problem"),
    [
        ("level", (), 2, "the level"),
        ("policy", (), "successor", "the policy"),
        ("run", (), 9, "the kind of the change"),
        ("facts", ("forgotten",), 2, "the number of facts"),
        ("facts", ("equivalents_included",), "yes", None),
        ("checks", ("still_live",), 1, "the level"),
        ("checks", ("seq",), 0, "the order"),
        ("after", ("question", "leaks"), 1, "the counts of question after"),
        ("before", ("key", "leak_rate"), "0.0000", "the counts of key before"),
        ("keyset", ("threshold",), "7", "the threshold"),
        ("applied", ("entry", "actor"), "other", "the hash of the change entry"),
        ("applied", ("entry", "prev_hash"), "0" * 64, "the hash of the change entry"),
        ("applied", ("entry",), {}, "not a certificate of the format"),
        ("format", (), "other", "its format"),
    ],
)
def test_a_signed_contradiction_is_named(
    kb: KnowledgeBase, issued: bytes, part: str, path: tuple[str, ...], value: object, problem: str | None
):
    statement = json.loads(issued)
    place, names = statement, (part, *path)
    for name in names[:-1]:
        place = place[name]
    place[names[-1]] = value
    found = check(resigned(kb.settings.home, issued, **{part: statement[part]}))
    if problem is None:
        assert found.ok, "what no other part depends on is the signer's word"
    else:
        assert not found.ok and any(problem in said for said in found.problems)
