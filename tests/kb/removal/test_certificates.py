"""Certificates: held to a signer, to the base, and to every byte as it was issued."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from colmlm.kb.errors import SignatureRefused
from colmlm.kb.log import audit, signing
from colmlm.kb.log.signing import close_envelope, encode_for_signing
from colmlm.kb.removal.certificate import (
    FORGET_TYPE,
    certificate_text,
    check_here,
    check_offline,
    issue_forget_certificate,
    trusted_keys,
)
from colmlm.kb.removal.erase import Erasure
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.records import CertificateCheck
from colmlm.kb.removal.selector import Selector
from colmlm.kb.service import KnowledgeBase
from tests.fakes import FakeEncoder
from tests.kb.corpora import CHILE, PERU, ingest
from tests.places import SIGNED
from tests.refusals import raises_code

WHO = {"actor": "tester", "reason": "request 12"}


@pytest.fixture
def issued(kb: KnowledgeBase, encoder: FakeEncoder) -> bytes:
    """The certificate of a run that forgot Peru's capital, as a file has it."""
    ingest(kb, PERU, CHILE)
    kb.keysets.rekey(encoder)
    forgetting = Forgetting(kb, encoder)
    plan = forgetting.plan(Selector(text="Lima"), policy="abstain", **WHO)
    forgetting.apply(plan.run_id, **WHO)
    with raises_code("ForgetRunState", match="not verified"):
        issue_forget_certificate(kb, plan.run_id)
    forgetting.verify(plan.run_id)
    text = issue_forget_certificate(kb, plan.run_id)
    assert issue_forget_certificate(kb, plan.run_id) == text, "the same evidence is signed once"
    return text.encode()


@pytest.fixture
def home(kb: KnowledgeBase) -> Path:
    return kb.settings.home


def statement_of(issued: bytes) -> dict[str, Any]:
    """What the envelope holds."""
    statement: dict[str, Any] = json.loads(base64.b64decode(json.loads(issued)["payload"]))
    return statement


def resigned(home: Path, issued: bytes, **other: Any) -> bytes:
    """The certificate with parts replaced, signed by whoever holds this home's key."""
    said = {**statement_of(issued)["predicate"], **other}
    (subject,) = statement_of(issued)["subject"]
    key = signing.signing_key(home)
    envelope = close_envelope(key, FORGET_TYPE, subject["name"], subject["digest"]["sha256"], said)
    return certificate_text(envelope).encode()


def offline(home: Path, text: bytes) -> CertificateCheck:
    """The check by who has the public key of this home and nothing else."""
    return check_offline(text, trusted_keys(pem=signing.write_pem(signing.signing_key(home).public_key())))


def failed(found: CertificateCheck) -> list[str]:
    return [check.name for check in found.checks if not check.ok]


def test_a_certificate_says_what_was_done_and_holds_no_fact_text(
    kb: KnowledgeBase, issued: bytes, home: Path
):
    for found in (check_here(kb, issued), offline(home, issued)):
        assert found.ok and found.problems == ()
        assert (found.level, found.policy, found.num_facts) == (1, "abstain", 1)
        change = kb.log.changes()[-1]
        assert (found.applied_seq, found.applied_hash, change.kind) == (change.seq, change.hash, "forget")
    statement = statement_of(issued)
    for text in ("Lima", "capital", "Peru"):
        assert text not in json.dumps(statement)
    said = statement["predicate"]
    assert said["selector"]["parts"] == ["text"] and said["applied"]["entry"]["reason"] == "request 12"
    assert said["after"]["question"]["leak_rate"] == "0.0000"
    assert said["before"]["question"]["leak_rate"] == "1.0000"


def test_the_envelope_is_what_other_tools_read(issued: bytes, home: Path):
    """DSSE around an in-toto Statement, checked with the standard library and `cryptography` alone."""
    envelope, statement = json.loads(issued), statement_of(issued)
    public = signing.signing_key(home).public_key()
    spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    (signature,) = envelope["signatures"]
    assert signature["keyid"] == hashlib.sha256(spki).hexdigest()
    payload = base64.b64decode(envelope["payload"])
    signed = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(payload), payload)
    public.verify(base64.b64decode(signature["sig"]), signed)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    (subject,) = statement["subject"]
    assert subject["digest"]["sha256"] == statement["predicate"]["applied"]["hash"]
    assert encode_for_signing("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"  # the example of DSSE's own specification
    )


def test_every_flipped_byte_is_seen(issued: bytes, home: Path):
    for at in range(len(issued)):
        for bit in (1, 32):
            damaged = bytearray(issued)
            damaged[at] ^= bit
            assert not offline(home, bytes(damaged)).ok, (at, damaged[max(0, at - 10) : at + 10])


def test_what_is_no_certificate_is_refused(kb: KnowledgeBase, subtests: pytest.Subtests):
    for damage in (
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":1,"a":1}',
        b'{"a":' * 500 + b"1" + b"}" * 500,
    ):
        with subtests.test(damage=damage[:20]):
            found = check_here(kb, damage)
            assert not found.ok and found.signed_by is None and found.problems


def test_added_and_respelt_bytes_are_refused(issued: bytes, home: Path):
    for other in (issued + b"\n", issued.rstrip(), b" " + issued, json.dumps(json.loads(issued)).encode()):
        assert not offline(home, other).ok


def test_another_signer_is_refused_unless_it_is_named(
    kb: KnowledgeBase, issued: bytes, home: Path, tmp_path: Path
):
    elsewhere = tmp_path / "elsewhere"
    forged = resigned(elsewhere, issued)
    stranger = signing.key_names(signing.signing_key(elsewhere).public_key())
    assert failed(check_here(kb, forged)) == ["signer"] and failed(offline(home, forged)) == ["signer"]
    assert check_here(kb, forged).signed_by == stranger.keyid
    for name in (stranger.keyid, stranger.fingerprint):
        assert check_here(kb, forged, trusted_keys([name])).ok
        assert failed(check_here(kb, issued, trusted_keys([name]))) == ["signer"]
    with raises_code("SignerNeeded"):
        check_offline(issued, trusted_keys())
    with pytest.raises(SignatureRefused):
        trusted_keys(pem="no key")
    (home / signing.KEY_FILE).unlink()  # a base that has signed nothing has signed no certificate
    assert failed(check_here(kb, issued)) == ["signer"] and not (home / signing.KEY_FILE).exists()


def test_a_key_put_beside_its_certificate_does_not_make_it_the_signer(
    issued: bytes, home: Path, tmp_path: Path
):
    """The key that is named within must be the one that signed, under its own id."""
    stranger = signing.signing_key(tmp_path / "elsewhere")
    forged = json.loads(resigned(tmp_path / "elsewhere", issued))
    forged["signatures"][0]["keyid"] = json.loads(issued)["signatures"][0]["keyid"]
    assert failed(offline(home, certificate_text(forged).encode())) == ["signature"]
    within = {"public_key": signing.write_pem(signing.signing_key(home).public_key())}
    statement = statement_of(issued)
    statement["predicate"]["signer"] = within
    payload = json.dumps(statement).encode()
    sig = stranger.sign(encode_for_signing("application/vnd.in-toto+json", payload))
    forged = {**json.loads(issued), "payload": base64.b64encode(payload).decode()}
    forged["signatures"][0]["sig"] = base64.b64encode(sig).decode()
    assert failed(offline(home, certificate_text(forged).encode())) == ["signature"]


def test_the_base_is_asked_what_became_of_the_run(kb: KnowledgeBase, encoder: FakeEncoder, issued: bytes):
    forgetting = Forgetting(kb, encoder)
    (lima,) = forgetting.run(1)[1].fact_ids
    kb.facts.restore([lima], **WHO)
    assert failed(check_here(kb, issued)) == ["state"]
    kb.facts.delete([lima], **WHO)
    assert check_here(kb, issued).ok
    Erasure(kb).erase([lima], **WHO)
    assert check_here(kb, issued).ok, "what was forgotten and then erased is still forgotten"


def test_a_restored_run_has_no_certificate_any_more(
    kb: KnowledgeBase, encoder: FakeEncoder, issued: bytes, home: Path
):
    Forgetting(kb, encoder).restore(1, **WHO)
    found = check_here(kb, issued)
    assert failed(found) == ["state"] and "restored" in found.problems[0]
    assert offline(home, issued).ok, "who has no base cannot know"
    assert any("restored" in said for said in offline(home, issued).does_not_prove)


def test_what_the_base_does_not_have_is_refused(
    kb: KnowledgeBase, issued: bytes, home: Path, subtests: pytest.Subtests
):
    """Though this base's own key signed it."""
    for part, path, value, name in (
        ("database", (), "another", "run"),
        ("selector", ("digest",), "0" * 64, "run"),
        ("planned", ("hash",), "0" * 64, "change"),
    ):
        with subtests.test(part=part, path=path, value=value, name=name):
            said = {**statement_of(issued)["predicate"]}
            said[part] = {**said[part], path[0]: value} if path else value
            assert name in failed(check_here(kb, resigned(home, issued, **{part: said[part]})))


def test_a_certificate_of_another_life_of_the_base_is_refused(kb: KnowledgeBase, issued: bytes, home: Path):
    """Of a base that was restored from a backup and went on otherwise."""
    entry = {**statement_of(issued)["predicate"]["applied"]["entry"], "reason": "another"}
    key, hash_ = signing.signing_key(home), audit.entry_hash(entry)
    said = {**statement_of(issued)["predicate"], "applied": {"entry": entry, "hash": hash_}}
    name = statement_of(issued)["subject"][0]["name"]
    forged = certificate_text(close_envelope(key, FORGET_TYPE, name, hash_, said)).encode()
    assert offline(home, forged).ok and failed(check_here(kb, forged)) == ["change"]


def test_hostile_numbers_are_no_fault_of_the_program(kb: KnowledgeBase, issued: bytes, tmp_path: Path):
    said = statement_of(issued)["predicate"]
    for value in ("1", -1, 2**70, None, 1.5, True, [], {}):
        entry = {**said["applied"]["entry"], "fact_ids": [value], "seq": value}
        for other in ({"run": value}, {"planned": {"seq": value, "hash": ""}}, {"level": value}, {"after": value},
                      {"applied": {"hash": "", "entry": entry}}, {"facts": value}, {"database": value}):  # fmt: skip
            assert not check_here(kb, resigned(tmp_path / "elsewhere", issued, **other)).ok


def test_the_form_before_is_still_accepted():
    """A certificate that the release before issued, to the byte."""
    text = (SIGNED / "certificate-1.json").read_bytes()
    key = signing.fingerprint(base64.b64decode(json.loads(text)["signature"]["public_key"]))
    found = check_offline(text, trusted_keys([key]))
    assert found.ok and (found.run_id, found.num_facts, found.level) == (1, 1, 1)
    assert check_offline(text, trusted_keys([found.signed_by or ""])).ok
    assert not check_offline(text, trusted_keys(["0" * 16])).ok
    assert not check_offline(text.replace(b'"run": 1', b'"run": 2'), trusted_keys([key])).ok


def test_a_signed_contradiction_is_named(issued: bytes, home: Path, subtests: pytest.Subtests):
    for part, path, value, problem in (
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
        ("applied", ("entry",), {}, "not a certificate that"),
    ):
        with subtests.test(part=part, path=path, value=value, problem=problem):
            said = statement_of(issued)["predicate"]
            place, names = said, (part, *path)
            for name in names[:-1]:
                place = place[name]
            place[names[-1]] = value
            found = offline(home, resigned(home, issued, **{part: said[part]}))
            if problem is None:
                assert found.ok, "what no other part depends on is the signer's word"
            else:
                assert failed(found) == ["contents"] and problem in found.problems[0]
