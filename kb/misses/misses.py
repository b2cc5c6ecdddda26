"""Misses: a store's work list of what was asked and found nothing, or was called wrong."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
from sqlalchemy import Row, Select, case, func, insert, select, text, update
from sqlalchemy.orm import Session

from colmlm.kb.errors import InvalidValue, refusals
from colmlm.kb.facts import versions
from colmlm.kb.facts.search import stems_of
from colmlm.kb.keys.keysets import STORED
from colmlm.kb.log import audit
from colmlm.kb.log.records import OnRecord, require_options
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.misses import listing
from colmlm.kb.misses.listing import (
    GROUPS_LOCK,
    MAX_ID,
    Asks,
    MissPlace,
    ShowTexts,
    add_near_facts,
    ask_again,
    lock_groups,
    prune_misses,
    read_question_condition,
)
from colmlm.kb.misses.records import (
    MISSES_LISTED,
    WHOLE,
    MissDetails,
    MissPage,
    MissSearch,
    MissState,
    Solving,
)
from colmlm.kb.store.engines import check_limit
from colmlm.kb.store.store import is_read_only
from colmlm.kb.store.waits import retry_on_contention
from colmlm.kb.tables import AttributionRow, GenerationRow, MissGroupRow, MissRow
from colmlm.kb.texts.asked import question_of_lookup
from colmlm.kb.texts.searched import searched_words

NEAR = 3  # facts that are shown with a group
GROUPS_AT_ONCE = 1_000  # up to so many groups are read to group new misses while somebody waits for a list


@dataclass(frozen=True, slots=True)
class Misses:
    """The misses of a store. `asks` answers questions again; `show` withholds the past from who may not read it."""

    store: SearchableStore
    asks: Asks | None = None
    show: ShowTexts | None = None

    def find(self, **sought: Unpack[MissSearch]) -> MissPage:
        """List the groups of misses in a state. Where there are few groups, up to 256 new misses are assigned first."""
        require_options(MissSearch, sought)
        if not self.store.settings.keep_answers:
            return MissPage((), 0, 0, False, None)
        self._group_some()
        state, limit = sought.get("state", "open"), sought.get("limit", MISSES_LISTED)
        check_limit(limit)
        check_limit(nearest := sought.get("nearest", NEAR), least=0)
        with self.store.sessions() as session:
            found = listing.list_groups(
                session, state, sought.get("sort", "asked"), sought.get("after", 0), limit + 1, self.show
            )
            total, ungrouped = listing.count_misses(session, state), num_ungrouped(session)
        shown = add_near_facts(self.store, found[:limit], nearest)
        end = shown[-1].group_id if len(found) > limit else None
        return MissPage(tuple(shown), total, ungrouped, True, end)

    def read(self, group_id: int) -> MissDetails:
        """Give a group with its questions and the facts near it. Raises `MissGroupNotFound`."""
        with self.store.sessions() as session:
            group = listing.get_group(session, group_id, self.show)
            questions = listing.questions_in_group(session, group_id, self.show)
        (near,) = add_near_facts(self.store, [group], NEAR)
        return MissDetails(near, questions)

    def open_groups(self) -> int:
        """Count the open groups."""
        with self.store.sessions() as session:
            return listing.count_misses(session, "open") if self.store.settings.keep_answers else 0

    def group(self, on_done: Callable[[int, int], None] | None = None, *, most: int | None = None) -> int:
        """Assign new misses to groups, all or about `most`; give their number. It stops if another process does it."""
        if not self.store.settings.keep_answers:
            return 0
        with self.store.sessions() as session:
            total = num_ungrouped(session)
            made = Grouping.begin(session) if total and not is_read_only(session) else None
        done = 0
        while made is not None and (most is None or done < most) and (some := self._group_next(made)):
            done += some
            if on_done is not None:
                on_done(done, max(total, done))
        return done

    def prune(self, older_than: timedelta) -> int:
        """Remove misses older than `older_than`, with their outputs that have no text, and count the misses."""
        gone = 0
        while some := self._prune_some(older_than):
            gone += some
        return gone

    def dismiss(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        """Dismiss groups that are not this base's to answer; what is asked near them later joins them.

        Gives the change's number. Raises `MissGroupNotFound` or `MissGroupState`.
        """
        return self._decide(group_ids, "dismissed", actor, reason)

    def reopen(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        """Open groups again. It returns and raises what `dismiss` does."""
        return self._decide(group_ids, "open", actor, reason)

    def solve(self, group_id: int, fact_id: int, *, anyway: bool = False, **who: Unpack[OnRecord]) -> Solving:
        """Ask the newest questions of a group again. If all of them find the fact, or with `anyway`, solve the group.

        Raises `MissGroupNotFound`, `MissGroupState`, `FactNotFound` or `FactDeleted`.
        """
        audit.check_who(who["actor"], who["reason"])
        with self.store.sessions() as session:
            if listing.get_group(session, group_id, None).state == "solved":
                raise refusals.miss_group_state([group_id], "solved")
            versions.live_states(session, [fact_id])
            questions = listing.questions_in_group(session, group_id, None)
        asked = ask_again(self.store, self.asks, questions, fact_id)
        if not (anyway or (asked and all(one.found for one in asked))):
            return Solving(group_id, fact_id, False, None, asked)
        seq = self._decide([group_id], "solved", who["actor"], who["reason"], fact_id)
        return Solving(group_id, fact_id, True, seq, asked)

    @retry_on_contention
    def _decide(
        self, group_ids: Sequence[int], state: MissState, actor: str, reason: str, fact_id: int | None = None
    ) -> int:
        with self.store.sessions.begin() as session:
            return decide_group(session, group_ids, state, actor, reason, fact_id=fact_id)

    @retry_on_contention
    def _prune_some(self, older_than: timedelta) -> int:
        with self.store.sessions.begin() as session:
            return prune_misses(session, older_than)

    def _group_next(self, made: Grouping) -> int | None:
        with self.store.sessions.begin() as session:
            return made.group_some(session)

    def _group_some(self) -> None:
        """Group up to 256 new misses, unless there are too many groups to read. A worker groups the rest."""
        with self.store.sessions() as session:
            if not num_ungrouped(session) or num_groups(session) > GROUPS_AT_ONCE:
                return
            made = None if is_read_only(session) else Grouping.begin(session)
        if made is not None:
            self._group_next(made)


# Decisions on groups of misses: dismissed, solved or open again. Each is a change of the log. Session first.

KINDS: Mapping[MissState, str] = {
    "dismissed": "dismiss-misses",
    "solved": "solve-misses",
    "open": "reopen-misses",
}


def decide_group(
    session: Session,
    group_ids: Sequence[int],
    state: MissState,
    actor: str,
    reason: str,
    *,
    fact_id: int | None = None,
) -> int:
    """Set the state of these groups, all or none, and give the number of the change.

    Raises `MissGroupNotFound`, `MissGroupState` where one has that state already, and for a fact that is not live
    `FactNotFound` or `FactDeleted`.
    """
    wanted = sorted(set(group_ids))
    if not wanted:
        raise InvalidValue("groups", "none is named. Name at least one group")
    lock_groups(session)
    pending = audit.begin_change(session, actor, reason)
    if fact_id is not None:
        versions.live_states(session, [fact_id])
    storable = [group_id for group_id in wanted if 0 < group_id <= MAX_ID]
    rows = select(MissGroupRow.id, MissGroupRow.state).where(MissGroupRow.id == func.any(storable))
    states = {row.id: row.state for row in session.execute(rows)}
    if missing := [group_id for group_id in wanted if group_id not in states]:
        raise refusals.miss_group_not_found(missing)
    if already := [group_id for group_id in wanted if states[group_id] == state]:
        raise refusals.miss_group_state(already, state)
    values = {"state": state, "seq": pending.seq, "fact_id": fact_id}
    session.execute(update(MissGroupRow).where(MissGroupRow.id == func.any(wanted)).values(values))
    payload: dict[str, Any] = {"groups": wanted} | ({} if fact_id is None else {"fact": fact_id})
    return audit.append_change(session, pending, KINDS[state], payload=payload)


# Grouping: gives new misses to groups, a few hundred in a transaction. Session first.
#
# Whoever writes groups holds their lock. Who groups and finds another at it leaves the rest to that one.

AT_ONCE, READ = 256, 2_000


class _MissToGroup(NamedTuple):
    """A miss to be grouped: its place, the time and the last change when it was asked, and what it is compared by."""

    place: MissPlace
    at: Any
    seq: int
    compared: ComparedMiss


class Grouping:
    """Assigns misses to groups. It knows the groups that there were when it was made, and those it made since."""

    def __init__(self) -> None:
        self._leaders = Leaders()
        self._ids: list[int] = []

    @classmethod
    def begin(cls, session: Session) -> Grouping | None:
        """Read all groups, and give None where another transaction is grouping."""
        if not _has_groups_lock(session):
            return None
        made = cls()
        statement = _select_lookups(
            MissGroupRow.generation_id, MissGroupRow.ordinal, MissGroupRow.id.label("group_id")
        )
        rows = session.execute(statement.order_by(MissGroupRow.id).execution_options(yield_per=READ))
        for some in rows.partitions():
            for row, read in zip(some, _read_misses(session, some), strict=True):
                made._leaders.add(read.compared)
                made._ids.append(row.group_id)
        return made

    def group_some(self, session: Session) -> int | None:
        """Group up to 256 ungrouped misses, and give their number.

        None where another transaction is grouping, or where others made groups since. After an error it may not be used
        again.
        """
        if not (_has_groups_lock(session) and self._knows_all(session)):
            return None
        new = _select_lookups(MissRow.generation_id, MissRow.ordinal).where(MissRow.group_id.is_(None))
        rows = session.execute(new.order_by(MissRow.generation_id, MissRow.ordinal).limit(AT_ONCE)).all()
        misses = _read_misses(session, rows)
        slots = self._leaders.join([one.compared for one in misses])
        leading = dict(zip(reversed(slots), reversed(misses), strict=True))
        self._ids += _insert(session, [leading[slot] for slot in range(len(self._ids), len(self._leaders))])
        _assign_to_groups(session, misses, [self._ids[slot] for slot in slots])
        return len(misses)

    def _knows_all(self, session: Session) -> bool:
        number, last = session.execute(select(func.count(), func.max(MissGroupRow.id))).one()
        return (number, last) == (len(self._ids), self._ids[-1] if self._ids else None)


def num_ungrouped(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(MissRow).where(MissRow.group_id.is_(None))) or 0


def num_groups(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(MissGroupRow)) or 0


def _has_groups_lock(session: Session) -> bool:
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(GROUPS_LOCK))))


def _select_lookups(generation_id: Any, ordinal: Any, *more: Any) -> Select[*tuple[Any, ...]]:
    """Build a statement (SQL): lookups with what misses are compared by; for a whole output, the query of its first."""
    asked = AttributionRow.ordinal == func.greatest(ordinal, 0)
    said = func.left(GenerationRow.output, case((ordinal == WHOLE, 0), else_=AttributionRow.output_start))
    return (
        select(
            generation_id.label("generation_id"), ordinal.label("ordinal"), GenerationRow.at, GenerationRow.seq,
            GenerationRow.checkpoint_id, GenerationRow.mode, GenerationRow.prompt, said.label("said"),
            AttributionRow.query, read_question_condition().label("asks_reader"), *more,
        )
        .select_from(generation_id.class_)
        .join(GenerationRow, GenerationRow.id == generation_id)
        .outerjoin(AttributionRow, (AttributionRow.generation_id == generation_id) & asked)
    )  # fmt: skip


def _read_misses(session: Session, rows: Sequence[Row[Any]]) -> list[_MissToGroup]:
    """Make a miss of each row of `_select_lookups`, with the stems of its question's words and its query."""
    asked = [
        question_of_lookup(row.mode, row.prompt, row.said or "", asks_reader=bool(row.asks_reader))
        for row in rows
    ]
    said = [searched_words(question).split(" ") for question in asked]
    stems = stems_of(session, [word for words in said for word in words])
    return [
        _MissToGroup(
            MissPlace(row.generation_id, row.ordinal),
            row.at,
            row.seq,
            ComparedMiss(_words(question, words, stems), row.checkpoint_id, _unit(row.query)),
        )
        for row, question, words in zip(rows, asked, said, strict=True)
    ]


def _words(question: str, words: Sequence[str], stems: dict[str, tuple[str, ...]]) -> frozenset[str]:
    """Give the stems of a question's words; where the words are so common that they have none, the question itself."""
    found = frozenset(stem for word in words for stem in stems.get(word, ()))
    return found or frozenset([question.strip()])


def _unit(query: bytes | None) -> Vectors | None:
    if query is None:
        return None
    query_D = np.frombuffer(query, dtype=STORED).astype(np.float32)
    length = float(np.linalg.norm(query_D))
    return query_D / np.float32(length) if length > 0 else None


def _insert(session: Session, leading: Sequence[_MissToGroup]) -> list[int]:
    """Insert a group without misses for each leading miss, and give the ids in order."""
    if not leading:
        return []
    rows = [
        {"asked": 0, "wrong": 0, "last_at": one.at, "generation_id": one.place[0], "ordinal": one.place[1]}
        for one in leading
    ]
    statement = insert(MissGroupRow).returning(MissGroupRow.id, sort_by_parameter_order=True)
    return list(session.scalars(statement, rows))


# A group that was solved and is asked again without a match was not solved.
_GIVE = text("""
WITH given AS (
    SELECT * FROM unnest(
        CAST(:outputs AS bigint[]), CAST(:ordinals AS int[]), CAST(:groups AS bigint[]), CAST(:seqs AS bigint[]),
        CAST(:moments AS timestamptz[])
    ) AS given (generation_id, ordinal, group_id, seq, at)
), placed AS (
    UPDATE miss SET group_id = given.group_id FROM given
    WHERE miss.generation_id = given.generation_id AND miss.ordinal = given.ordinal
    RETURNING given.*
)
UPDATE miss_group g SET asked = g.asked + n.asked, wrong = g.wrong + n.wrong,
    last_at = greatest(g.last_at, n.last_at),
    state = CASE WHEN g.state = 'solved' AND n.seq >= g.seq THEN 'open' ELSE g.state END
FROM (
    SELECT group_id, count(*) AS asked, count(*) FILTER (WHERE ordinal = :whole) AS wrong, max(at) AS last_at,
        max(seq) AS seq
    FROM placed GROUP BY group_id
) AS n
WHERE g.id = n.group_id
""")


def _assign_to_groups(session: Session, misses: Sequence[_MissToGroup], group_ids: Sequence[int]) -> None:
    if not misses:
        return
    session.execute(
        _GIVE,
        {
            "outputs": [one.place.generation_id for one in misses],
            "ordinals": [one.place.ordinal for one in misses],
            "groups": list(group_ids),
            "seqs": [one.seq for one in misses],
            "moments": [one.at for one in misses],
            "whole": WHOLE,
        },
    )


# Nearness of misses: each is compared with the leaders of the groups, and joins the nearest or leads a new one.
#
# The same words are near. Beside that, queries of one checkpoint are near by their cosine, and where a miss
# has no query, or no leader has one of its space, its words decide.

COSINE = 0.85  # of two queries from which on they ask the same
OVERLAP = 0.6  # of the words of two questions, as the share of all words that both have

Vectors = npt.NDArray[np.float32]
_NearLeader = tuple[int, float]  # a slot, and the cosine of its leader


@dataclass(frozen=True, slots=True)
class ComparedMiss:
    """The words by which a miss is compared, and its query, if it has one: a unit vector by the checkpoint `space`."""

    words: frozenset[str]
    space: str = ""
    query_D: Vectors | None = None


@dataclass(slots=True)
class _LeaderQueries:
    """The queries of groups' leaders by one checkpoint, in a matrix that grows by doubling."""

    rows_ND: Vectors
    slots: list[int] = field(default_factory=list)

    def add(self, slot: int, query_D: Vectors) -> None:
        if len(self.slots) == len(self.rows_ND):
            self.rows_ND = np.concatenate([self.rows_ND, np.empty_like(self.rows_ND)])
        self.rows_ND[len(self.slots)] = query_D
        self.slots.append(slot)

    def nearest(self, queries_BD: Vectors, first: int = 0) -> list[_NearLeader]:
        """Give each query's nearest leader, as slot and cosine, among those from row `first` on; there must be one."""
        cosines_BN = queries_BD @ self.rows_ND[first : len(self.slots)].T
        best_B = cosines_BN.argmax(axis=1)
        return [
            (self.slots[first + n], float(row_N[n]))
            for row_N, n in zip(cosines_BN, best_B.tolist(), strict=True)
        ]


@dataclass(slots=True)
class Leaders:
    """The leaders of groups: the misses that others are compared with. Their slots are 0, 1 and so on."""

    _words: list[frozenset[str]] = field(default_factory=list)
    _spaces: dict[tuple[str, int], _LeaderQueries] = field(default_factory=dict)
    _saying: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _same: dict[frozenset[str], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._words)

    def add(self, miss: ComparedMiss) -> int:
        slot = len(self._words)
        self._words.append(miss.words)
        self._same.setdefault(miss.words, slot)
        for word in miss.words:
            self._saying[word].append(slot)
        if miss.query_D is not None:
            space = self._spaces.setdefault(
                (miss.space, len(miss.query_D)),
                _LeaderQueries(np.empty((16, len(miss.query_D)), dtype=np.float32)),
            )
            space.add(slot, miss.query_D)
        return slot

    def join(self, misses: Sequence[ComparedMiss]) -> list[int]:
        """Give the slot of the leader that each miss joins. A miss without a near leader becomes one."""
        known = {key: len(space.slots) for key, space in self._spaces.items()}
        near = self._find_nearest_leaders(misses)
        slots = []
        for n, miss in enumerate(misses):
            slot = self._choose_leader(miss, near.get(n), known)
            slots.append(self.add(miss) if slot is None else slot)
        return slots

    def _find_nearest_leaders(self, misses: Sequence[ComparedMiss]) -> dict[int, _NearLeader]:
        """Give the nearest known leader of each miss with a query, by the position of the miss in `misses`."""
        found: dict[int, _NearLeader] = {}
        for (name, dim), space in self._spaces.items():
            queries = {
                n: one.query_D
                for n, one in enumerate(misses)
                if one.query_D is not None and (one.space, len(one.query_D)) == (name, dim)
            }
            if queries:
                found |= zip(queries, space.nearest(np.stack(list(queries.values()))), strict=True)
        return found

    def _choose_leader(
        self, miss: ComparedMiss, near: _NearLeader | None, known: dict[tuple[str, int], int]
    ) -> int | None:
        if (same := self._same.get(miss.words)) is not None:
            return same
        if miss.query_D is None:
            return self._by_words(miss.words)
        key = (miss.space, len(miss.query_D))
        space, first = self._spaces.get(key), known.get(key, 0)
        if space is None:
            return self._by_words(miss.words)
        if len(space.slots) > first:
            (newer,) = space.nearest(miss.query_D[np.newaxis], first)
            near = newer if near is None else max(near, newer, key=lambda one: one[1])
        assert near is not None, "a space has a leader"
        return near[0] if near[1] >= COSINE else None

    def _by_words(self, words: frozenset[str]) -> int | None:
        best, most = None, OVERLAP
        for slot in dict.fromkeys(self._candidates(words)):
            theirs = self._words[slot]
            share = len(words & theirs) / len(words | theirs)
            if share > most or (best is None and share == most):
                best, most = slot, share
        return best

    def _candidates(self, words: frozenset[str]) -> Iterator[int]:
        """Yield the slots of leaders with one of the rarest words. One that shares enough words has one of these."""
        rarest = sorted(words, key=lambda word: (len(self._saying.get(word, ())), word))
        for word in rarest[: len(words) - math.ceil(OVERLAP * len(words)) + 1]:
            yield from self._saying.get(word, ())
