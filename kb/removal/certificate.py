"""Certificates: signed evidence that facts were forgotten or erased, which other tools can check, and its check.

A certificate is an in-toto Statement in an envelope. It holds ids, counts and keyed digests, and no text of a fact, so
that it may outlive an erasure. (The reason and the actor are in it as they are in the change log.) Its subject is the
change that removed the facts. Rates are derived from counts, and fractions are written as strings.

A signature alone says only that *somebody* signed the certificate as it is. So it is always checked against a signer:
the base's own key, or keys that the caller names. Offline that is all; with the base at hand, its changes and their
state now are compared too. Certificates of the previous format (`FORMER`) are checked in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import SignatureRefused, refusals
from colmlm.kb.facts.edits import MAX_ID
from colmlm.kb.facts.redaction import as_mentioned, held_facts
from colmlm.kb.log import audit, signing
from colmlm.kb.log.signing import close_envelope, is_envelope, open_envelope
from colmlm.kb.log.witness import find_change_hash
from colmlm.kb.removal import lineage
from colmlm.kb.removal.forget import get_run, plan_of
from colmlm.kb.removal.persons import count_unblanked
from colmlm.kb.removal.plan import count_live
from colmlm.kb.removal.records import (
    LEVELS,
    OUTCOMES,
    CertificateCheck,
    CertificateFinding,
    HeldPart,
    Rates,
    Verification,
    level_reached,
)
from colmlm.kb.tables import ChangeRow, FactKeyRow, FactRow, ForgetRunRow
from colmlm.kb.texts.wording import LIMITS

if TYPE_CHECKING:
    from colmlm.kb.store.store import Store

FORGET_TYPE = "urn:colmlm:forget-certificate:2"
ERASURE_TYPE = "urn:colmlm:erasure-certificate:1"
FORMER = "colmlm-forget-certificate-1"

Said = Mapping[str, Any]

NOT_ERASED = "held: not erased"
_CERTIFICATE = "certificate"
_NOT_ONE = "Name a certificate. Check a log with `colmlm log verify --log`."
_SIGNED = ("signature", "who signed it, and that no byte has changed since")
_KEPT = ("change", "that this base has the change")
_UNFIT = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class CertificateKind:
    """Record how certificates of one kind, of a forget run or of an erasure, are checked.

    The part named `change` holds the log's entry, whose kind must be `change_kind`. `check_parts` tells for each
    further part whether it agrees with the others, and `compare` compares a certificate with the base that issued it.
    `summary` gives the fields that a check repeats, beside those of all certificates. `proves` pairs names of checks
    with what follows if they pass. `does_not_prove`, and without the base also `not_offline`, say what no check shows.
    """

    predicate_type: str
    change: str
    change_kind: str
    levels: tuple[str, ...]
    check_parts: Callable[[Said], dict[str, bool]]
    compare: Callable[[Session, Said], Iterator[CertificateFinding]]
    summary: Callable[[Said], dict[str, Any]]
    proves: tuple[tuple[str, str], ...]
    does_not_prove: tuple[str, ...]
    not_offline: tuple[str, ...]

    def summarise(self, said: Said) -> dict[str, Any]:
        """Give the fields of a certificate that the outcome of its check repeats."""
        return {
            "database": said["database"],
            "applied_seq": said[self.change]["entry"]["seq"],
            "applied_hash": said[self.change]["hash"],
            "level": said["level"],
            "reached": self.levels[said["level"]],
            "issued_at": said["issued_at"],
            **self.summary(said),
        }

    def proven_by(self, checks: Collection[CertificateFinding]) -> tuple[str, ...]:
        """Give the statements of `proves` that follow from the checks that passed."""
        held = {check.name for check in checks if check.ok}
        return tuple(proof for needed, proof in self.proves if held.issuperset(needed.split()))

    def find_faults(self, said: Said) -> CertificateFinding:
        """Give the finding "contents", which names the parts of a certificate that contradict the others."""
        change = said[self.change]
        entry = change["entry"]
        subject = {"name": subject_of(said["database"], entry["seq"]), "digest": {"sha256": change["hash"]}}
        of_run = entry["payload"].get("run") == said.get("run")
        held = {
            "the subject": said.get("subject", subject) == subject,
            "the hash of the change entry": audit.entry_hash(entry) == change["hash"],
            "the kind of the change": entry["kind"] == self.change_kind and of_run,
            "the order of change and check": entry["seq"] <= said["checks"]["seq"],
            "the number of facts": self.summary(said)["num_facts"]
            == entry["num_facts"]
            == len(set(entry["fact_ids"])),
            **self.check_parts(said),
        }
        faults = [f"{part} does not hold" for part, holds in held.items() if not holds]
        return CertificateFinding(
            "contents", not faults, "; ".join(faults) or "all counts, rates and hashes agree"
        )

    def compare_with_base(self, session: Session, said: Said) -> Iterator[CertificateFinding]:
        """Yield the findings of comparing a certificate with this base; one if it is of another base."""
        database = audit.database_id(session)
        if said["database"] == database:
            yield from self.compare(session, said)
        else:
            yield CertificateFinding(
                "run", False, f"it is of database {said['database']}, this is {database}"
            )


def subject_of(database: str, seq: int) -> str:
    """Give the URN of a database's change, which is the subject of a certificate."""
    return f"urn:colmlm:{database}:change:{seq}"


def certificate_text(signed: Said) -> str:
    """Write a certificate as the text of its file: JSON with sorted keys, the only form that a check accepts."""
    return json.dumps(signed, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _seal(
    session: Session, key: Ed25519PrivateKey, kind: CertificateKind, change: ChangeRow, said: Said
) -> dict[str, Any]:
    """Sign the statement `said` about a change, with the database's id, the log's entry and the present time."""
    database = audit.database_id(session)
    predicate = {
        **said,
        "database": database,
        "issued_at": datetime.now(UTC).isoformat(timespec="seconds"),
        kind.change: {"hash": change.hash, "entry": audit.canonical_entry(change)},
    }
    return close_envelope(key, kind.predicate_type, subject_of(database, change.seq), change.hash, predicate)


def _compare_change(session: Session, seq: Any, hash_: str) -> CertificateFinding:
    """Give the finding "change": whether this base's log has change `seq` with that hash, unaltered."""
    kept = session.get(ChangeRow, _storable_id(seq))
    if kept is None or kept.hash != hash_:
        return CertificateFinding(
            "change", False, f"this base's log has no change {seq} with the hash that is said"
        )
    if audit.chain_hash(kept) != kept.hash:
        return CertificateFinding("change", False, f"change {seq} of this base's log was altered")
    return CertificateFinding("change", True, "this base's log has the change with that hash")


def _storable_id(value: Any) -> int:
    """Give the value as an id that the database can store. Raises `ValueError` where it is none."""
    if type(value) is not int or not 0 < value <= MAX_ID:
        raise ValueError(f"{value!r:.40} is no id")
    return value


# Certificates of forgetting: what a verified run did and how its checks were answered.


def issue_forget_certificate(kb: Store, run_id: int) -> str:
    """Sign the certificate of a verified run, once for each verification, and give it as the text of its file."""
    key = signing.signing_key(kb.settings.home)
    with kb.sessions.begin() as session:
        run = get_run(session, run_id, "applied", "erased", lock=True)
        if run.verification is None:
            raise refusals.forget_run_state(run_id, f"{run.state} and not verified", "verified")
        if run.certificate is None:
            found = Verification.from_json(run.verification)
            change = session.get_one(ChangeRow, run.applied_seq)
            run.certificate = _seal(session, key, FORGETTING, change, _statement_of_run(session, run, found))
        return certificate_text(run.certificate)


def _statement_of_run(session: Session, run: ForgetRunRow, found: Verification) -> dict[str, Any]:
    plan = plan_of(run)
    return {
        "run": run.id,
        "policy": run.policy,
        "selector": {"parts": sorted(run.selector), "digest": plan.selector_digest},
        "facts": {
            "forgotten": len(plan.fact_ids),
            "selected": plan.selected,
            "equivalents": len(plan.equivalents),
            "equivalents_included": plan.included,
            "conflicting": len(plan.conflicting),
            **_count_without_offsets(session, plan.fact_ids),
        },
        "keyset": {
            "id": found.keyset_id,
            "checkpoint": found.checkpoint_id,
            "threshold": repr(found.threshold),
        },
        "before": _leak_rates(plan.before),
        "after": _leak_rates(found.probes),
        "checks": {
            "at": found.at,
            "seq": found.seq,
            "leaked": len(found.leaked),
            "still_live": found.still_live,
            "tombstones": found.tombstones,
            "keys_in_index": found.keys_in_index,
        },
        **_count_survivors(found),
        **_facts_under_hold(session, plan.fact_ids),
        "level": found.level,
        "planned": {"seq": run.planned_seq, "hash": find_change_hash(session, run.planned_seq)},
    }


def _facts_under_hold(session: Session, fact_ids: Sequence[int]) -> dict[str, Any]:
    """Give the part `held`: the forgotten facts that holds keep from being erased; empty if there are none."""
    if not (found := held_facts(session, fact_ids)):
        return {}
    holds = sorted({hold for one in found.values() for hold in one})
    return {"held": {"state": NOT_ERASED, "facts": sorted(found), "holds": holds}}


def _count_without_offsets(session: Session, fact_ids: Sequence[int]) -> dict[str, int]:
    """Count the facts that have a document but no offsets in it, as releases import them; empty if there are none."""
    of_release = FactRow.document_id.is_not(None), FactRow.span_start.is_(None)
    counted = select(func.count()).where(FactRow.id == func.any(list(fact_ids)), *of_release)
    number = session.scalar(counted) or 0
    return {"without_offsets": number} if number else {}


def _count_survivors(found: Verification) -> dict[str, Any]:
    """Give the part `survivors`: how many questions were read, and are still answered; empty if none was read."""
    if not found.read:
        return {}
    answered = len({one.asked_fact_id for one in found.survivors})
    counts = {
        "questions": found.read,
        "answered": answered,
        "places": len(found.survivors),
        "say_the_value": sum(one.says != "other" for one in found.survivors),
    }
    return {"survivors": {**counts, "rate": _rate(answered, found.read)}}


def _leak_rates(classes: Mapping[str, Rates]) -> dict[str, dict[str, Any]]:
    return {
        name: {**asdict(rates), "leak_rate": _rate(rates.leaks, rates.probes)}
        for name, rates in classes.items()
    }


def _rate(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else "0.0000"


def _check_run_parts(said: Said) -> dict[str, bool]:
    entry, facts, checks = said["applied"]["entry"], said["facts"], said["checks"]
    included = facts["equivalents"] if facts["equivalents_included"] else 0
    leaks = sum(rates["leaks"] for rates in said["after"].values())
    held = {
        "the policy": (said["policy"] == "abstain") == bool(entry["payload"].get("abstain")),
        "the order of plan and change": said["planned"]["seq"] < entry["seq"],
        "a digest for each fact": {int(n) for n in entry["payload"]["was"]} == set(entry["fact_ids"]),
        "the parts of the set": facts["forgotten"] == facts["selected"] + included,
        "the threshold": -1 <= float(said["keyset"]["threshold"]) <= 1,
        "the leaks": (leaks > 0) == (checks["leaked"] > 0),
        "the level": said["level"]
        == level_reached(bool(leaks or checks["still_live"]), checks["keys_in_index"]),
    }
    if "survivors" in said:
        held["the counts of survivors"] = _survivors_fit(said["survivors"])
    for when in ("before", "after"):
        for name, rates in said[when].items():
            held[f"the counts of {name} {when}"] = _adds_up(rates)
    return held


def _adds_up(rates: Said) -> bool:
    counts = [int(rates[outcome]) for outcome in OUTCOMES]
    whole = min(counts) >= 0 and sum(counts) == rates["probes"]
    return whole and str(rates["leak_rate"]) == _rate(rates["leaks"], rates["probes"])


def _survivors_fit(survivors: Said) -> bool:
    counts = [int(survivors[name]) for name in ("questions", "answered", "places", "say_the_value")]
    questions, answered, places, say_the_value = counts
    within = min(counts) >= 0 and answered <= min(questions, places) and say_the_value <= places
    return within and str(survivors["rate"]) == _rate(answered, questions)


def _compare_run(session: Session, said: Said) -> Iterator[CertificateFinding]:
    """Yield the findings of comparing the certificate's run, its changes and its facts with this base."""
    run = session.get(ForgetRunRow, _storable_id(said["run"]))
    yield _compare_run_row(run, said)
    change = _compare_change(session, said["applied"]["entry"]["seq"], said["applied"]["hash"])
    if change.ok and said["planned"]["seq"] != 0:
        before = _compare_change(session, said["planned"]["seq"], said["planned"]["hash"])
        change = change if before.ok else before
    yield change
    yield _compare_run_state(session, run, said)


def _compare_run_row(run: ForgetRunRow | None, said: Said) -> CertificateFinding:
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


def _compare_run_state(session: Session, run: ForgetRunRow | None, said: Said) -> CertificateFinding:
    state = run.state if run else "unknown"
    if state not in ("applied", "erased"):
        return CertificateFinding("state", False, f"the run is {state} now, no longer applied or erased")
    forgotten = [_storable_id(fact_id) for fact_id in said["applied"]["entry"]["fact_ids"]]
    if number := count_live(session, forgotten):
        return CertificateFinding(
            "state", False, f"{number} of its facts {'is' if number == 1 else 'are'} live again"
        )
    return CertificateFinding("state", True, f"the run is {state}, and none of its facts is live")


FORGETTING = CertificateKind(
    FORGET_TYPE,
    "applied",
    "forget",
    LEVELS,
    _check_run_parts,
    _compare_run,
    lambda said: {
        "run_id": said["run"],
        "policy": said["policy"],
        "num_facts": said["facts"]["forgotten"],
        "held_part": _read_held_part(said.get("held")),
    },
    proves=(
        _SIGNED,
        (
            "signer contents",
            "that the signer's change log held the forget entry with this hash, after the entry with the previous hash",
        ),
        (
            "signer contents",
            "which questions were asked as checks, and how lookups answered them before and after",
        ),
        ("run", "that this base has the run"),
        _KEPT,
        ("state", "that its facts are not live now"),
    ),
    does_not_prove=(
        "that no other wording gets the facts back: checks are a sample",
        "that nothing remains on disk, in backups, in stored outputs or in the weights of a model",
    ),
    not_offline=("that the facts were not restored after the certificate was issued",),
)


# Certificates of erasures: what the database holds of the facts when it is issued. Of files it says nothing.

_LIMITS = (
    "names, addresses and entries of the log stay: the erasure's report lists under `left` those that say a fact",
    *(f"not recognised: {limit}" for limit in LIMITS),
)


_ERASED_NOW, _BLANKED_NOW = "its facts are erased, without keys", ", and its places are blank"


def issue_certificate(kb: Store, seq: int) -> str:
    """Sign the certificate of the erasure that is change `seq`, as of now, and give it as the text of its file.

    Raises `ErasureNotFound` if that change is no erasure.
    """
    key = signing.signing_key(kb.settings.home)
    with kb.sessions() as session:
        change = session.get(ChangeRow, seq) if 0 < seq <= MAX_ID else None
        if change is None or change.kind != "erase":
            raise refusals.erasure_not_found(seq)
        found = _count_stored(session, change.fact_ids, change.payload)
        said = {
            "facts": len(set(change.fact_ids)),
            "checks": {"seq": audit.head_seq(session), **found},
            "level": int(not any(found.values())),
            "limits": [*_LIMITS],
        }
        if held := change.payload.get("held"):
            said["held"] = {"state": NOT_ERASED, **held}
        if told := _lineage_of(change.payload):
            said["lineage"] = {"weights": lineage.UNCHANGED, "records": told}
        return certificate_text(_seal(session, key, ERASURE, change, said))


def _count_stored(session: Session, fact_ids: Collection[int], payload: Said) -> dict[str, int]:
    """Count, by name, what the database still has: live and unerased facts, keys, and names that should be blank."""
    ids = list(fact_ids)
    unmarked = select(func.count()).where(FactRow.id == func.any(ids), FactRow.erased_seq.is_(None))
    keys = select(func.count()).where(FactKeyRow.fact_id == func.any(ids))
    return {
        "still_live": count_live(session, ids),
        "not_erased": session.scalar(unmarked) or 0,
        "keys": session.scalar(keys) or 0,
        **({"not_blanked": count_unblanked(session, payload["places"])} if "places" in payload else {}),
    }


def _lineage_of(payload: Said) -> list[str]:
    """Describe each lineage finding in an erasure's payload: whether weights were trained on its texts."""
    return [lineage.describe_finding(one) for one in lineage.read_findings(payload)]


def _check_erasure_parts(said: Said) -> dict[str, bool]:
    names = "still_live", "not_erased", "keys", "not_blanked"
    counts = [int(said["checks"].get(name, 0)) for name in names]
    told = said.get("lineage", {}).get("records", [])
    return {
        "the level": said["level"] == int(not any(counts)),
        "the lineage": "lineage" not in said or told == _lineage_of(said["erased"]["entry"]["payload"]),
    }


def _compare_erasure(session: Session, said: Said) -> Iterator[CertificateFinding]:
    entry = said["erased"]["entry"]
    yield _compare_change(session, entry["seq"], said["erased"]["hash"])
    held = _count_stored(session, [_storable_id(fact_id) for fact_id in entry["fact_ids"]], entry["payload"])
    told = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in held.items() if number)
    yield CertificateFinding(
        "state",
        not told,
        f"of its facts there are now: {told}"
        if told
        else _ERASED_NOW + (_BLANKED_NOW if "not_blanked" in held else ""),
    )


def _summarise_erasure(said: Said) -> dict[str, Any]:
    payload = said["erased"]["entry"]["payload"]
    return {
        "num_facts": said["facts"],
        "redacted_outputs": tuple(map(_storable_id, payload.get("generations", ()))),
        "mentions": as_mentioned(payload.get("mentions")),
        "num_places": len(payload.get("places", ())),
        "held_part": _read_held_part(payload.get("held")),
        "lineage": tuple(_lineage_of(payload)),
    }


def _read_held_part(said: Said | None) -> HeldPart | None:
    """Read the part `held` of a certificate or an erasure's payload; None if it has none."""
    if said is None:
        return None
    parts = {name: tuple(map(_storable_id, said.get(name, ()))) for name in ("holds", "documents", "facts")}
    return HeldPart(**parts)


ERASURE = CertificateKind(
    ERASURE_TYPE,
    "erased",
    "erase",
    ("something of it is there", "not retrievable"),
    _check_erasure_parts,
    _compare_erasure,
    _summarise_erasure,
    proves=(
        _SIGNED,
        (
            "signer contents",
            "that the signer's change log held the erase entry with this hash, after the entry with the previous hash",
        ),
        ("signer contents", "what the database held of the facts when it was issued"),
        _KEPT,
        (
            "state",
            "that its facts are erased now and have no keys, and that the names which it blanked are blank",
        ),
    ),
    does_not_prove=(
        "that nothing remains on disk or in backups: an erasure's report tells its level, and a scan looks",
        "that nobody says the same elsewhere, or that a model has not learnt it",
        f"that weights forgot it: {lineage.UNCHANGED}, and a record lists only what this program trained on",
        *_LIMITS,
    ),
    not_offline=("that the facts were not brought back by the restore of an older backup",),
)


# Checks: who signed a certificate, whether it contradicts itself, and whether the base still agrees with it.


def trusted_keys(names: Collection[str] = (), pem: str | None = None) -> frozenset[str]:
    """Give trusted keys by id or fingerprint: `names`, and the key `pem`. Raises `SignatureRefused` if it is no key."""
    of_pem = () if pem is None else (signing.key_names(signing.read_pem(pem, "public key")).keyid,)
    return frozenset((*names, *of_pem))


def check_offline(text: bytes, trusted: Collection[str]) -> CertificateCheck:
    """Check the bytes of a certificate file against the trusted keys. Raises `SignerNeeded` where there are none."""
    if not trusted:
        raise refusals.signer_needed()
    return _check(text, trusted, None)


def check_here(kb: Store, text: bytes, trusted: Collection[str] = ()) -> CertificateCheck:
    """Check a certificate file's bytes against the trusted keys (none: this base's own) and against this base."""
    own = signing.own_key_names(kb.settings.home)
    with kb.sessions() as session:
        return _check(text, trusted or {own.keyid if own else ""}, session)


def _check(text: bytes, trusted: Collection[str], session: Session | None) -> CertificateCheck:
    kind, checks, told = FORGETTING, list[CertificateFinding](), dict[str, Any]()
    try:
        kind, said, names = _read(text)
        checks.append(CertificateFinding("signature", True, f"it fits, by key {names.keyid}"))
        checks.append(_check_signer(names, trusted))
        told["signed_by"] = names.keyid
        contents = [kind.find_faults(said)]
        if session is not None:
            contents += kind.compare_with_base(session, said)
        told |= kind.summarise(said)
        checks += contents
    except SignatureRefused as refused:
        checks.append(CertificateFinding("signature", False, str(refused)))
    except _UNFIT as error:
        unfit = f"it is not a certificate that this program knows ({type(error).__name__}: {error})"
        checks.append(CertificateFinding("contents", False, unfit))
    offline = session is None
    return CertificateCheck(
        ok=all(check.ok for check in checks),
        checks=tuple(checks),
        problems=tuple(check.found for check in checks if not check.ok),
        offline=offline,
        proves=kind.proven_by(checks),
        does_not_prove=kind.does_not_prove + kind.not_offline if offline else kind.does_not_prove,
        **told,
    )


def _read(text: bytes) -> tuple[CertificateKind, Said, signing.KeyNames]:
    """Read a certificate, its kind and its signer. Raises `SignatureRefused` where a byte is not as it was issued."""
    try:
        signed = json.loads(text)
        is_as_issued = (
            isinstance(signed, dict) and certificate_text(signed).encode(errors="surrogatepass") == text
        )
    except (ValueError, RecursionError) as error:
        raise SignatureRefused(_CERTIFICATE, "it is not JSON that this reads", _NOT_ONE) from error
    if not is_as_issued:
        raise SignatureRefused(_CERTIFICATE, "it was altered, or was never a certificate", _NOT_ONE)
    if is_envelope(signed):
        opened = open_envelope(signed, _CERTIFICATE)
        for kind in (FORGETTING, ERASURE):
            if kind.predicate_type == opened.predicate_type:
                return kind, {**opened.predicate, "subject": opened.subject}, opened.names
        stated = f"it states {opened.predicate_type!r}, and not that something was forgotten or erased"
        raise SignatureRefused(_CERTIFICATE, stated, _NOT_ONE)
    names = signing.verify_signature(signed, _CERTIFICATE)
    if signed.get("format") != FORMER:
        cause = f"its format is {signed.get('format')!r}, not {FORMER}"
        raise SignatureRefused(_CERTIFICATE, cause, _NOT_ONE)
    return FORGETTING, signed, names


def _check_signer(names: signing.KeyNames, trusted: Collection[str]) -> CertificateFinding:
    if names.among(trusted):
        return CertificateFinding("signer", True, "its key is trusted: you named it, or it is the base's own")
    wanted = " or ".join(sorted(trusted)) if any(trusted) else "this base, which has signed nothing"
    return CertificateFinding(
        "signer", False, f"it was signed by {names.keyid} ({names.fingerprint}), not by {wanted}"
    )
