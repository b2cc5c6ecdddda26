"""Forgetting: plans the deletion of a set of facts chosen by a selector, applies it as one change, verifies, undoes it.

planned -> applied -> restored | -> erased -> discarded: the run is removed

A plan changes no fact. Applying one is a change of kind "forget" that deletes all its facts at once; restoring is one
change too, and so is discarding a plan. Verification looks the facts up by checks of every class, and stores the
outcomes.

A caller limited to some corpora plans with the facts that it sees, so that every target is in its corpora. It sees its
own runs and those of callers with no other right (the policy of the table). A verification is of the whole base, so it
is not shown to such a caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from colmlm.kb.answers.reading import JudgedReader
from colmlm.kb.errors import KeysetMismatch, refusals
from colmlm.kb.facts import edits as facts
from colmlm.kb.facts import reading, suppression
from colmlm.kb.facts.records import Edit, FactRecord
from colmlm.kb.facts.suppression import TextOrigin
from colmlm.kb.keys.rekey import Encoder
from colmlm.kb.log import audit
from colmlm.kb.log.audit import Signature, signature_of
from colmlm.kb.principal import as_service, scope_of_caller
from colmlm.kb.removal import quotations
from colmlm.kb.removal.checks import Questioner
from colmlm.kb.removal.plan import ForgetPlanner, unchanged_facts
from colmlm.kb.removal.records import (
    DEFAULT_POLICY,
    SAMPLE,
    Drift,
    ForgetPlan,
    RunRecord,
    SaidSurvivor,
    Verification,
)
from colmlm.kb.removal.selector import Selector
from colmlm.kb.removal.survivors import SurvivorSearch, said_survivors
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import ForgetRunRow, copy_columns, forget_policies

if TYPE_CHECKING:
    from colmlm.kb.lookup.likeness import SentenceEmbedder
    from colmlm.kb.lookup.searchable import SearchableStore

EQUIVALENTS = ("include", "only-list", "exclude")
DISCARDED = "discard-plan"  # a kind of changes
ATTEMPTS = 3  # a verb is repeated where another keyset is activated meanwhile, which is rare

T = TypeVar("T")


class Forgetting:
    """Plans, applies, undoes and verifies forget runs. Without an encoder, stored keys replace encoded questions."""

    def __init__(
        self,
        kb: SearchableStore,
        encoder: Encoder | None = None,
        reader: JudgedReader | None = None,
        sentences: SentenceEmbedder | None = None,
        *,
        sample: int = SAMPLE,
        largest: int | None = None,
        on_questions: Callable[[int, int | None], None] | None = None,
        on_read: Callable[[int, int | None], None] | None = None,
    ) -> None:
        """Take limits: `sample` is how many facts and questions are previewed and checked at most; all are forgotten.

        With a reader, questions are also asked of the whole base as if the facts were gone, and with `sentences` the
        texts that it reads are found as those of answers are. `largest` is how many live
        facts a base may have for a plan to be made in this process (None: any number). `on_questions` is called with
        the number of questions that are encoded, `on_read` with the number that are read, and of how many.
        """
        self.kb = kb
        questioner = Questioner(encoder, on_questions)
        reading = None if reader is None else SurvivorSearch(kb, questioner, reader, sentences, on_read)
        self._planner = ForgetPlanner(kb, questioner, reading, sample, largest)

    def plan(
        self,
        selector: Selector,
        *,
        actor: str,
        reason: str,
        equivalents: str = "only-list",
        radius: float | None = None,
        policy: str = DEFAULT_POLICY,
        allow_empty: bool = False,
    ) -> ForgetPlan:
        """Compute what forgetting the selector's facts would do, and store the plan as a run. Changes no fact.

        `kb.removal.records.Planning` describes the choices.
        """
        audit.check_name("actor", actor)
        audit.check_logged_text("reason", reason)
        _check_choices(equivalents, policy, radius)
        who = signature_of(actor)
        drawn = self._on_one_keyset(
            lambda: self._planner.make_plan(selector, equivalents, radius, policy, allow_empty=allow_empty)
        )
        with as_service():
            return self._store(drawn, selector, who, reason)

    @retry_on_contention
    def _store(self, drawn: ForgetPlan, selector: Selector, who: Signature, reason: str) -> ForgetPlan:
        said, scope = TextOrigin(frozenset(drawn.fact_ids), seq=drawn.planned_seq), scope_of_caller()
        with self.kb.sessions.begin() as session:
            suppression.hold_off_erasure(session)  # a fact may have been erased while the plan was made
            kept = replace(drawn, selector_digest=_digest(session, selector)).to_json()
            run = ForgetRunRow(
                state="planned",
                policy=drawn.policy,
                selector=quotations.redact_selector(session, selector.to_json(), said),
                fact_ids=list(drawn.fact_ids),
                plan=quotations.redact_plan(session, kept, said),
                planned_seq=drawn.planned_seq,
                actor=who.actor,
                on_behalf_of=who.on_behalf_of,
                reason=quotations.redact_for_origin(session, reason, said),
                corpora=None if scope is None else list(scope),
            )
            session.add(run)
            session.flush()
            return plan_of(run)

    def drift(self, run_id: int) -> Drift:
        """Find a plan's facts that were edited since, which forbid applying it, and new ones that it would choose."""
        with self.kb.sessions() as session:
            run = get_run(session, run_id, "planned")
            return self._planner.find_drift(session, Selector.from_json(run.selector), plan_of(run))

    @retry_on_contention
    def apply(self, run_id: int, *, actor: str, reason: str) -> Edit:
        """Forget the planned facts, all at once or none. Raises `PlanStale` where one was edited since the plan."""
        with self.kb.sessions.begin() as session:
            pending = audit.begin_change(session, actor, reason)
            run = get_run(session, run_id, "planned")
            plan = plan_of(run)
            if stale := sorted(set(plan.fact_ids) - unchanged_facts(session, plan)):
                raise refusals.plan_stale(run_id, stale)
            ended = facts.end_facts(session, plan.fact_ids, pending.seq)
            abstain = run.policy == "abstain"
            edit = facts.log_end(session, pending, "forget", ended, abstain=abstain, payload={"run": run_id})
            run.state, run.applied_seq = "applied", edit.seq
        return edit

    @retry_on_contention
    def restore(self, run_id: int, *, actor: str, reason: str) -> Edit:
        """Undo a run: restore every fact of an applied one with its value and its keys, or remove a plan.

        The removal of a plan is a change of kind "discard-plan" of no fact. Raises `ForgetRunState` in other states.
        """
        with self.kb.sessions.begin() as session:
            # locks the log before the row, in the order of an erasure
            pending = audit.begin_change(session, actor, reason)
            run = get_run(session, run_id, "applied", "planned", lock=True)
            if run.state == "planned":
                return _discard(session, run, pending)
            edit = facts.restore_facts(session, run.fact_ids, actor, reason)
            run.state, run.restored_seq = "restored", edit.seq
        return edit

    def verify(self, run_id: int, questions: Sequence[str] = ()) -> Verification:
        """Look up the forgotten facts by checks of every class and by these `questions`, and store the verification."""
        with self.kb.sessions() as session:
            plan = plan_of(get_run(session, run_id, "applied", "erased"))
        found = self._on_one_keyset(lambda: self._planner.verify(plan, questions))
        self._store_verification(run_id, found)
        return found

    @retry_on_contention
    def _store_verification(self, run_id: int, found: Verification) -> None:
        with self.kb.sessions.begin() as session:
            suppression.hold_off_erasure(session)
            run = get_run(session, run_id, "applied", "erased", lock=True)
            said = TextOrigin(frozenset(run.fact_ids), seq=found.seq)
            run.verification = quotations.redact_plan(session, asdict(found), said)
            run.certificate = None  # a certificate is about one verification

    def _on_one_keyset(self, work: Callable[[], T]) -> T:
        """Give the result of `work`, and repeat it where another keyset became active meanwhile.

        Stored keys are read from the active keyset. With an encoder, which fits only one keyset, the error is raised.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return work()
            except KeysetMismatch:
                if self._planner.questioner.encoder is not None:
                    raise
        return work()

    def runs(self, after: int = 0, limit: int = 50) -> list[RunRecord]:
        """List forget runs past id `after`, oldest first."""
        with self.kb.sessions() as session:
            statement = (
                select(ForgetRunRow).where(ForgetRunRow.id > after).order_by(ForgetRunRow.id).limit(limit)
            )
            return [_record(run) for run in session.scalars(statement)]

    def run(self, run_id: int) -> tuple[RunRecord, ForgetPlan, Verification | None]:
        """Give a run, its plan and last verification (None: it has none, or the caller may read some corpora only)."""
        with self.kb.sessions() as session:
            found = get_run(session, run_id)
            checked = _shown_verification(found)
            return (
                _record(found),
                plan_of(found),
                None if checked is None else Verification.from_json(checked),
            )

    def survivors(self, run_id: int, after: int = 0, limit: int = 50) -> list[SaidSurvivor]:
        """Give at most `limit` survivors past the first `after`: of the last verification, else of the plan.

        A verification without a reader found none, so the plan's are given then, too.
        """
        with self.kb.sessions() as session:
            run = get_run(session, run_id)
            checked = _shown_verification(run)
            found = checked and Verification.from_json(checked)
            listed = found.survivors if found and found.read else plan_of(run).survivors
            return said_survivors(session, listed[after : after + limit])

    def facts(self, fact_ids: Sequence[int]) -> dict[int, FactRecord]:
        """Give the records of these facts by id, without those that do not exist."""
        with self.kb.sessions() as session:
            return reading.fact_records(session, fact_ids)


def _discard(session: Session, run: ForgetRunRow, pending: audit.Pending) -> Edit:
    """Remove a plan, and log which: its number, the change as of which it was made, its size, and a keyed digest."""
    payload = {
        "run": run.id,
        "planned_seq": run.planned_seq,
        "planned_facts": len(run.fact_ids),
        "selector_digest": plan_of(run).selector_digest,
    }
    session.delete(run)
    return Edit(audit.append_change(session, pending, DISCARDED, payload=payload), DISCARDED, ())


def _digest(session: Session, selector: Selector) -> str:
    """Give a keyed digest of the selector as it was given, since an erasure may redact the stored one later."""
    return audit.keyed_digest(session, json.dumps(selector.to_json(), sort_keys=True, separators=(",", ":")))


def _check_choices(equivalents: str, policy: str, radius: float | None) -> None:
    if equivalents not in EQUIVALENTS:
        raise refusals.invalid_selector(
            f"equivalents is {equivalents!r}, not one of {', '.join(EQUIVALENTS)}"
        )
    if policy not in forget_policies:
        raise refusals.invalid_selector(f"the policy is {policy!r}, not one of {', '.join(forget_policies)}")
    if radius is not None and not -1 <= radius <= 1:
        raise refusals.invalid_selector(f"the radius {radius} is not a cosine, from -1 to 1")


def get_run(session: Session, run_id: int, *states: str, lock: bool = False) -> ForgetRunRow:
    """Read a run. Raises `ForgetRunNotFound`, or `ForgetRunState` if `states` are given and it is in none of them."""
    statement = select(ForgetRunRow).where(ForgetRunRow.id == run_id)
    storable = 0 < run_id <= facts.MAX_ID
    run = session.scalar(statement.with_for_update() if lock else statement) if storable else None
    if run is None:
        raise refusals.forget_run_not_found(run_id)
    if states and run.state not in states:
        raise refusals.forget_run_state(run_id, run.state, " or ".join(states))
    return run


def plan_of(run: ForgetRunRow) -> ForgetPlan:
    """Give the plan that a run stores."""
    return ForgetPlan.from_json(
        run.plan,
        run_id=run.id,
        policy=run.policy,
        fact_ids=tuple(run.fact_ids),
        planned_seq=run.planned_seq,
    )


def _shown_verification(run: ForgetRunRow) -> dict[str, Any] | None:
    """Give the run's last verification; None if it has none, or if the caller is limited to some corpora."""
    return run.verification if scope_of_caller() is None else None


def _record(run: ForgetRunRow) -> RunRecord:
    checked = _shown_verification(run)
    return copy_columns(
        RunRecord,
        run,
        run_id=run.id,
        num_facts=len(run.fact_ids),
        verified=checked is not None,
        level=None if checked is None else checked["level"],
        at=run.at.astimezone(UTC),
    )
