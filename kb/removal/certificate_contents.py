"""What a certificate of forgetting says: whether its parts agree, and whether the base still bears it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.log import audit
from colmlm.kb.log.audit import CertificateFinding, Certified, is_of, kept_change, storable, subject_of
from colmlm.kb.removal.certificates import rate_of as rate
from colmlm.kb.removal.forget import plan_of
from colmlm.kb.removal.records import LEVELS, OUTCOMES
from colmlm.kb.removal.survivors import level
from colmlm.kb.tables import FactVersionRow, ForgetRunRow


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
    return whole and str(rates["leak_rate"]) == rate(rates["leaks"], rates["probes"])


def _fit(survivors: Mapping[str, Any]) -> bool:
    counts = [int(survivors[name]) for name in ("questions", "answered", "places", "say_the_value")]
    questions, answered, places, say_the_value = counts
    within = min(counts) >= 0 and answered <= min(questions, places) and say_the_value <= places
    return within and str(survivors["rate"]) == rate(answered, questions)


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
