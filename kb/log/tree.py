"""The log as a Merkle tree (RFC 6962, section 2.1): short proofs, which are checked without the rest of the log.

A leaf is the hash of a change as the chain has it, in hexadecimal and in ASCII. An inclusion proof shows that a change
is in the log whose root was signed, a consistency proof that one signed log goes on from another. The chain stays what
finds the place of a break; the tree makes it cheap to show one change to somebody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from colmlm.kb.errors import LogRefused, SignatureRefused, refusals
from colmlm.kb.log import audit, signing
from colmlm.kb.tables import ChangeRow

FORMAT = "change-log-proof/1"
_EXPORT = "Get it again from its base, with `colmlm log export`."
EMPTY = hashlib.sha256(b"").digest()


def leaf_of(hash_: str) -> bytes:
    """Give the tree's leaf of a change: a SHA-256 over the change's hash."""
    return hashlib.sha256(b"\x00" + hash_.encode("ascii", "replace")).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Give the root of the tree over these leaves, 32 bytes; `EMPTY` without leaves."""
    if not leaves:
        return EMPTY
    level = list(leaves)
    while len(level) > 1:  # a last node without a neighbour goes up as it is, which gives the tree of the RFC
        paired = [_node(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = [*paired, level[-1]] if len(level) % 2 else paired
    return level[0]


def inclusion_path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """Give the audit path of the leaf at `index`: the hashes that lead from its neighbour up to the root."""
    if len(leaves) <= 1:
        return []
    k = _split(len(leaves))
    if index < k:
        return [*inclusion_path(index, leaves[:k]), root_of(leaves[k:])]
    return [*inclusion_path(index - k, leaves[k:]), root_of(leaves[:k])]


def consistency_path(size: int, leaves: Sequence[bytes]) -> list[bytes]:
    """Give the proof that the tree over the first `size` leaves is the beginning of the tree over all."""
    return _subproof(size, leaves, is_whole=True) if 0 < size < len(leaves) else []


def _subproof(size: int, leaves: Sequence[bytes], *, is_whole: bool) -> list[bytes]:
    if size == len(leaves):
        return [] if is_whole else [root_of(leaves)]
    k = _split(len(leaves))
    if size <= k:
        return [*_subproof(size, leaves[:k], is_whole=is_whole), root_of(leaves[k:])]
    return [*_subproof(size - k, leaves[k:], is_whole=False), root_of(leaves[:k])]


def _split(size: int) -> int:
    """Give the largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def is_included(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Tell whether an inclusion proof shows that the tree with this root has the leaf (RFC 9162, section 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    fn, sn, found = index, size - 1, leaf
    for other in path:
        if sn == 0:
            return False
        if fn % 2 or fn == sn:
            found = _node(other, found)
            while not fn % 2 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            found = _node(found, other)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and found == root


def is_consistent(first: int, second: int, path: Sequence[bytes], first_root: bytes, root: bytes) -> bool:
    """Tell whether a proof shows that the tree of `first` leaves begins that of `second` (RFC 9162, 2.1.4.2)."""
    if first == second:
        return not path and first_root == root
    if not 0 < first < second or not path:
        return first == 0 and not path
    nodes = [first_root, *path] if first & (first - 1) == 0 else list(path)
    fn, sn = first - 1, second - 1
    while fn % 2:
        fn, sn = fn >> 1, sn >> 1
    old = new = nodes[0]
    for node in nodes[1:]:
        if sn == 0:
            return False
        if fn % 2 or fn == sn:
            old, new = _node(node, old), _node(node, new)
            while not fn % 2 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            new = _node(new, node)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and (old, new) == (first_root, root)


# Proofs of a log in a database, and how they are checked without it.


def read_leaves(session: Session) -> list[bytes]:
    """Read the leaves of the log's tree, 32 bytes each, in the order of the changes."""
    joined = func.string_agg(ChangeRow.hash, aggregate_order_by(text("','"), ChangeRow.seq))
    hashes = session.scalar(select(joined))
    return [leaf_of(hash_) for hash_ in hashes.split(",")] if hashes else []


def signed_proof(
    session: Session, key: Ed25519PrivateKey, *, seq: int | None = None, since: int | None = None
) -> dict[str, Any]:
    """Give a signed proof: that change `seq` is in the log, or that the log goes on from its first `since` changes.

    Raises `NoSuchChange`.
    """
    session.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
    head, leaves = audit.head_seq(session), read_leaves(session)
    proof: dict[str, Any] = {
        "format": FORMAT, "database": audit.database_id(session), "size": len(leaves),
        "root": root_of(leaves).hex(), "key": signing.fingerprint(key.public_key().public_bytes_raw()),
    }  # fmt: skip
    if seq is not None:
        change = session.get(ChangeRow, seq) if 0 < seq <= head else None
        if change is None:
            raise refusals.no_such_change(seq, head)
        before = session.scalar(select(func.count()).where(ChangeRow.seq < seq)) or 0
        entry = {**audit.canonical_entry(change), "hash": change.hash}
        proof |= {"index": before, "entry": entry, "path": _path_in_hex(inclusion_path(before, leaves))}
    elif since is not None:
        if not 0 <= since <= len(leaves):
            raise refusals.no_such_change(since, head)
        first = {"since": since, "since_root": root_of(leaves[:since]).hex()}
        proof |= first | {"path": _path_in_hex(consistency_path(since, leaves))}
    return signing.sign_bytes(key, proof)


def _path_in_hex(path: Sequence[bytes]) -> list[str]:
    return [node.hex() for node in path]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofCheck:
    """The result of a valid proof: change `seq` is in a log of `size` changes with this root, or this log goes on from
    its first `since` changes, whose root was `since_root`.
    """

    database: str
    size: int
    root: str
    key: str
    seq: int | None = None
    entry: Mapping[str, Any] | None = None
    since: int | None = None
    since_root: str | None = None


def is_proof(said: str) -> bool:
    """Tell whether a file's text is meant as a proof, valid or not."""
    return FORMAT in said[:10_000]


def size_of_head(said: str, what: str) -> int:
    """Give the number of changes that a signed head, or a proof, covers. Raises `SignatureRefused` for other texts."""
    try:
        signed = json.loads(said.partition("\n")[0])
        signing.verify_signature(signed, what)
        return int(signed["size"] if "size" in signed else signed["seq"])
    except (ValueError, TypeError, LookupError) as error:
        raise SignatureRefused(what, "it is neither a signed head nor a proof", _EXPORT) from error


def check_proof(said: str, what: str) -> ProofCheck:
    """Check a proof without its log. Raises `SignatureRefused` or `LogRefused` if it is not valid."""
    try:
        proof = json.loads(said)
        path = [bytes.fromhex(node) for node in proof["path"]]
        size, root = int(proof["size"]), bytes.fromhex(proof["root"])
        found = {name: proof[name] for name in ("database", "size", "root", "key")}
        if proof["format"] != FORMAT:
            raise ValueError("another format")
    except (ValueError, TypeError, LookupError) as error:
        raise SignatureRefused(what, "it is no proof of a change log", _EXPORT) from error
    if signing.verify_signature(proof, what).fingerprint != found["key"]:
        raise SignatureRefused(what, "it was signed by another key than the one it names")
    if "entry" in proof:
        entry = dict(proof["entry"])
        hash_, seq = str(entry.pop("hash", "")), int(entry["seq"])
        if audit.entry_hash(entry) != hash_:
            raise LogRefused(what, seq, f"it does not have the hash of what it says. {_EXPORT.rstrip('.')}")
        if not is_included(leaf_of(hash_), int(proof["index"]), size, path, root):
            raise LogRefused(what, seq, f"it is not in the log with this root. {_EXPORT.rstrip('.')}")
        return ProofCheck(**found, seq=seq, entry=proof["entry"])
    since, since_root = int(proof["since"]), bytes.fromhex(proof["since_root"])
    if not is_consistent(since, size, path, since_root, root):
        raise LogRefused(what, since, f"the log with this root does not go on from it. {_EXPORT.rstrip('.')}")
    return ProofCheck(**found, since=since, since_root=proof["since_root"])
