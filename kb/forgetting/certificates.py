"""Certificates: signed evidence of a forget run, as an in-toto Statement in an envelope that other tools can check.

A certificate holds ids, counts and keyed digests, and no text of a fact, so that it may outlive an erasure. (The
reason and the actor are in it as they are in the change log.) Its subject is the change that forgot the facts. Rates
are derived from counts, and fractions are written as strings. `kb.forgetting.certificates` checks certificates.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.erasure import certificates as erasures
from colmlm.kb.errors import ForgetRunState, SignatureRefused, SignerNeeded
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.forgetting.records import LEVELS, OUTCOMES, Rates, Verification
from colmlm.kb.forgetting.survivors import level
from colmlm.kb.forgetting.verbs import get_run, plan_of
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
from colmlm.kb.log.chain import close_envelope, is_envelope, open_envelope
from colmlm.kb.log.witness import hash_at
from colmlm.kb.tables import ChangeRow, FactRow, FactVersionRow, ForgetRunRow

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


# Checks a certificate: who signed it, whether it contradicts itself, and whether the base still agrees with
# it.
#
# A signature alone says only that *somebody* signed the certificate as it is. So it is always checked against
# a signer: the base's own key, or keys that the caller names. Offline that is all; with the base at hand, its
# changes and their state now are compared too. Certificates of the previous format (`FORMER`) are checked in
# the same way.

# What a certificate of forgetting says: whether its parts agree, and whether the base still bears it out.


def _holds(said: Mapping[str, Any]) -> dict[str, bool]:
    """Tells for each part of a certificate whether it agrees with the others."""
    entry, facts, checks = said["applied"]["entry"], said["facts"], said["checks"]
    included = facts["equivalents"] if facts["equivalents_included"] else 0
    leaks = sum(rates["leaks"] for rates in said["after"].values())
    subject = {
        "name": subject_of(said["database"], entry["seq"]),
        "digest": {"sha256": said["applied"]["hash"]},
    }
    held = {
        "the subject": said.get("subject", subject) == subject,
        "the hash of the change entry": audit.entry_hash(entry) == said["applied"]["hash"],
        "the kind of the change": entry["kind"] == "forget" and entry["payload"]["run"] == said["run"],
        "the policy": (said["policy"] == "abstain") == bool(entry["payload"].get("abstain")),
        "the order of plan, change and check": said["planned"]["seq"] < entry["seq"] <= checks["seq"],
        "the number of facts": facts["forgotten"] == entry["num_facts"] == len(set(entry["fact_ids"])),
        "a digest for each fact": {int(n) for n in entry["payload"]["was"]} == set(entry["fact_ids"]),
        "the parts of the set": facts["forgotten"] == facts["selected"] + included,
        "the threshold": -1 <= float(said["keyset"]["threshold"]) <= 1,
        "the leaks": (leaks > 0) == (checks["leaked"] > 0),
        "the level": said["level"] == level(bool(leaks or checks["still_live"]), checks["keys_in_index"]),
    }
    if "survivors" in said:
        held["the counts of survivors"] = _fit(said["survivors"])
    for when in ("before", "after"):
        for name, rates in said[when].items():
            held[f"the counts of {name} {when}"] = _adds_up(rates)
    return held


def _adds_up(rates: Mapping[str, Any]) -> bool:
    counts = [int(rates[outcome]) for outcome in OUTCOMES]
    whole = min(counts) >= 0 and sum(counts) == rates["probes"]
    return whole and str(rates["leak_rate"]) == rate_of(rates["leaks"], rates["probes"])


def _fit(survivors: Mapping[str, Any]) -> bool:
    counts = [int(survivors[name]) for name in ("questions", "answered", "places", "say_the_value")]
    questions, answered, places, say_the_value = counts
    within = min(counts) >= 0 and answered <= min(questions, places) and say_the_value <= places
    return within and str(survivors["rate"]) == rate_of(answered, questions)


def _borne_out(session: Session, said: Mapping[str, Any]) -> Iterator[CertificateFinding]:
    """Compares the certificate's run and change with this base."""
    if (foreign := is_of(session, said)) is not None:
        yield foreign
        return
    run = session.get(ForgetRunRow, storable(said["run"]))
    yield _run(run, said)
    yield _change(session, said)
    yield _state(session, run, said)


def _run(run: ForgetRunRow | None, said: Mapping[str, Any]) -> CertificateFinding:
    if run is None:
        return CertificateFinding("run", False, f"this base has no forget run {said['run']}")
    held = {
        "selector": plan_of(run).selector_digest == said["selector"]["digest"],
        "plan": run.planned_seq == said["planned"]["seq"],
        "change": run.applied_seq == said["applied"]["entry"]["seq"],
        "policy": run.policy == said["policy"],
        "set of facts": set(run.fact_ids) == set(said["applied"]["entry"]["fact_ids"]),
    }
    if unlike := [name for name, holds in held.items() if not holds]:
        return CertificateFinding(
            "run", False, f"forget run {run.id} of this base has another {', another '.join(unlike)}"
        )
    return CertificateFinding(
        "run", True, f"this base has forget run {run.id}, of this selector and these facts"
    )


def _change(session: Session, said: Mapping[str, Any]) -> CertificateFinding:
    found = kept_change(session, said["applied"]["entry"]["seq"], said["applied"]["hash"])
    planned = said["planned"]["seq"]
    if not found.ok or planned == 0:
        return found
    before = kept_change(session, planned, said["planned"]["hash"])
    return found if before.ok else before


def _state(session: Session, run: ForgetRunRow | None, said: Mapping[str, Any]) -> CertificateFinding:
    state = run.state if run else "unknown"
    if state not in ("applied", "erased"):
        return CertificateFinding("state", False, f"the run is {state} now, no longer applied or erased")
    forgotten = [storable(fact_id) for fact_id in said["applied"]["entry"]["fact_ids"]]
    live = select(func.count()).where(FactVersionRow.fact_id == func.any(forgotten), IS_LIVE)
    if number := session.scalar(live):
        return CertificateFinding("state", False, f"{number} of its facts are live again")
    return CertificateFinding("state", True, f"the run is {state}, and none of its facts is live")


def _summary(said: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "database": said["database"],
        "run_id": said["run"],
        "policy": said["policy"],
        "num_facts": said["facts"]["forgotten"],
        "applied_seq": said["applied"]["entry"]["seq"],
        "applied_hash": said["applied"]["hash"],
        "level": said["level"],
        "reached": LEVELS[said["level"]],
        "issued_at": said["issued_at"],
    }


FORGETTING = Certified(
    _holds,
    _borne_out,
    _summary,
    proves=(
        "who signed it, and that no byte has changed since",
        "that the signer's change log held the forget entry with this hash, after the entry with the previous hash",
        "which questions were asked as checks, and how lookups answered them before and after",
    ),
    proves_here=("that this base has the run and the change, and that its facts are not live now",),
    does_not_prove=(
        "that no other wording gets the facts back: checks are a sample",
        "that nothing remains on disk, in backups, in stored outputs or in the weights of a model",
    ),
    not_offline=("that the facts were not restored after the certificate was issued",),
)


FORMER = "colmlm-forget-certificate-1"
WHAT = "certificate"

_UNFIT = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)
_KINDS: Mapping[str, Certified] = MappingProxyType(
    {PREDICATE_TYPE: FORGETTING, erasures.PREDICATE_TYPE: erasures.ERASURE}
)


@dataclass(frozen=True, slots=True)
class CertificateCheck:
    """The outcome of a check. It is `ok` only if each of `checks` is; `problems` says what is wrong with the others.

    `signed_by` is the id of the key that signed, trusted or not; `offline` says that no base was compared. `run_id` and
    `policy` are those of a forget run; None in a certificate of an erasure.
    """

    ok: bool
    checks: tuple[CertificateFinding, ...]
    problems: tuple[str, ...]
    offline: bool
    signed_by: str | None = None
    database: str | None = None
    run_id: int | None = None
    policy: str | None = None
    num_facts: int | None = None
    applied_seq: int | None = None
    applied_hash: str | None = None
    level: int | None = None
    reached: str | None = None
    issued_at: str | None = None
    proves: tuple[str, ...] = ()
    does_not_prove: tuple[str, ...] = ()


def trusted_keys(names: Collection[str] = (), pem: str | None = None) -> frozenset[str]:
    """Collects the keys that a caller trusts: by id or fingerprint, and one as PEM. Raises `SignatureRefused`."""
    of_pem = () if pem is None else (signing.names_of(signing.from_pem(pem, "public key")).keyid,)
    return frozenset((*names, *of_pem))


def check_offline(text: bytes, trusted: Collection[str]) -> CertificateCheck:
    """Checks the bytes of a certificate file against the trusted keys. Raises `SignerNeeded` where there are none."""
    if not trusted:
        raise SignerNeeded
    return _checked(text, trusted, None)


def check_here(kb: Store, text: bytes, trusted: Collection[str] = ()) -> CertificateCheck:
    """Checks a certificate against the trusted keys, by default this base's own, and against its runs and its log."""
    own = signing.own_names(kb.settings.home)
    with kb.sessions() as session:
        return _checked(text, trusted or {own.keyid if own else ""}, session)


def _checked(text: bytes, trusted: Collection[str], session: Session | None) -> CertificateCheck:
    offline = session is None
    try:
        kind, said, names = _read(text)
    except SignatureRefused as refused:
        return _result(FORGETTING, (CertificateFinding("signature", False, str(refused)),), offline)
    checks = [
        CertificateFinding("signature", True, f"it fits, by key {names.keyid}"),
        _signer(names, trusted),
    ]
    try:
        checks.append(_contents(kind.holds(said)))
        if session is not None:
            checks += kind.borne_out(session, said)
        return _result(kind, tuple(checks), offline, signed_by=names.keyid, **kind.summary(said))
    except _UNFIT as error:
        unfit = f"it is not a certificate that this program knows ({type(error).__name__}: {error})"
        return _result(
            kind, (*checks[:2], CertificateFinding("contents", False, unfit)), offline, signed_by=names.keyid
        )


def _result(
    kind: Certified, checks: tuple[CertificateFinding, ...], offline: bool, **said: Any
) -> CertificateCheck:
    return CertificateCheck(
        ok=all(check.ok for check in checks),
        checks=checks,
        problems=tuple(check.found for check in checks if not check.ok),
        offline=offline,
        proves=kind.proves if offline else kind.proves + kind.proves_here,
        does_not_prove=kind.does_not_prove + kind.not_offline if offline else kind.does_not_prove,
        **said,
    )


def _read(text: bytes) -> tuple[Certified, Mapping[str, Any], signing.KeyNames]:
    """Reads a certificate, its kind and its signer. Raises `SignatureRefused` where a byte is not as it was issued."""
    try:
        signed = json.loads(text)
        is_as_issued = isinstance(signed, dict) and as_text(signed).encode(errors="surrogatepass") == text
    except (ValueError, RecursionError) as error:
        raise SignatureRefused(WHAT, "it is not JSON that this program reads") from error
    if not is_as_issued:
        raise SignatureRefused(WHAT, "it is not written as certificates are")
    if is_envelope(signed):
        opened = open_envelope(signed, WHAT)
        if (kind := _KINDS.get(opened.predicate_type)) is None:
            raise SignatureRefused(
                WHAT, f"it states {opened.predicate_type!r}, and not that something was forgotten or erased"
            )
        return kind, {**opened.predicate, "subject": opened.subject}, opened.names
    names = signing.verify_signature(signed, WHAT)
    if signed.get("format") != FORMER:
        raise SignatureRefused(WHAT, f"its format is {signed.get('format')!r}, not {FORMER}")
    return FORGETTING, signed, names


def _signer(names: signing.KeyNames, trusted: Collection[str]) -> CertificateFinding:
    if names.among(trusted):
        return CertificateFinding("signer", True, "it was signed by the key that it must be signed by")
    wanted = " or ".join(sorted(trusted)) if any(trusted) else "this base, which has signed nothing"
    return CertificateFinding(
        "signer", False, f"it was signed by {names.keyid} ({names.fingerprint}), not by {wanted}"
    )


def _contents(holds: Mapping[str, bool]) -> CertificateFinding:
    faults = [f"{what} does not hold" for what, held in holds.items() if not held]
    return CertificateFinding(
        "contents", not faults, "; ".join(faults) or "all counts, rates and hashes agree"
    )
