"""The newer log: the exported change log of a base, read for the changes that were made after a backup of it.

Somebody who removed an erasure from a log could bring the fact back. So a log is accepted only if it is complete, and
signed by the key that signed the backup or by one that the operator names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colmlm.kb.backup.write import Backup
from colmlm.kb.errors import LogRefused
from colmlm.kb.facts.records import Mentioned
from colmlm.kb.facts.redaction import as_mentioned
from colmlm.kb.log import signing
from colmlm.kb.log.witness import Entry, Head, read_log
from colmlm.kb.review.review import KIND

DELETING = ("delete", "forget", "reject")


@dataclass(frozen=True, slots=True)
class LaterErasure:
    """A change of the newer log that erased facts, some of which the backup may not have.

    `mentions` says where else it redacted the values; None where an older release wrote the log, without that.
    """

    seq: int
    at: str
    fact_ids: tuple[int, ...]
    mentions: Mentioned | None = None


@dataclass(frozen=True, slots=True)
class LaterLimit:
    """A change of the newer log by which only accepted facts answer: of a corpus, or in a keyset."""

    seq: int
    corpus: str | None = None
    keyset: int | None = None


@dataclass(frozen=True, slots=True)
class NewerLog:
    """The erasures, deletions and limits to accepted facts that a log has after a backup, up to its `head`.

    `deleted` facts are deleted and not erased at the end of the log; those in `abstaining` left tombstones, those in
    `rejected` were rejected. `limits` are those corpora and keysets of which only accepted facts answer at its end.
    `sealed` are breaks of the log that were acknowledged: what these changes say is ignored.
    """

    file: str
    head: Head
    erasures: tuple[LaterErasure, ...] = ()
    deleted: frozenset[int] = frozenset()
    abstaining: frozenset[int] = frozenset()
    rejected: frozenset[int] = frozenset()
    limits: tuple[LaterLimit, ...] = ()
    sealed: tuple[int, ...] = ()


def read_newer_log(file: Path, backup: Backup, keys: Collection[str] = ()) -> NewerLog:
    """Read the log of the base that went on after `backup`, or its head alone where that is the backup's last change.

    Raises `SignatureRefused` where none of `keys` (fingerprints; by default the backup's own) signed it, and
    `LogRefused` unless it is complete and continues from the last change of the backup.
    """
    what = file.name
    with file.open(encoding="utf-8") as lines:
        head, entries = read_log(lines, what)
        signing.require_signer(head.key, keys or (backup.key,), what)
        if head.database != backup.database:
            raise LogRefused(what, 0, f"it is of database {head.database}, the backup of {backup.database}")
        if head.seq < backup.seq:
            raise LogRefused(what, head.seq, f"it ends before the backup, which goes to change {backup.seq}")
        if (head.seq, head.hash) == (backup.seq, backup.hash) and _is_head_alone(file):
            return NewerLog(what, head)
        return _since(entries, head, backup, what)


def _is_head_alone(file: Path) -> bool:
    with file.open(encoding="utf-8") as lines:
        lines.readline()
        return not lines.readline()


def _since(entries: Iterable[Entry], head: Head, backup: Backup, what: str) -> NewerLog:
    erasures: list[LaterErasure] = []
    deleted: dict[int, Entry] = {}
    limits: dict[tuple[Any, Any], LaterLimit] = {}
    sealed: list[int] = []
    for found in entries:
        entry = found.said
        seq, kind, fact_ids = entry["seq"], entry["kind"], entry["fact_ids"]
        if seq == backup.seq and found.hash != backup.hash:
            raise LogRefused(
                what, seq, "it is not the change that the backup ends with: the log is of another life"
            )
        if seq <= backup.seq:
            continue
        if not found.fits:  # a change that breaks the chain is no evidence that anything was erased
            sealed.append(seq)
            continue
        if kind == "erase":
            mentions = as_mentioned(entry["payload"].get("mentions"))
            erasures.append(LaterErasure(seq, entry["at"], tuple(fact_ids), mentions))
        elif kind in DELETING:
            deleted.update(dict.fromkeys(fact_ids, found))
        elif kind == "restore":
            for fact_id in fact_ids:
                deleted.pop(fact_id, None)
        elif kind == KIND:
            _set(limits, seq, entry["payload"])
    gone = {fact_id for erasure in erasures for fact_id in erasure.fact_ids}
    return NewerLog(
        what,
        head,
        tuple(erasures),
        frozenset(deleted) - gone,
        frozenset(fact_id for fact_id, by in deleted.items() if by.said["payload"].get("abstain")) - gone,
        frozenset(fact_id for fact_id, by in deleted.items() if by.said["kind"] == "reject") - gone,
        tuple(limits.values()),
        tuple(sealed),
    )


def _set(limits: dict[tuple[Any, Any], LaterLimit], seq: int, said: Mapping[str, Any]) -> None:
    """Keep a limit that was set, and leave out one that was lifted."""
    corpus, keyset = said.get("corpus"), said.get("keyset")
    limits.pop((corpus, keyset), None)
    if said.get("accepted_only"):
        limits[corpus, keyset] = LaterLimit(seq, corpus, keyset)
