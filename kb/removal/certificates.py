"""Certificates: signed evidence of a forget run, as an in-toto Statement in an envelope that other tools can check.

A certificate holds ids, counts and keyed digests, and no text of a fact, so that it may outlive an erasure. (The
reason and the actor are in it as they are in the change log.) Its subject is the change that forgot the facts. Rates
are derived from counts, and fractions are written as strings. `kb.removal.certificates` checks certificates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import ForgetRunState
from colmlm.kb.log import audit, signing
from colmlm.kb.log.audit import (
    as_text,
    subject_of,
)
from colmlm.kb.log.envelope import close_envelope
from colmlm.kb.log.witness import hash_at
from colmlm.kb.removal.forget import get_run, plan_of
from colmlm.kb.removal.records import Rates, Verification
from colmlm.kb.tables import ChangeRow, FactRow, ForgetRunRow

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store


PREDICATE_TYPE = "urn:colmlm:forget-certificate:2"


def issue_forget_certificate(kb: Store, run_id: int) -> str:
    """Signs the certificate of a verified run, once for each verification, and gives it as the text of its file."""
    key = signing.signing_key(kb.settings.home)
    with kb.sessions.begin() as session:
        run = get_run(session, run_id, "applied", "erased", lock=True)
        if run.verification is None:
            raise ForgetRunState(run_id, f"{run.state} and not verified", "verified")
        if run.certificate is None:
            run.certificate = _close(session, key, run)
        return as_text(run.certificate)


def _close(session: Session, key: Ed25519PrivateKey, run: ForgetRunRow) -> dict[str, Any]:
    said = _predicate(session, run)
    applied = said["applied"]
    subject = subject_of(said["database"], applied["entry"]["seq"])
    return close_envelope(key, PREDICATE_TYPE, subject, applied["hash"], said)


def _predicate(session: Session, run: ForgetRunRow) -> dict[str, Any]:
    assert run.verification is not None and run.applied_seq is not None
    plan, found = plan_of(run), Verification.from_json(run.verification)
    applied = session.get_one(ChangeRow, run.applied_seq)
    return {
        "database": audit.database_id(session),
        "issued_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": run.id,
        "policy": run.policy,
        "selector": {"parts": sorted(run.selector), "digest": plan.selector_digest},
        "facts": {
            "forgotten": len(plan.fact_ids),
            "selected": plan.selected,
            "equivalents": len(plan.equivalents),
            "equivalents_included": plan.included,
            "conflicting": len(plan.conflicting),
            **_without_offsets(session, plan.fact_ids),
        },
        "keyset": {
            "id": found.keyset_id,
            "checkpoint": found.checkpoint_id,
            "threshold": repr(found.threshold),
        },
        "before": _checks(plan.before),
        "after": _checks(found.probes),
        "checks": {
            "at": found.at,
            "seq": found.seq,
            "leaked": len(found.leaked),
            "still_live": found.still_live,
            "tombstones": found.tombstones,
            "keys_in_index": found.keys_in_index,
        },
        **_survivors(found),
        "level": found.level,
        "planned": {"seq": run.planned_seq, "hash": hash_at(session, run.planned_seq)},
        "applied": {"hash": applied.hash, "entry": audit.entry_of(applied)},
    }


def _without_offsets(session: Session, fact_ids: Sequence[int]) -> dict[str, int]:
    """Counts the facts that came with a release, of which only sample and number are known; nothing where none did."""
    of_release = FactRow.document_id.is_not(None), FactRow.span_start.is_(None)
    counted = select(func.count()).where(FactRow.id == func.any(list(fact_ids)), *of_release)
    number = session.scalar(counted) or 0
    return {"without_offsets": number} if number else {}


def _survivors(found: Verification) -> dict[str, Any]:
    """Counts the questions that were read in the whole base, and how many some place would still answer."""
    if not found.read:
        return {}
    answered = len({one.asked_fact_id for one in found.survivors})
    counts = {
        "questions": found.read,
        "answered": answered,
        "places": len(found.survivors),
        "say_the_value": sum(one.says != "other" for one in found.survivors),
    }
    return {"survivors": {**counts, "rate": rate_of(answered, found.read)}}


def _checks(classes: Mapping[str, Rates]) -> dict[str, dict[str, Any]]:
    return {
        name: {**asdict(rates), "leak_rate": rate_of(rates.leaks, rates.probes)}
        for name, rates in classes.items()
    }


def rate_of(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else "0.0000"
