"""Comparisons of the facts of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Unpack

from colmlm.api.client.api import Api
from colmlm.api.client.facts import edit_of
from colmlm.api.client.only_there import options
from colmlm.api.wire.answers import CountedPage, EditResult, cursor, place_in
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, MAX_PAGE
from colmlm.kb.facts.compared import (
    AlsoSaid,
    ComparedCounts,
    ComparedPart,
    FactPair,
    Kind,
    PairPage,
    PairsSought,
    StaleFact,
    StalePage,
)
from colmlm.kb.facts.records import FACTS_LISTED, Edit
from colmlm.kb.log.records import OnRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RemoteComparisons:
    """The verbs of `api.nouns.comparing.ComparisonVerbs` over the API."""

    api: Api

    def pairs(self, kind: Kind, **sought: Unpack[PairsSought]) -> PairPage:
        pairs, total, is_exact, after = self._part(kind, FactPair, options(PairsSought, sought))
        return PairPage(tuple(pairs), total, is_exact, after)

    def stale(self, **part: Unpack[ComparedPart]) -> StalePage:
        facts, total, is_exact, after = self._part("stale", StaleFact, options(ComparedPart, part))
        return StalePage(tuple(facts), total, is_exact, after)

    def _part(self, of: str, kind: type[T], said: dict[str, Any]) -> tuple[list[T], int, bool, int | None]:
        """Reads a part of a list page by page, with its counts and where the next part begins."""
        path, limit, after = f"/facts/{of}", said.pop("limit", FACTS_LISTED), said.pop("after", 0)
        items: list[T] = []
        while True:
            at, size = cursor(of, (after,)) if after else None, min(MAX_PAGE, limit - len(items))
            page: CountedPage[T] = self.api.get(path, CountedPage[kind], **said, cursor=at, limit=size)  # type: ignore[valid-type]
            items += page.items
            after = place_in(page.next)[1] if page.next else None
            if after is None or len(items) >= limit:
                return items, page.total, page.is_exact, after

    def counts(self) -> ComparedCounts:
        return self.api.get("/facts/compared", ComparedCounts)

    def also_said(self, fact_ids: Sequence[int]) -> list[AlsoSaid]:
        pieces = (
            fact_ids[at : at + MAX_FACTS_PER_EDIT] for at in range(0, len(fact_ids), MAX_FACTS_PER_EDIT)
        )
        return [
            said
            for ids in pieces
            for said in self.api.ask("/facts/also-said", list[AlsoSaid], {"fact_ids": ids})
        ]

    def hold(self, fact_id: int, other_id: int, *, holds: bool = True, **who: Unpack[OnRecord]) -> Edit:
        ids = [fact_id, other_id]
        body = {
            "fact_ids": ids,
            "holds": holds,
            "on_behalf_of": who["actor"] or None,
            "reason": who["reason"],
        }
        return edit_of(self.api.edit("/facts/hold", EditResult, body))
