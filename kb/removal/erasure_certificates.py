"""Certificates of erasures: signed evidence that facts were erased, as an in-toto Statement in a DSSE envelope.

A certificate holds ids, counts and hashes, and no text. Its subject is the change that erased, by its hash in the log.
What is counted is what the database holds when the certificate is issued; of files it says nothing.
`kb.removal.certificates` checks certificates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import ErasureNotFound
from colmlm.kb.facts.edits import IS_LIVE, MAX_ID
from colmlm.kb.log import audit, signing
from colmlm.kb.log.audit import (
    CertificateFinding,
    Certified,
    as_text,
    is_of,
    kept_change,
    storable,
    subject_of,
)
from colmlm.kb.log.envelope import close_envelope
from colmlm.kb.store.store import Store
from colmlm.kb.tables import ChangeRow, FactKeyRow, FactRow, FactVersionRow
from colmlm.kb.texts.wording import LIMITS

PREDICATE_TYPE = "urn:colmlm:erasure-certificate:1"
LEVELS = ("something of it is there", "not retrievable")
_LIMITS = (
    "names, addresses and entries of the log stay: the erasure's report lists under `left` those that say a fact",
    *(f"not recognised: {limit}" for limit in LIMITS),
)


def issue_certificate(kb: Store, seq: int) -> str:
    """Signs the certificate of the erasure that is change `seq`, as of now, and gives it as the text of its file.

    Raises `ErasureNotFound`.
    """
    key = signing.signing_key(kb.settings.home)
    with kb.sessions() as session:
        change = session.get(ChangeRow, seq) if 0 < seq <= MAX_ID else None
        if change is None or change.kind != "erase":
            raise ErasureNotFound(seq)
        said = _predicate(session, change)
    subject = subject_of(said["database"], seq)
    return as_text(close_envelope(key, PREDICATE_TYPE, subject, change.hash, said))


def _predicate(session: Session, change: ChangeRow) -> dict[str, Any]:
    found = _checks(session, change.fact_ids)
    return {
        "database": audit.database_id(session),
        "issued_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "erased": {"hash": change.hash, "entry": audit.entry_of(change)},
        "facts": len(set(change.fact_ids)),
        "checks": {"seq": audit.head_seq(session), **found},
        "level": _level(found),
        "limits": [*_LIMITS],
    }


def _checks(session: Session, fact_ids: Collection[int]) -> dict[str, int]:
    """Counts what the database still holds of these facts."""
    ids = list(fact_ids)
    live = select(func.count()).where(FactVersionRow.fact_id == func.any(ids), IS_LIVE)
    unmarked = select(func.count()).where(FactRow.id == func.any(ids), FactRow.erased_seq.is_(None))
    keys = select(func.count()).where(FactKeyRow.fact_id == func.any(ids))
    counts = {"still_live": live, "not_erased": unmarked, "keys": keys}
    return {name: session.scalar(counted) or 0 for name, counted in counts.items()}


def _level(found: Mapping[str, int]) -> int:
    return int(not any(found.values()))


def _holds(said: Mapping[str, Any]) -> dict[str, bool]:
    entry, checks = said["erased"]["entry"], said["checks"]
    counts = {name: int(checks[name]) for name in ("still_live", "not_erased", "keys")}
    return {
        "the subject": said["subject"]
        == {"name": subject_of(said["database"], entry["seq"]), "digest": {"sha256": said["erased"]["hash"]}},
        "the hash of the change entry": audit.entry_hash(entry) == said["erased"]["hash"],
        "the kind of the change": entry["kind"] == "erase",
        "the order of change and check": entry["seq"] <= checks["seq"],
        "the number of facts": said["facts"] == entry["num_facts"] == len(set(entry["fact_ids"])),
        "the level": said["level"] == _level(counts),
    }


def _borne_out(session: Session, said: Mapping[str, Any]) -> Iterator[CertificateFinding]:
    if (foreign := is_of(session, said)) is not None:
        yield foreign
        return
    entry = said["erased"]["entry"]
    yield kept_change(session, entry["seq"], said["erased"]["hash"])
    there = {
        name: number
        for name, number in _checks(session, [storable(fact_id) for fact_id in entry["fact_ids"]]).items()
        if number
    }
    told = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in there.items())
    yield CertificateFinding(
        "state",
        not there,
        f"of its facts there are now: {told}" if there else "its facts are erased, without keys",
    )


def _summary(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "database": said["database"],
        "num_facts": said["facts"],
        "applied_seq": said["erased"]["entry"]["seq"],
        "applied_hash": said["erased"]["hash"],
        "level": said["level"],
        "reached": LEVELS[said["level"]],
        "issued_at": said["issued_at"],
    }


ERASURE = Certified(
    _holds,
    _borne_out,
    _summary,
    proves=(
        "who signed it, and that no byte has changed since",
        "that the signer's change log held the erase entry with this hash, after the entry with the previous hash",
        "what the database held of the facts when it was issued",
    ),
    proves_here=("that this base has the change, and that its facts are erased now and have no keys",),
    does_not_prove=(
        "that nothing remains on disk or in backups: an erasure's report tells its level, and a scan looks",
        "that nobody says the same elsewhere, or that a model has not learnt it",
        *_LIMITS,
    ),
    not_offline=("that the facts were not brought back by the restore of an older backup",),
)
