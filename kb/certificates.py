"""Certificates: signed evidence of a forget run that can be checked without the database, by anybody.

A certificate holds ids, counts and keyed digests, and no text of a fact, so that it may outlive an erasure. (The
reason and the actor are in it as they are in the change log.) Rates are derived from counts and numbers that
are not whole are strings, so its canonical form is one sequence of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from kb import audit, signing
from kb.errors import ForgetRunState, SignatureRefused
from kb.forget_records import OUTCOMES, Rates, Verification
from kb.forget_verify import level
from kb.forgetting import get_run, plan_of
from kb.tables import Change, ForgetRun

if TYPE_CHECKING:
    from kb.service import KnowledgeBase

FORMAT = "colmlm-forget-certificate-1"
WHAT = "certificate"

LEVELS = (
    "not forgotten: a fact of the run was found",
    "not retrievable: no probe got a fact of the run",
    "not retrievable, and out of the index of the process that checked",
)
PROVES = (
    "who signed it (compare the fingerprint with one known from elsewhere), and that no byte has changed since",
    "that the signer's change log holds the forget entry with this hash, after the entry with the previous hash",
    "which probes were asked, and how lookups answered them before and after",
)
DOES_NOT_PROVE = (
    "that no other wording gets the facts back: probes are a sample",
    "that nothing remains on disk, in backups, in stored outputs or in the weights of a model",
    "that the facts were not restored after the certificate was issued",
)


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """What an offline check found. `ok` only where every part holds; `problems` says what does not."""

    ok: bool
    problems: tuple[str, ...]
    signed_by: str | None
    database: str | None = None
    run_id: int | None = None
    policy: str | None = None
    num_facts: int | None = None
    applied_seq: int | None = None
    applied_hash: str | None = None
    level: int | None = None
    reached: str | None = None
    issued_at: str | None = None
    proves: tuple[str, ...] = PROVES
    does_not_prove: tuple[str, ...] = DOES_NOT_PROVE


def issue(kb: KnowledgeBase, run_id: int) -> str:
    """The signed certificate of a verified run, as the text of its file; the same one until it is verified again."""
    key = signing.signing_key(kb.settings.home)
    with kb.sessions.begin() as session:
        run = get_run(session, run_id, "applied", "erased", lock=True)
        if run.verification is None:
            raise ForgetRunState(run_id, f"{run.state} and not verified", "verified")
        if run.certificate is None:
            run.certificate = signing.sign(key, _statement(session, run))
        return as_text(run.certificate)


def as_text(signed: Mapping[str, Any]) -> str:
    """The one way to write a certificate: every other spelling is refused."""
    return json.dumps(signed, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _statement(session: Session, run: ForgetRun) -> dict[str, Any]:
    assert run.verification is not None and run.applied_seq is not None
    plan, found = plan_of(run), Verification.from_json(run.verification)
    applied = session.get_one(Change, run.applied_seq)
    return {
        "format": FORMAT,
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
        },
        "keyset": {
            "id": found.keyset_id,
            "checkpoint": found.checkpoint_id,
            "threshold": repr(found.threshold),
        },
        "before": _probes(plan.before),
        "after": _probes(found.probes),
        "checks": {
            "at": found.at,
            "seq": found.seq,
            "leaked": len(found.leaked),
            "still_live": found.still_live,
            "tombstones": found.tombstones,
            "keys_in_index": found.keys_in_index,
        },
        "level": found.level,
        "planned": {"seq": run.planned_seq, "hash": _hash_at(session, run.planned_seq)},
        "applied": {"hash": applied.hash, "entry": audit.entry(applied)},
    }


def _hash_at(session: Session, seq: int) -> str:
    return session.scalar(select(Change.hash).where(Change.seq == seq)) or audit.GENESIS


def _probes(classes: Mapping[str, Rates]) -> dict[str, dict[str, Any]]:
    return {
        name: {**asdict(rates), "leak_rate": _rate(rates.leaks, rates.probes)}
        for name, rates in classes.items()
    }


def _rate(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else "0.0000"


def check(text: bytes, key: str | None = None) -> CertificateCheck:
    """Check the bytes of a certificate file, offline. `key` is the fingerprint that must have signed it."""
    try:
        signed, fingerprint = _read(text)
    except SignatureRefused as refused:
        return CertificateCheck(ok=False, problems=(str(refused),), signed_by=None)
    problems = []
    if key is not None and key != fingerprint:
        problems.append(f"it was signed by {fingerprint}, not by {key}")
    try:
        problems += _faults(signed)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        problems.append(f"it is not a certificate of the format {FORMAT} ({type(error).__name__}: {error})")
        return CertificateCheck(ok=False, problems=tuple(problems), signed_by=fingerprint)
    return CertificateCheck(
        ok=not problems,
        problems=tuple(problems),
        signed_by=fingerprint,
        database=signed["database"],
        run_id=signed["run"],
        policy=signed["policy"],
        num_facts=signed["facts"]["forgotten"],
        applied_seq=signed["applied"]["entry"]["seq"],
        applied_hash=signed["applied"]["hash"],
        level=signed["level"],
        reached=LEVELS[signed["level"]],
        issued_at=signed["issued_at"],
    )


def _read(text: bytes) -> tuple[dict[str, Any], str]:
    """The certificate and who signed it. Raises `SignatureRefused` on any byte that is not as it was issued."""
    try:
        signed = json.loads(text)
    except ValueError as error:  # UnicodeDecodeError and RecursionError's cousins among them
        raise SignatureRefused(WHAT, "it is not JSON") from error
    except RecursionError as error:
        raise SignatureRefused(WHAT, "it is not JSON that this program reads") from error
    if not isinstance(signed, dict) or as_text(signed).encode(errors="surrogatepass") != text:
        raise SignatureRefused(WHAT, "it is not written as certificates are")
    return signed, signing.verify(signed, WHAT)


def _faults(signed: Mapping[str, Any]) -> list[str]:
    """What contradicts itself in a certificate whose signature holds."""
    if signed["format"] != FORMAT:
        return [f"its format is {signed['format']!r}, not {FORMAT}"]
    entry, facts, checks = signed["applied"]["entry"], signed["facts"], signed["checks"]
    included = facts["equivalents"] if facts["equivalents_included"] else 0
    leaks = sum(rates["leaks"] for rates in signed["after"].values())
    held = {
        "the hash of the change entry": audit.entry_hash(entry) == signed["applied"]["hash"],
        "the kind of the change": entry["kind"] == "forget" and entry["payload"]["run"] == signed["run"],
        "the policy": (signed["policy"] == "abstain") == bool(entry["payload"].get("abstain")),
        "the order of plan, change and check": signed["planned"]["seq"] < entry["seq"] <= checks["seq"],
        "the number of facts": facts["forgotten"] == entry["num_facts"] == len(set(entry["fact_ids"])),
        "a digest for each fact": {int(n) for n in entry["payload"]["was"]} == set(entry["fact_ids"]),
        "the parts of the set": facts["forgotten"] == facts["selected"] + included,
        "the threshold": -1 <= float(signed["keyset"]["threshold"]) <= 1,
        "the leaks": (leaks > 0) == (checks["leaked"] > 0),
        "the level": signed["level"] == level(bool(leaks or checks["still_live"]), checks["keys_in_index"]),
    }
    for when in ("before", "after"):
        for name, rates in signed[when].items():
            held[f"the counts of {name} {when}"] = _adds_up(rates)
    return [f"{what} does not hold" for what, holds in held.items() if not holds]


def _adds_up(rates: Mapping[str, Any]) -> bool:
    counts = [int(rates[outcome]) for outcome in OUTCOMES]
    whole = min(counts) >= 0 and sum(counts) == rates["probes"]
    return whole and str(rates["leak_rate"]) == _rate(rates["leaks"], rates["probes"])
