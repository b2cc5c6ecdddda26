"""Facts of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from colmlm.api.client.api import Api
from colmlm.api.client.only_there import options, refuse
from colmlm.api.wire.answers import CountedPage, EditResult, cursor, place_in
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, MAX_PAGE
from colmlm.kb.errors import InvalidValue
from colmlm.kb.facts.records import (
    FACTS_LISTED,
    Correcting,
    CorrectingOne,
    Correction,
    Edit,
    FactFound,
    FactPage,
    FactRecord,
    FactSearch,
    FactsSought,
    MarkedAddition,
    Marking,
    Moving,
    Proposing,
)

_STATES = {False: "live", True: "deleted", None: "all"}


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """The verbs of `api.nouns.contents.FactVerbs` over the API."""

    api: Api

    def find(self, **sought: Unpack[FactsSought]) -> list[FactRecord]:
        said = {"limit": FACTS_LISTED, **options(FactsSought, sought)}
        state = _STATES[said.pop("deleted", False)]
        return self.api.listed("/facts", FactRecord, "facts", state=state, literally=True, sort="id", **said)

    def search(self, *, near: str | None = None, **sought: Unpack[FactSearch]) -> FactPage:
        said = options(FactSearch, sought)
        limit, after = said.pop("limit", FACTS_LISTED), said.pop("after", 0)
        said = {**said, "near": near, "sort": said.pop("order", "best")}
        for name in ("since", "until"):
            said[name] = said[name].isoformat() if said.get(name) else None
        facts: list[FactFound] = []
        while True:
            page = self.api.get(
                "/facts",
                CountedPage[FactFound],
                **said,
                cursor=cursor("facts", (after,)) if after else None,
                limit=min(MAX_PAGE, limit - len(facts)),
            )
            facts += page.items
            after = place_in(page.next)[1] if page.next else None
            if after is None or len(facts) >= limit:
                return FactPage(tuple(facts), page.total, page.is_exact, after)

    def show(self, fact_id: int) -> FactRecord:
        return self.api.get(f"/facts/{fact_id}", FactRecord)

    def show_many(self, fact_ids: Sequence[int]) -> list[FactRecord]:
        pieces = (
            fact_ids[at : at + MAX_FACTS_PER_EDIT] for at in range(0, len(fact_ids), MAX_FACTS_PER_EDIT)
        )
        return [
            fact
            for ids in pieces
            for fact in self.api.ask("/facts/read", list[FactRecord], {"fact_ids": ids})
        ]

    def add(self, question: str, value: str, *, keyed: bool = True, **how: Unpack[Proposing]) -> Edit:
        refuse(no_key=not keyed)
        body = {"question": question, "value": value, **_on_behalf(options(Proposing, how))}
        return edit_of(self.api.edit("/facts", EditResult, body))

    def add_to(
        self, document_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[MarkedAddition]
    ) -> Edit:
        refuse(no_key=not keyed)
        return self._placed(f"/documents/{document_id}/facts", span, options(MarkedAddition, how))

    def edit(
        self,
        fact_id: int,
        value: str | None = None,
        *,
        keyed: bool = True,
        **how: Unpack[CorrectingOne],
    ) -> Edit:
        refuse(no_key=not keyed)
        body = {"value": value, **_on_behalf(options(CorrectingOne, how))}
        return edit_of(self.api.edit(f"/facts/{fact_id}", EditResult, body, method="PATCH"))

    def edit_many(
        self, corrections: Sequence[Correction], *, keyed: bool = True, **how: Unpack[Correcting]
    ) -> Edit:
        refuse(no_key=not keyed)
        if len(corrections) > MAX_FACTS_PER_EDIT:
            many = f"it holds {len(corrections)} facts, and a server edits {MAX_FACTS_PER_EDIT} in one change"
            raise InvalidValue("batch", many)
        body = {"facts": list(map(asdict, corrections)), **_on_behalf(options(Correcting, how))}
        return edit_of(self.api.edit("/facts/batch", EditResult, body, method="PATCH"))

    def move(self, fact_id: int, span: Marking, *, keyed: bool = True, **how: Unpack[Moving]) -> Edit:
        refuse(no_key=not keyed)
        return self._placed(f"/facts/{fact_id}/move", span, options(Moving, how))

    def undo(self, seq: int, *, keyed: bool = True, actor: str, reason: str) -> Edit:
        refuse(no_key=not keyed)
        body = {"on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit(f"/changes/{seq}/undo", EditResult, body))

    def _placed(self, path: str, span: Marking, said: dict[str, Any]) -> Edit:
        return edit_of(self.api.edit(path, EditResult, {**span, **_on_behalf(said)}))

    def delete(self, fact_ids: Sequence[int], *, actor: str, reason: str, abstain: bool = False) -> Edit:
        body = {"fact_ids": fact_ids, "on_behalf_of": actor or None, "reason": reason, "abstain": abstain}
        return edit_of(self.api.edit("/facts", EditResult, body, method="DELETE"))

    def restore(self, fact_ids: Sequence[int], *, actor: str, reason: str) -> Edit:
        body = {"fact_ids": fact_ids, "on_behalf_of": actor or None, "reason": reason}
        return edit_of(self.api.edit("/facts/restore", EditResult, body))


def _on_behalf(said: dict[str, Any]) -> dict[str, Any]:
    """Gives these options as the API takes them: the token is the actor, on behalf of who was named."""
    actor = said.pop("actor")
    return {**said, "on_behalf_of": actor or None}


def edit_of(done: EditResult) -> Edit:
    """Converts the response to an edit into the knowledge base's own record."""
    return Edit(done.seq, done.kind, tuple(done.fact_ids), done.keyed, tuple(done.also_said_by))
