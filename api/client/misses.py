"""Misses of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from colmlm.api.client.api import Api
from colmlm.api.client.only_there import options
from colmlm.api.wire.answers import Decided, MissList, cursor, place_in
from colmlm.api.wire.requests import MAX_PAGE
from colmlm.kb.log.records import OnRecord
from colmlm.kb.misses.records import MISSES_LISTED, MissDetails, MissGroup, MissPage, MissSearch, Solving


@dataclass(frozen=True, slots=True)
class RemoteMisses:
    """The verbs of `api.nouns.misses.MissVerbs` over the API."""

    api: Api

    def find(self, **sought: Unpack[MissSearch]) -> MissPage:
        said = options(MissSearch, sought)
        limit, after = said.pop("limit", MISSES_LISTED), said.pop("after", 0)
        said["sort"] = said.pop("order", None)
        groups: list[MissGroup] = []
        while True:
            page = self.api.get(
                "/misses",
                MissList,
                **said,
                cursor=cursor("misses", (after,)) if after else None,
                limit=min(MAX_PAGE, limit - len(groups)),
            )
            groups += page.items
            end: int | None = place_in(page.next)[1] if page.next else None
            if end is None or len(groups) >= limit:
                return MissPage(tuple(groups), page.total, page.ungrouped, page.kept, end)
            after = end

    def read(self, group_id: int) -> MissDetails:
        return self.api.get(f"/misses/{group_id}", MissDetails)

    def dismiss(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        return self._decided("dismiss", group_ids, actor, reason)

    def reopen(self, group_ids: Sequence[int], *, actor: str, reason: str) -> int:
        return self._decided("reopen", group_ids, actor, reason)

    def _decided(self, what: str, group_ids: Sequence[int], actor: str, reason: str) -> int:
        body = {"group_ids": group_ids, "on_behalf_of": actor or None, "reason": reason}
        return self.api.edit(f"/misses/{what}", Decided, body).seq

    def solve(self, group_id: int, fact_id: int, *, anyway: bool = False, **who: Unpack[OnRecord]) -> Solving:
        body = {
            "fact_id": fact_id,
            "anyway": anyway,
            "on_behalf_of": who["actor"] or None,
            "reason": who["reason"],
        }
        return self.api.edit(f"/misses/{group_id}/solve", Solving, body)
