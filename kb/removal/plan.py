"""Plans the forgetting of a set of facts: computes equivalents, successors and collateral from stored keys.

A fact is equivalent to a selected one where both have the same value and either the same question or keys near one
another. It conflicts where it answers the same question with another value.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import refusals
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.keys import keysets
from colmlm.kb.keys.calibration import normalise_value
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.principal import as_service
from colmlm.kb.removal.checks import CheckTarget, Questioner, ask_probes, build_checks, sample_evenly
from colmlm.kb.removal.records import (
    READ,
    Collateral,
    Drift,
    ForgetPlan,
    Rates,
    Successor,
    Verification,
    level_reached,
)
from colmlm.kb.removal.selector import Selector, select_facts
from colmlm.kb.removal.survivors import ReadThrough, SurvivorSearch
from colmlm.kb.tables import AttributionRow, FactKeyRow, FactRow, FactVersionRow, TombstoneRow

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore


NEIGHBOURS = 10  # remaining facts that are examined around each affected question

_WORKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class AskedQueries:
    """Queries [B, d], the id [B] of the fact that each asks for, and whether it is an `encoded` question or a key.

    `affected` counts all questions there are, also those beyond the sample and those of facts without a key.
    """

    fact_ids: Ids
    queries_BD: Vectors
    encoded: npt.NDArray[np.bool_]
    affected: int


@dataclass(frozen=True, slots=True)
class PlannedBase:
    """The live facts [N] at the time of one plan, by id, and all keys of the active keyset.

    Equal values have one number, and so have equal questions; a fact without a question has the number -1. Texts are
    compared after `kb.keys.calibration.normalise_value`, without case, blanks and closing punctuation, so that "March
    14, 1879" and "14 March 1879" are two values.
    """

    keyset: KeysetHead
    space: KeySpace
    tombstones: KeySpace
    fact_ids: Ids
    questions: list[str | None]
    value_N: Ids
    question_N: Ids

    @classmethod
    def read(cls, session: Session, keyset: KeysetHead) -> PlannedBase:
        statement = select(FactRow.id, FactVersionRow.value, FactRow.question).join(
            FactVersionRow, FactVersionRow.fact_id == FactRow.id
        )
        rows = session.execute(statement.where(IS_LIVE).order_by(FactRow.id)).all()
        return cls(
            keyset,
            KeySpace.live(session, keyset),
            KeySpace.tombstones(session, keyset),
            np.array([row.id for row in rows], dtype=np.int64),
            [row.question for row in rows],
            _number_texts([normalise_value(row.value) for row in rows]),
            _number_texts([normalise_value(row.question) if row.question else None for row in rows]),
        )

    def mask_of(self, fact_ids: Sequence[int]) -> npt.NDArray[np.bool_]:
        """Give a mask [N] of the live facts that are among `fact_ids`."""
        return np.isin(self.fact_ids, np.array(fact_ids, dtype=np.int64))

    def count_unkeyed(self, fact_ids: Sequence[int]) -> int:
        """Count those of these facts that no lookup can find yet, as they have no key."""
        return int((~np.isin(np.array(fact_ids, dtype=np.int64), self.space.fact_ids)).sum())

    def ask_for(self, fact_ids: Sequence[int], questioner: Questioner, most: int) -> AskedQueries:
        """Encode the questions of these facts to queries, at most `most`.

        Each distinct question is encoded once. Without an encoder, and for facts without a question, the fact's own
        first key is used instead.
        """
        rows = np.flatnonzero(self.mask_of(fact_ids))
        can_ask = questioner.encoder is not None
        if can_ask:
            classes = self.question_N[rows]
            _, first = np.unique(classes, return_index=True)
            rows = rows[np.unique(np.concatenate([first[classes[first] >= 0], np.flatnonzero(classes < 0)]))]
        sampled = np.array(sample_evenly(rows.tolist(), most), dtype=np.int64)
        texts = [self.questions[row] if can_ask else None for row in sampled]
        encoded = np.array([bool(text) for text in texts], dtype=bool)
        ids = self.fact_ids[sampled]
        questions = questioner.encode([text for text in texts if text], self.keyset.dim)
        has_key, keys = self.space.first_keys(ids[~encoded])
        return AskedQueries(
            np.concatenate([ids[encoded], ids[~encoded][has_key]]),
            np.concatenate([questions, keys]),
            np.repeat([True, False], [len(questions), len(keys)]),
            affected=len(rows),
        )

    def find_equivalents(
        self, selected: Sequence[int], asked: AskedQueries | None, radius: float
    ) -> tuple[set[int], set[int]]:
        """Find live facts that say the same as selected ones, and facts that answer their questions with another value.

        A fact says the same where it has the same value and either the same question, or a key that scores at least
        `radius` (a cosine) with a key or an encoded question of the selected one.
        """
        chosen, asks = self.mask_of(selected), self.question_N >= 0
        pair_N = self.question_N * (len(self.fact_ids) + 1) + self.value_N
        asking = asks & ~chosen & np.isin(self.question_N, self.question_N[chosen & asks])
        same = asking & np.isin(pair_N, pair_N[chosen & asks])
        found = {*self.fact_ids[same].tolist(), *self._facts_with_near_keys(chosen, asked, radius)}
        return found, set(self.fact_ids[asking & ~same].tolist()) - found

    def _facts_with_near_keys(
        self, chosen: npt.NDArray[np.bool_], asked: AskedQueries | None, radius: float
    ) -> Iterator[int]:
        """Yield other facts with a chosen value and a key that scores at least `radius` with its keys or questions."""
        wanted = np.isin(self.value_N, self.value_N[chosen]) & ~chosen
        pattern, others = (
            self.space.restrict_to(self.fact_ids[chosen]),
            self.space.restrict_to(self.fact_ids[wanted]),
        )
        ids, vectors = pattern.fact_ids, pattern.vectors()
        if asked is not None:
            ids = np.concatenate([ids, asked.fact_ids[asked.encoded]])
            vectors = np.concatenate([vectors, asked.queries_BD[asked.encoded]])
        of_others = self._by_value(others.fact_ids)
        for value, rows in self._by_value(ids).items():
            keys = of_others.get(value, [])
            alike = KeySpace(others.fact_ids[keys], others.keys_ND[keys])
            yield from alike.fact_ids[alike.are_within(vectors[rows], radius)].tolist()

    def _by_value(self, fact_ids: Ids) -> dict[int, list[int]]:
        """Give, by the number of a value, the positions in `fact_ids` of the facts that have it."""
        rows: dict[int, list[int]] = {}
        for row, value in enumerate(self.value_N[np.searchsorted(self.fact_ids, fact_ids)].tolist()):
            rows.setdefault(value, []).append(row)
        return rows


def _number_texts(texts: list[str | None]) -> Ids:
    classes: dict[str, int] = {}
    return np.array([-1 if t is None else classes.setdefault(t, len(classes)) for t in texts], dtype=np.int64)


def list_successors(
    base: PlannedBase, doomed: Sequence[int], asked: AskedQueries, policy: str
) -> tuple[Successor, ...]:
    """Give, for each query, what its lookup would give if the doomed facts were forgotten with this `policy`."""
    remaining, going = base.space.exclude(doomed), base.space.restrict_to(doomed)
    scores, ids = remaining.best_facts(asked.queries_BD)
    blocked, _ = base.tombstones.best_facts(asked.queries_BD)
    if policy == "abstain":
        blocked = np.maximum(blocked, going.best_facts(asked.queries_BD)[0])
    threshold = base.keyset.threshold
    abstains = (blocked >= threshold) & (blocked > scores)
    outcomes = np.where(abstains, "abstained", np.where(scores >= threshold, "answers", "no_match"))
    return tuple(
        Successor(fact_id, encoded, None if found < 0 else found, None if found < 0 else score, outcome)
        for fact_id, encoded, found, score, outcome in zip(
            asked.fact_ids.tolist(),
            asked.encoded.tolist(),
            ids.tolist(),
            scores.tolist(),
            outcomes.tolist(),
            strict=True,
        )
    )


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Let one caller at a time in a process make or compare a plan. Raises `PlanUnderWay` for another."""
    if not _WORKING.acquire(blocking=False):
        raise refusals.plan_under_way()
    try:
        yield
    finally:
        _WORKING.release()


@dataclass(frozen=True, slots=True)
class ForgetPlanner:
    """Makes plans of forgetting and verifies applied ones, without storing anything.

    It examines at most `most` facts, of a base with at most `largest` live ones. All their keys are held in memory.
    With `reading` the whole base is read, too, for equivalents and for what still answers.
    """

    kb: SearchableStore
    questioner: Questioner
    reading: SurvivorSearch | None
    most: int
    largest: int | None

    @_one_at_a_time()
    def make_plan(
        self, selector: Selector, equivalents: str, radius: float | None, policy: str, *, allow_empty: bool
    ) -> ForgetPlan:
        """Make the plan for the facts that the selector chooses, without the id of a run or a selector digest.

        Raises `PlanUnderWay` where this process makes another plan, and `PlanTooLarge` where too many facts are live.
        """
        keyset, planned_seq = self._active_keyset_and_head()  # first: an edit meanwhile makes the plan stale
        with self.kb.sessions() as session:
            self._require_room(session)
            selected = select_facts(session, selector, keyset=keyset, allow_empty=allow_empty)
            base = PlannedBase.read(session, keyset)
        self.questioner.require_keyset(base.keyset)
        near = base.keyset.threshold if radius is None else radius
        same, conflicting, read = set[int](), set[int](), None
        if equivalents != "exclude":
            asked = base.ask_for(selected, self.questioner, self.most)
            same, conflicting = base.find_equivalents(selected, asked, near)
            if self.reading is not None:
                read = self.reading.read_sample(base.keyset, self._target(base.keyset, selected, []))
                same |= read.facts_alike(selected)
        listed = sorted(same)
        chosen = sorted({*selected, *same}) if equivalents == "include" else selected
        asked = base.ask_for(chosen, self.questioner, self.most)
        before, _ = self._ask(base.keyset, self._target(base.keyset, chosen, listed), read)
        return ForgetPlan(
            run_id=0,
            policy=policy,
            fact_ids=tuple(chosen),
            selected=len(selected),
            equivalents=tuple(listed),
            included=equivalents == "include",
            conflicting=tuple(sorted(conflicting - same)),
            successors=list_successors(base, chosen, asked, policy),
            affected=asked.affected,
            previewed=len(asked.fact_ids),
            collateral=self._collateral(base, chosen, asked),
            live_facts=len(base.fact_ids),
            unkeyed=base.count_unkeyed(chosen),
            keyset_id=base.keyset.keyset_id,
            checkpoint_id=base.keyset.checkpoint_id,
            threshold=base.keyset.threshold,
            radius=near,
            planned_seq=planned_seq,
            before=before,
            selector_digest="",
            read=0 if read is None else len(read.read),
            survivors=() if read is None else read.survivors(chosen),
        )

    def find_drift(self, session: Session, selector: Selector, plan: ForgetPlan) -> Drift:
        """Find the facts of a plan that were edited since, and new facts that the same plan would choose now.

        Raises `PlanUnderWay` and `PlanTooLarge` where it has to search for equivalents.
        """
        live, keyset = unchanged_facts(session, plan), None
        if plan.included or selector.like is not None:
            keyset, _ = self._active_keyset_and_head()
        ours = {*plan.fact_ids, *plan.equivalents}
        selected = set(select_facts(session, selector, keyset=keyset, allow_empty=True)) - ours
        same = set[int]()
        if plan.included and keyset is not None:
            self._require_room(session)
            with _one_at_a_time():
                base = PlannedBase.read(session, keyset)
                same, _ = base.find_equivalents(sorted(live), None, plan.radius)
        return Drift(
            stale=tuple(sorted(set(plan.fact_ids) - live)),
            newly_selected=tuple(sorted(selected)),
            newly_equivalent=tuple(sorted(same - ours - selected)),
        )

    def _active_keyset_and_head(self) -> tuple[KeysetHead, int]:
        """Give the active keyset and the number of the last change, even to callers limited to some corpora."""
        with as_service(), self.kb.sessions() as session:
            return keysets.active_head(session), audit.head_seq(session)

    def _require_room(self, session: Session) -> None:
        if self.largest is not None:
            live = session.scalar(select(func.count()).select_from(FactVersionRow).where(IS_LIVE)) or 0
            if live > self.largest:
                raise refusals.plan_too_large(live, self.largest)

    def verify(self, plan: ForgetPlan, given: Sequence[str]) -> Verification:
        """Check that no lookup gives a fact of an applied plan, by checks made from them and by the `given` questions.

        With `reading` their questions are read in the whole base, too. Their keys are searched for in the index.
        """
        seq = self.kb.lookups.catch_up()
        indexed = self.kb.searcher.current().candidates.ids
        ids = list(plan.fact_ids)
        with self.kb.sessions() as session:
            keyset = keysets.active_head(session)
            of_keyset = FactKeyRow.keyset_id == keyset.keyset_id, FactKeyRow.fact_id == func.any(ids)
            key_ids = session.scalars(select(FactKeyRow.id).where(*of_keyset)).all()
            still_live = count_live(session, ids)
            kept = select(func.count()).select_from(TombstoneRow).where(TombstoneRow.fact_id == func.any(ids))
            tombstones = session.scalar(kept) or 0
        self.questioner.require_keyset(keyset)
        target = self._target(keyset, plan.fact_ids, plan.equivalents)
        read = None if self.reading is None else self.reading.read_sample(keyset, target)
        rates, leaked = self._ask(keyset, target, read, given)
        in_index = int(np.isin(np.array(key_ids, dtype=np.int64), indexed).sum())
        return Verification(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            seq=seq,
            keyset_id=keyset.keyset_id,
            checkpoint_id=keyset.checkpoint_id,
            threshold=keyset.threshold,
            probes=rates,
            still_live=still_live,
            tombstones=tombstones,
            keys_in_index=in_index,
            leaked=tuple(sorted(leaked)),
            level=level_reached(bool(leaked or still_live), in_index),
            read=0 if read is None else len(read.read),
            survivors=() if read is None else read.survivors(target.fact_ids),
        )

    def _target(self, keyset: KeysetHead, fact_ids: Sequence[int], equivalents: Sequence[int]) -> CheckTarget:
        with self.kb.sessions() as session:
            return CheckTarget.read(session, keyset, fact_ids, equivalents, self.most)

    def _ask(
        self, keyset: KeysetHead, target: CheckTarget, read: ReadThrough | None, given: Sequence[str] = ()
    ) -> tuple[dict[str, Rates], set[int]]:
        """Look up every check of these facts. Give the outcomes of each class, and the forgotten facts found."""
        checks = build_checks(target, keyset, self.questioner, given)
        rates, leaked = ask_probes(self.kb, keyset.checkpoint_id, checks, target.fact_ids)
        if read is not None:
            rates[READ], found = read.rates(target.fact_ids)
            leaked |= found
        return rates, leaked

    def _collateral(self, base: PlannedBase, doomed: Sequence[int], asked: AskedQueries) -> Collateral:
        """Count facts near the doomed ones whose own question gets one of those first now, and outputs with those."""
        near = base.space.exclude(doomed).nearest_facts(asked.queries_BD, NEIGHBOURS)
        theirs = base.ask_for(near.tolist(), self.questioner, self.most)
        _, first = base.space.best_facts(theirs.queries_BD)
        used = select(func.count(AttributionRow.generation_id.distinct()), func.count())
        with self.kb.sessions() as session:
            outputs, splices = session.execute(
                used.where(AttributionRow.fact_id == func.any([*doomed]))
            ).one()
        displaced = int(np.isin(first, np.array(doomed, dtype=np.int64)).sum())
        return Collateral(len(theirs.fact_ids), displaced, outputs, splices)


def count_live(session: Session, fact_ids: Collection[int]) -> int:
    """Count those of these facts that are live."""
    live = select(func.count()).where(FactVersionRow.fact_id == func.any(list(fact_ids)), IS_LIVE)
    return session.scalar(live) or 0


def unchanged_facts(session: Session, plan: ForgetPlan) -> set[int]:
    """Give the ids of the plan's facts that are live and were not edited since the plan was made."""
    statement = select(FactVersionRow.fact_id).where(
        FactVersionRow.fact_id == func.any(list(plan.fact_ids)),
        IS_LIVE,
        FactVersionRow.from_seq <= plan.planned_seq,
    )
    return set(session.scalars(statement))
