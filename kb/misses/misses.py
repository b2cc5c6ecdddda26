"""Misses: a store's work list of what was asked and found nothing, or was called wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Unpack

from colmlm.kb.errors import MissGroupState
from colmlm.kb.facts import mending
from colmlm.kb.log import audit
from colmlm.kb.log.records import OnRecord
from colmlm.kb.lookup.searchable import SearchableStore
from colmlm.kb.misses import decisions, grouping, listing, noting
from colmlm.kb.misses.checking import Asks, ask_again
from colmlm.kb.misses.grouping import Grouping
from colmlm.kb.misses.near import with_near
from colmlm.kb.misses.questions import ShowTexts
from colmlm.kb.misses.records import (
    MISSES_LISTED,
    MissDetails,
    MissPage,
    MissSearch,
    MissState,
    Solving,
)
from colmlm.kb.store.bad_values import check_limit
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.standby import is_read_only

NEAR = 3  # facts that are shown with a group
GROUPS_AT_ONCE = 1_000  # up to so many groups are read to group new misses while somebody waits for a list


@dataclass(frozen=True, slots=True)
class Misses:
    """The misses of a store. `asks` answers questions again; `show` withholds what is past from who may not read it."""

    store: SearchableStore
    asks: Asks | None = None
    show: ShowTexts | None = None

    def find(self, **sought: Unpack[MissSearch]) -> MissPage:
        """Lists groups of a state. Where there are few groups, it first gives up to 256 new misses to them."""
        if not self.store.settings.keep_answers:
            return MissPage((), 0, 0, False, None)
        self._group_some()
        state, limit = sought.get("state", "open"), sought.get("limit", MISSES_LISTED)
        check_limit(limit)
        check_limit(nearest := sought.get("nearest", NEAR), least=0)
        with self.store.sessions() as session:
            found = listing.groups(
                session, state, sought.get("order", "asked"), sought.get("after", 0), limit + 1, self.show
            )
            total, ungrouped = listing.count(session, state), grouping.num_ungrouped(session)
        shown = with_near(self.store, found[:limit], nearest)
        end = shown[-1].group_id if len(found) > limit else None
        return MissPage(tuple(shown), total, ungrouped, True, end)

    def read(self, group_id: int) -> MissDetails:
        """Gives a group with its questions and the facts near it. Raises `MissGroupNotFound`."""
        with self.store.sessions() as session:
            group = listing.group(session, group_id, self.show)
            questions = listing.asked_in(session, group_id, self.show)
        (near,) = with_near(self.store, [group], NEAR)
        return MissDetails(near, questions)

    def open_groups(self) -> int:
        """Counts the open groups."""
        with self.store.sessions() as session:
            return listing.count(session, "open") if self.store.settings.keep_answers else 0

    def group(self, on_done: Callable[[int, int], None] | None = None, *, most: int | None = None) -> int:
        """Gives new misses to groups, all or about so many, unless another process is at it; says how many it gave."""
        if not self.store.settings.keep_answers:
            return 0
        with self.store.sessions() as session:
            total = grouping.num_ungrouped(session)
            made = Grouping.begin(session) if total and not is_read_only(session) else None
        done = 0
        while made is not None and (most is None or done < most) and (some := self._some(made)):
            done += some
            if on_done is not None:
                on_done(done, max(total, done))
        return done

    def prune(self, older_than: timedelta) -> int:
        """Removes misses of longer ago with the outputs that said nothing, and says how many misses."""
        gone = 0
        while some := self._prune_some(older_than):
            gone += some
        return gone

    def dismiss(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        """Dismisses groups that are not this base's to answer; what is asked near them later joins them.

        Gives the change's number. Raises `MissGroupNotFound` or `MissGroupState`.
        """
        return self._decide(group_ids, "dismissed", actor, reason)

    def reopen(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        """Opens groups again. Gives and raises what `dismiss` does."""
        return self._decide(group_ids, "open", actor, reason)

    def solve(self, group_id: int, fact_id: int, *, anyway: bool = False, **who: Unpack[OnRecord]) -> Solving:
        """Asks the newest questions of a group again, and where all of them find the fact, or `anyway`, solves it.

        Raises `MissGroupNotFound`, `MissGroupState`, `FactNotFound` or `FactDeleted`.
        """
        audit.check_who(who["actor"], who["reason"])
        with self.store.sessions() as session:
            if listing.group(session, group_id, None).state == "solved":
                raise MissGroupState([group_id], "solved")
            mending.live_states(session, [fact_id])
            questions = listing.asked_in(session, group_id, None)
        asked = ask_again(self.store, self.asks, questions, fact_id)
        if not (anyway or (asked and all(one.found for one in asked))):
            return Solving(group_id, fact_id, False, None, asked)
        seq = self._decide([group_id], "solved", who["actor"], who["reason"], fact_id)
        return Solving(group_id, fact_id, True, seq, asked)

    @tried_again
    def _decide(
        self, group_ids: Sequence[int], state: MissState, actor: str, reason: str, fact_id: int | None = None
    ) -> int:
        with self.store.sessions.begin() as session:
            return decisions.decide(session, group_ids, state, actor, reason, fact_id=fact_id)

    @tried_again
    def _prune_some(self, older_than: timedelta) -> int:
        with self.store.sessions.begin() as session:
            return noting.prune(session, older_than)

    def _some(self, made: Grouping) -> int | None:
        with self.store.sessions.begin() as session:
            return made.some(session)

    def _group_some(self) -> None:
        """Groups some new misses, where that takes a moment; a worker has time for the rest."""
        with self.store.sessions() as session:
            if not grouping.num_ungrouped(session) or grouping.num_groups(session) > GROUPS_AT_ONCE:
                return
            made = None if is_read_only(session) else Grouping.begin(session)
        if made is not None:
            self._some(made)
