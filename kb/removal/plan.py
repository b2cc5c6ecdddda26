"""Plans the forgetting of a set of facts: computes equivalents, successors and collateral from stored keys."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from colmlm.kb.errors import PlanTooLarge, PlanUnderWay
from colmlm.kb.facts.edits import IS_LIVE
from colmlm.kb.keys import keysets
from colmlm.kb.keys.calibration import normalise_rows
from colmlm.kb.keys.keysets import Ids, Vectors
from colmlm.kb.keys.keyspace import KeySpace
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.log import audit
from colmlm.kb.removal.checks import CheckTarget, Questioner, ask_probes, build_checks, sample_evenly
from colmlm.kb.removal.records import READ, Collateral, Drift, ForgetPlan, Successor, Survivor
from colmlm.kb.removal.selector import Selector, select_facts
from colmlm.kb.removal.survivors import ReadThrough, SurvivorSearch
from colmlm.kb.tables import AttributionRow, FactRow, FactVersionRow

if TYPE_CHECKING:
    from colmlm.kb.lookup.searchable import SearchableStore


NEIGHBOURS = 10  # remaining facts that are examined around each affected question

_WORKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class PlannedBase:
    """The live facts at the time of one plan: their texts, and all keys of the active keyset."""

    keyset: KeysetHead
    texts: Texts
    space: KeySpace
    tombstones: KeySpace

    @classmethod
    def read(cls, session: Session) -> PlannedBase:
        keyset = keysets.active_head(session)
        return cls(
            keyset,
            Texts.read(session),
            KeySpace.live(session, keyset),
            KeySpace.tombstones(session, keyset),
        )

    def unkeyed(self, fact_ids: Sequence[int]) -> int:
        """Counts those of these facts that no lookup can find yet, as they have no key."""
        return int((~np.isin(np.array(fact_ids, dtype=np.int64), self.space.fact_ids)).sum())


@dataclass(frozen=True, slots=True)
class AskedQueries:
    """Queries [B, d] for facts, the fact [B] that each asks for, and whether it is an encoded question.

    `affected` counts all questions there are, also those beyond the sample and those of facts without a key.
    """

    fact_ids: Ids
    queries_BD: Vectors
    encoded: npt.NDArray[np.bool_]
    affected: int


def ask_for(base: PlannedBase, fact_ids: Sequence[int], questioner: Questioner, most: int) -> AskedQueries:
    """Makes queries of the questions of these facts, at most `most`.

    Each distinct question is encoded once. Without an encoder, and for facts without a question, the fact's own
    first key is used instead.
    """
    rows = base.texts.rows(fact_ids)
    if questioner.encoder is not None:
        classes = base.texts.question_N[rows]
        _, first = np.unique(classes, return_index=True)
        rows = rows[np.unique(np.concatenate([first[classes[first] >= 0], np.flatnonzero(classes < 0)]))]
    sampled = np.array(sample_evenly(rows.tolist(), most), dtype=np.int64)
    texts = [base.texts.questions[row] for row in sampled] if questioner.encoder is not None else []
    encoded = np.array([bool(text) for text in texts] or [False] * len(sampled), dtype=bool)
    ids = base.texts.fact_ids[sampled]
    questions = questioner.encode([text for text in texts if text], base.keyset.dim)
    has_key, keys = base.space.first(ids[~encoded])
    by_key = ids[~encoded][has_key]
    return AskedQueries(
        np.concatenate([ids[encoded], by_key]),
        np.concatenate([questions, keys]),
        np.concatenate([np.ones(len(questions), bool), np.zeros(len(by_key), bool)]),
        affected=len(rows),
    )


def find_equivalents(
    base: PlannedBase, selected: Sequence[int], asked: AskedQueries | None, radius: float
) -> tuple[list[int], list[int]]:
    """Finds facts that say the same as selected ones, and facts that answer their questions with another value."""
    same, conflicting = same_question(base.texts, selected)
    questions = None if asked is None else (asked.fact_ids[asked.encoded], asked.queries_BD[asked.encoded])
    near = same_place(base.texts, base.space, selected, radius, questions)
    equivalents = sorted({*same, *near})
    return equivalents, sorted(set(conflicting) - set(equivalents))


def list_successors(
    base: PlannedBase, doomed: Sequence[int], asked: AskedQueries, policy: str
) -> tuple[Successor, ...]:
    """Computes what each query would get if the doomed facts were forgotten, by the rules of a lookup."""
    remaining, going = base.space.without(doomed), base.space.of(doomed)
    scores, ids = remaining.best(asked.queries_BD)
    blocked, _ = base.tombstones.best(asked.queries_BD)
    if policy == "abstain":
        blocked = np.maximum(blocked, going.best(asked.queries_BD)[0])
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


def list_collateral(
    session: Session,
    base: PlannedBase,
    doomed: Sequence[int],
    asked: AskedQueries,
    questioner: Questioner,
    most: int,
) -> Collateral:
    """Counts facts near the doomed ones whose questions get a doomed fact now, and outputs that used doomed ones."""
    near = base.space.without(doomed).nearest(asked.queries_BD, NEIGHBOURS)
    theirs = ask_for(base, near.tolist(), questioner, most)
    _, first = base.space.best(theirs.queries_BD)
    used = session.execute(
        select(func.count(AttributionRow.generation_id.distinct()), func.count()).where(
            AttributionRow.fact_id == func.any(list(doomed))
        )
    ).one()
    displaced = int(np.isin(first, np.array(doomed, dtype=np.int64)).sum())
    return Collateral(len(theirs.fact_ids), displaced, used[0], used[1])


@dataclass(frozen=True, slots=True)
class Related:
    """Facts that say the same as selected ones, facts that answer their questions otherwise, and what was read."""

    equivalents: tuple[int, ...]
    conflicting: tuple[int, ...]
    read: ReadThrough | None

    def survivors(self, gone: Sequence[int]) -> tuple[Survivor, ...]:
        return () if self.read is None else self.read.survivors(gone)


def find_related(
    kb: SearchableStore,
    base: PlannedBase,
    selected: Sequence[int],
    questioner: Questioner,
    radius: float,
    most: int,
    reading: SurvivorSearch | None,
) -> Related:
    """Finds them by value and nearness of keys and, with `reading`, by having the whole base read."""
    asked = ask_for(base, selected, questioner, most)
    found, conflicting = find_equivalents(base, selected, asked, radius)
    if reading is None:
        return Related(tuple(found), tuple(conflicting), None)
    with kb.sessions() as session:
        target = CheckTarget.read(session, base.keyset, selected, [], most)
    read = reading.read(base.keyset, target)
    saying = {fact_id for one in read.survivors(selected) if one.says != "other" for fact_id in one.fact_ids}
    equivalents = {*found, *saying} - set(selected)
    return Related(tuple(sorted(equivalents)), tuple(sorted(set(conflicting) - equivalents)), read)


@contextmanager
def _alone() -> Iterator[None]:
    """Lets one caller at a time in a process work with all keys in memory. Raises `PlanUnderWay` for another."""
    if not _WORKING.acquire(blocking=False):
        raise PlanUnderWay
    try:
        yield
    finally:
        _WORKING.release()


def _require_room(session: Session, largest: int | None) -> None:
    if largest is None:
        return
    live = session.scalar(select(func.count()).select_from(FactVersionRow).where(IS_LIVE)) or 0
    if live > largest:
        raise PlanTooLarge(live, largest)


@_alone()
def draw_up(
    kb: SearchableStore,
    select_them: Callable[[Session], list[int]],
    questioner: Questioner,
    *,
    equivalents: str,
    radius: float | None,
    policy: str,
    most: int,
    largest: int | None = None,
    reading: SurvivorSearch | None = None,
) -> ForgetPlan:
    """Makes the plan for the facts that `select_them` gives, without storing it: it has no run and no digest yet.

    That holds all live keys in memory. With `reading` equivalents are also found by reading. Raises `PlanUnderWay`
    where this process makes another plan, and `PlanTooLarge` where more facts are live than `largest`.
    """
    with kb.sessions() as session:
        _require_room(session, largest)
        planned_seq = audit.head_seq(
            session
        )  # read before the facts, so that an edit meanwhile makes the plan stale
        selected = select_them(session)
        base = PlannedBase.read(session)
    questioner.require(base.keyset)
    near = base.keyset.threshold if radius is None else radius
    related = Related((), (), None)
    if equivalents != "exclude":
        related = find_related(kb, base, selected, questioner, near, most, reading)
    chosen = sorted({*selected, *related.equivalents}) if equivalents == "include" else selected
    asked = ask_for(base, chosen, questioner, most)
    with kb.sessions() as session:
        touched = list_collateral(session, base, chosen, asked, questioner, most)
        target = CheckTarget.read(session, base.keyset, chosen, related.equivalents, most)
    now = build_checks(target, base.keyset, questioner)
    before, _ = ask_probes(kb, base.keyset.checkpoint_id, now, target.fact_ids)
    if related.read is not None:
        before[READ], _ = related.read.rates(target.fact_ids)
    return ForgetPlan(
        run_id=0,
        policy=policy,
        fact_ids=tuple(chosen),
        selected=len(selected),
        equivalents=related.equivalents,
        included=equivalents == "include",
        conflicting=related.conflicting,
        successors=list_successors(base, chosen, asked, policy),
        affected=asked.affected,
        previewed=len(asked.fact_ids),
        collateral=touched,
        live_facts=len(base.texts.fact_ids),
        unkeyed=base.unkeyed(chosen),
        keyset_id=base.keyset.keyset_id,
        checkpoint_id=base.keyset.checkpoint_id,
        threshold=base.keyset.threshold,
        radius=near,
        planned_seq=planned_seq,
        before=before,
        selector_digest="",
        read=0 if related.read is None else len(related.read.read),
        survivors=related.survivors(chosen),
    )


def plan_drift(session: Session, selector: Selector, plan: ForgetPlan, largest: int | None = None) -> Drift:
    """Finds the facts of a plan that were edited since, and new facts that the same plan would choose now.

    Raises `PlanUnderWay` and `PlanTooLarge` where it has to search for equivalents.
    """
    live = is_plan_unchanged(session, plan)
    ours = {*plan.fact_ids, *plan.equivalents}
    selected = set(select_facts(session, selector, allow_empty=True)) - ours
    related: list[int] = []
    if plan.included:
        _require_room(session, largest)
        with _alone():
            related, _ = find_equivalents(PlannedBase.read(session), sorted(live), None, plan.radius)
    return Drift(
        stale=tuple(sorted(set(plan.fact_ids) - live)),
        newly_selected=tuple(sorted(selected)),
        newly_equivalent=tuple(sorted(set(related) - ours - selected)),
    )


def is_plan_unchanged(session: Session, plan: ForgetPlan) -> set[int]:
    """Gives those facts of the plan that are live and were not edited since it was made."""
    statement = select(FactVersionRow.fact_id).where(
        FactVersionRow.fact_id == func.any(list(plan.fact_ids)),
        IS_LIVE,
        FactVersionRow.from_seq <= plan.planned_seq,
    )
    return set(session.scalars(statement))


# Equivalents: finds live facts outside a selection that say the same, so that these can be forgotten with it.
#
# A fact is equivalent to a selected one where both have the same value and either the same question or keys
# near one another. It conflicts where it answers the same question with another value. Values and questions
# are compared after `kb.keys.calibration.normalise_rows`, without case, blanks and closing punctuation, so that
# "March 14, 1879" and "14 March 1879" are two values.


@dataclass(frozen=True, slots=True)
class Texts:
    """The questions of all live facts [N] by fact id, and classes of equal values and equal questions, as numbers.

    A fact without a question has the question class -1.
    """

    fact_ids: Ids
    questions: list[str | None]
    value_N: Ids
    question_N: Ids

    @classmethod
    def read(cls, session: Session) -> Texts:
        statement = select(FactRow.id, FactVersionRow.value, FactRow.question).join(
            FactVersionRow, FactVersionRow.fact_id == FactRow.id
        )
        rows = session.execute(statement.where(IS_LIVE).order_by(FactRow.id)).all()
        return cls(
            np.array([row.id for row in rows], dtype=np.int64),
            [row.question for row in rows],
            _numbered([normalise_rows(row.value) for row in rows]),
            _numbered([normalise_rows(row.question) if row.question else None for row in rows]),
        )

    def rows(self, fact_ids: Sequence[int] | Ids) -> Ids:
        """Gives the rows of these facts, without those that are not live."""
        return np.flatnonzero(np.isin(self.fact_ids, np.asarray(fact_ids, dtype=np.int64)))


def _numbered(texts: list[str | None]) -> Ids:
    classes: dict[str, int] = {}
    return np.array([-1 if t is None else classes.setdefault(t, len(classes)) for t in texts], dtype=np.int64)


def same_question(texts: Texts, selected: Sequence[int]) -> tuple[list[int], list[int]]:
    """Finds the facts that answer a selected fact's question with its value, and those that answer it with another."""
    chosen = np.isin(texts.fact_ids, np.array(selected, dtype=np.int64))
    asks = texts.question_N >= 0
    pair_N = texts.question_N * (len(texts.fact_ids) + 1) + texts.value_N
    asked = asks & ~chosen & np.isin(texts.question_N, texts.question_N[chosen & asks])
    same = asked & np.isin(pair_N, pair_N[chosen & asks])
    return texts.fact_ids[same].tolist(), texts.fact_ids[asked & ~same].tolist()


def same_place(
    texts: Texts,
    space: KeySpace,
    selected: Sequence[int],
    radius: float,
    asked: tuple[Ids, Vectors] | None = None,
) -> list[int]:
    """Finds the facts with a selected fact's value and a key within `radius` of one of its keys or questions.

    `asked` gives encoded questions: the selected fact that each one asks for, and the vectors.
    """
    chosen = np.isin(texts.fact_ids, np.array(selected, dtype=np.int64))
    wanted = np.isin(texts.value_N, texts.value_N[chosen])
    pattern, others = space.of(texts.fact_ids[chosen]), space.of(texts.fact_ids[wanted & ~chosen])
    ids, vectors = pattern.fact_ids, pattern.vectors()
    if asked is not None:
        ids, vectors = np.concatenate([ids, asked[0]]), np.concatenate([vectors, asked[1]])
    of_pattern, of_others = _classes(texts, ids), _classes(texts, others.fact_ids)
    found: set[int] = set()
    for rows, keys in _by_class(of_pattern, of_others):
        near = KeySpace(others.fact_ids[keys], others.keys_ND[keys])
        found.update(near.fact_ids[near.within(vectors[rows], radius)].tolist())
    return sorted(found)


def _classes(texts: Texts, fact_ids: Ids) -> Ids:
    return texts.value_N[np.searchsorted(texts.fact_ids, fact_ids)]


def _by_class(left: Ids, right: Ids) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Gives, for each class that is on both sides, its rows in either."""
    by_left, by_right = np.argsort(left, kind="stable"), np.argsort(right, kind="stable")
    both = np.intersect1d(left, right)
    sides = [(np.searchsorted(side[order], both, "left"), np.searchsorted(side[order], both, "right"), order)
             for side, order in ((left, by_left), (right, by_right))]  # fmt: skip
    (l0, l1, lo), (r0, r1, ro) = sides
    return [(lo[l0[i] : l1[i]], ro[r0[i] : r1[i]]) for i in range(len(both))]
