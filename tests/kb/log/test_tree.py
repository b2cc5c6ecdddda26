"""Proofs of the log are those of RFC 6962, as a second implementation, word by word from its text, finds them."""

from __future__ import annotations

import hashlib
import json
import random

import pytest

from colmlm.kb.errors import LogRefused, SignatureRefused
from colmlm.kb.log import tree
from colmlm.kb.service import KnowledgeBase
from tests.refusals import raises_code


def mth(data: list[bytes]) -> bytes:
    """The Merkle Tree Hash as section 2.1 of RFC 6962 defines it, word by word."""
    if not data:
        return hashlib.sha256().digest()
    if len(data) == 1:
        return hashlib.sha256(b"\x00" + data[0]).digest()
    k = 1
    while 2 * k < len(data):
        k *= 2
    return hashlib.sha256(b"\x01" + mth(data[:k]) + mth(data[k:])).digest()


def path(m: int, data: list[bytes]) -> list[bytes]:
    """PATH(m, D[n]) of section 2.1.1."""
    if len(data) == 1:
        return []
    k = 1
    while 2 * k < len(data):
        k *= 2
    return [*path(m, data[:k]), mth(data[k:])] if m < k else [*path(m - k, data[k:]), mth(data[:k])]


def subproof(m: int, data: list[bytes], b: bool) -> list[bytes]:
    """SUBPROOF(m, D[n], b) of section 2.1.2."""
    if m == len(data):
        return [] if b else [mth(data)]
    k = 1
    while 2 * k < len(data):
        k *= 2
    if m <= k:
        return [*subproof(m, data[:k], b), mth(data[k:])]
    return [*subproof(m - k, data[k:], False), mth(data[:k])]


HASHES = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(70)]


@pytest.mark.parametrize("size", [*range(1, 18), 31, 32, 33, 64, 70])
def test_roots_and_proofs_are_those_of_the_standard(size: int) -> None:
    data, leaves = [h.encode() for h in HASHES[:size]], [tree.leaf_of(h) for h in HASHES[:size]]
    root = mth(data)
    assert tree.root_of(leaves) == root
    for m in range(size):
        proof = tree.inclusion_path(m, leaves)
        assert proof == path(m, data) and tree.is_included(leaves[m], m, size, proof, root)
        for other in range(size):
            assert tree.is_included(leaves[m], other, size, proof, root) == (other == m)
    for m in range(1, size):
        proof, first = tree.consistency_path(m, leaves), mth(data[:m])
        assert proof == subproof(m, data, True) and tree.is_consistent(m, size, proof, first, root)
        assert not tree.is_consistent(m, size, proof, mth(data[: m - 1]), root)
        assert not tree.is_consistent(m, size, proof[:-1], first, root)


def test_an_altered_proof_proves_nothing() -> None:
    rng, leaves = random.Random(7), [tree.leaf_of(h) for h in HASHES]
    root = tree.root_of(leaves)
    for _ in range(200):
        m = rng.randrange(len(leaves))
        proof = tree.inclusion_path(m, leaves)
        altered = list(proof)
        n = rng.randrange(len(altered))
        altered[n] = bytes([altered[n][0] ^ 1, *altered[n][1:]])
        assert not tree.is_included(leaves[m], m, len(leaves), altered, root)
        assert not tree.is_included(leaves[m], m, len(leaves), proof[:-1], root)
    assert tree.root_of([]) == mth([]) and tree.is_consistent(0, 70, [], mth([]), root)


def test_a_change_is_proved_to_be_in_the_log_and_a_log_to_go_on(kb: KnowledgeBase) -> None:
    for number in range(5):
        kb.facts.add(f"Which is number {number}?", str(number), actor="tester", reason="a test")
    proof = json.dumps(kb.log.proof(seq=3))
    found = tree.check_proof(proof, "proof")
    assert (found.seq, found.size) == (3, 5) and found.entry is not None and found.entry["kind"] == "insert"
    hashes = [kb.log.find_change_hash(seq) or "" for seq in range(1, 6)]
    assert found.root == mth([h.encode() for h in hashes]).hex()
    kb.facts.add("Which is number 5?", "5", actor="tester", reason="a test")
    goes_on = tree.check_proof(json.dumps(kb.log.proof(since=5)), "proof")
    assert (goes_on.since, goes_on.since_root, goes_on.size) == (5, found.root, 6)
    assert kb.log.head()["root"] == goes_on.root
    with raises_code("NoSuchChange"):
        kb.log.proof(seq=7)
    with raises_code("NoSuchChange"):
        kb.log.proof(since=7)


@pytest.mark.parametrize("part", ["entry", "path", "root", "size", "index", "key", "database"])
def test_a_proof_that_somebody_altered_is_refused(kb: KnowledgeBase, part: str) -> None:
    for number in range(4):
        kb.facts.add(f"Which is number {number}?", str(number), actor="tester", reason="a test")
    proof = kb.log.proof(seq=2)
    other = kb.log.proof(seq=3)
    proof[part] = {"root": "00" * 32, "size": 9, "key": "x", "database": "x", "index": 0}.get(
        part, other.get(part)
    )
    with pytest.raises((LogRefused, SignatureRefused)):
        tree.check_proof(json.dumps(proof), "proof")
    for said in ("", "{}", "[]", '{"path": 3}', '{"path": ["zz"]}'):
        with pytest.raises(SignatureRefused):
            tree.check_proof(said, "proof")
