"""Certificates of erasures: verified by a stock verifier of DSSE, by ours, and held to the base."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from colmlm.kb.log import signing
from colmlm.kb.log.signing import close_envelope
from colmlm.kb.removal.certificate import (
    ERASURE_TYPE,
    certificate_text,
    check_here,
    check_offline,
    issue_certificate,
    trusted_keys,
)
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.records import CertificateCheck
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.texts.wording import LIMITS
from tests.fakes import FakeEncoder
from tests.kb.corpora import PERU, fact_id, ingest
from tests.places import ROOT
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "request 12"}


@pytest.fixture
def seq(kb: KnowledgeBase, encoder: FakeEncoder) -> int:
    """The change that erased Peru's capital."""
    ingest(kb, PERU)
    kb.keysets.rekey(encoder)
    erased = Erasure(kb).erase([fact_id(kb, "Lima")], **WHO).erased
    assert erased is not None and erased.seq is not None
    return erased.seq


def statement_of(issued: str) -> dict[str, Any]:
    statement: dict[str, Any] = json.loads(base64.b64decode(json.loads(issued)["payload"]))
    return statement


def failed(found: CertificateCheck) -> list[str]:
    return [check.name for check in found.checks if not check.ok]


def test_a_stock_verifier_of_dsse_verifies_it(kb: KnowledgeBase, seq: int) -> None:
    issued = issue_certificate(kb, seq)
    envelope = Envelope.from_dict(json.loads(issued))
    (keyid,) = envelope.signatures
    public = load_pem_public_key(kb.log.public_key().encode())
    key = SSlibKey.from_crypto(public, keyid)
    assert set(envelope.verify([key], 1)) == {keyid}
    envelope.payload += b" "
    with pytest.raises(VerificationError):
        envelope.verify([key], 1)


def test_it_states_what_was_erased_and_holds_no_text(kb: KnowledgeBase, seq: int) -> None:
    issued = issue_certificate(kb, seq)
    statement, change = statement_of(issued), kb.log.change(seq)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == ERASURE_TYPE
    (subject,) = statement["subject"]
    assert subject["name"].endswith(f":change:{seq}") and subject["digest"] == {"sha256": change.hash}
    assert statement["predicate"]["checks"] == {"seq": seq, "still_live": 0, "not_erased": 0, "keys": 0}
    assert "Lima" not in json.dumps(statement) and "capital" not in json.dumps(statement)


def test_it_names_what_an_erasure_does_not_recognise(kb: KnowledgeBase, seq: int) -> None:
    issued = issue_certificate(kb, seq)
    limits = statement_of(issued)["predicate"]["limits"]
    assert all(any(limit in said for said in limits) for limit in LIMITS)
    assert any("`left`" in said for said in limits)
    assert set(limits) <= set(check_here(kb, issued.encode()).does_not_prove)


def test_the_docs_name_the_same_limits() -> None:
    page = (ROOT / "docs" / "explanation" / "deletion.md").read_text()
    assert all(f"- {limit}" in page for limit in LIMITS)


def test_a_certificate_of_an_earlier_release_names_no_limits_and_still_holds(
    kb: KnowledgeBase, seq: int
) -> None:
    statement = statement_of(issue_certificate(kb, seq))
    predicate = {name: value for name, value in statement["predicate"].items() if name != "limits"}
    (subject,) = statement["subject"]
    key = signing.signing_key(kb.settings.home)
    earlier = close_envelope(key, ERASURE_TYPE, subject["name"], subject["digest"]["sha256"], predicate)
    assert check_here(kb, certificate_text(earlier).encode()).ok


def test_it_is_checked_here_and_by_who_has_the_public_key(kb: KnowledgeBase, seq: int) -> None:
    issued = issue_certificate(kb, seq).encode()
    for found in (check_here(kb, issued), check_offline(issued, trusted_keys(pem=kb.log.public_key()))):
        assert found.ok and (found.applied_seq, found.level, found.reached) == (seq, 1, "not retrievable")
        assert (found.run_id, found.num_facts) == (None, 1)
    assert check_here(kb, issued).proves != check_offline(issued, trusted_keys(["x"])).proves
    assert failed(check_offline(issued, trusted_keys(["another"]))) == ["signer"]


def test_a_check_proves_only_what_follows_from_the_parts_that_hold(kb: KnowledgeBase, seq: int) -> None:
    issued = issue_certificate(kb, seq).encode()
    signed, logged, held, kept, erased = check_here(kb, issued).proves
    assert "that this base has the change" in kept and "erased now" in erased
    assert check_offline(issued, trusted_keys([kb.log.head()["key"]])).proves == (signed, logged, held)
    assert check_here(kb, issued, ["another"]).proves == (signed, kept, erased)
    assert check_here(kb, issued.replace(b'"payload": "', b'"payload": "A')).proves == ()


def test_a_signed_contradiction_is_named(kb: KnowledgeBase, seq: int, subtests: pytest.Subtests) -> None:
    for other, fault in (
        ({"facts": 2}, "the number of facts"),
        ({"level": 0}, "the level"),
        ({"checks": {"seq": 0, "still_live": 0, "not_erased": 0, "keys": 0}}, "the order"),
        ({"checks": {"seq": 99, "still_live": 1, "not_erased": 0, "keys": 0}}, "the level"),
        ({"erased": {"hash": "0" * 64, "entry": {}}}, "no certificate"),
        ({"facts": [1]}, "the number of facts"),
    ):
        with subtests.test(other=other, fault=fault):
            statement = statement_of(issue_certificate(kb, seq))
            (subject,) = statement["subject"]
            said = {**statement["predicate"], **other}
            key = signing.signing_key(kb.settings.home)
            forged = close_envelope(key, ERASURE_TYPE, subject["name"], subject["digest"]["sha256"], said)
            found = check_offline(certificate_text(forged).encode(), trusted_keys(pem=kb.log.public_key()))
            assert not found.ok and "contents" in failed(found)
            assert fault in " ".join(found.problems) or "not a certificate" in " ".join(found.problems)


def test_what_is_no_erasure_has_none(kb: KnowledgeBase, seq: int) -> None:
    for other in (1, 0, -1, seq + 1, 2**70):
        with raises_code("ErasureNotFound"):
            issue_certificate(kb, other)


def test_a_base_that_lacks_the_change_does_not_bear_it_out(kb: KnowledgeBase, seq: int) -> None:
    statement = statement_of(issue_certificate(kb, seq))
    said = statement["predicate"] | {"database": "another"}
    key = signing.signing_key(kb.settings.home)
    (subject,) = statement["subject"]
    name = subject["name"].replace(statement["predicate"]["database"], "another")
    forged = close_envelope(key, ERASURE_TYPE, name, subject["digest"]["sha256"], said)
    found = check_here(kb, certificate_text(forged).encode())
    assert failed(found) == ["run"] and not any("this base" in proof for proof in found.proves)
