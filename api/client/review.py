"""The review of facts of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Unpack

from colmlm.api.client.api import Api
from colmlm.api.client.facts import edit_of
from colmlm.api.client.only_there import options
from colmlm.api.wire.answers import EditResult, InboxPage, VerdictResult, cursor, place_in
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, MAX_PAGE
from colmlm.kb.facts.records import Edit
from colmlm.kb.facts.reviews import ReviewVerdict, Settled
from colmlm.kb.log.records import OnRecord
from colmlm.kb.review.records import IN_INBOX, Inbox, InboxItem, InboxSought


@dataclass(frozen=True, slots=True)
class RemoteReview:
    """The verbs of `api.nouns.review.ReviewVerbs` over the API."""

    api: Api

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox:
        said = options(InboxSought, sought)
        limit, after = said.pop("limit", IN_INBOX), said.pop("after", 0)
        items: list[InboxItem] = []
        while True:
            page = self.api.get(
                "/review",
                InboxPage,
                **said,
                cursor=cursor("review", (after,)) if after else None,
                limit=min(MAX_PAGE, limit - len(items)),
            )
            items += page.items
            after = place_in(page.next)[1] if page.next else None
            if after is None or len(items) >= limit:
                return Inbox(tuple(items), page.total, page.is_exact, after, page.progress)

    def settle(self, judged: Sequence[ReviewVerdict], *, actor: str, reason: str) -> Settled:
        """Settles as many verdicts at once as a server takes; of more it makes several requests."""
        done = Settled((), (), ())
        for at in range(0, max(1, len(judged)), MAX_FACTS_PER_EDIT):
            part = [asdict(one) for one in judged[at : at + MAX_FACTS_PER_EDIT]]
            body = {"verdicts": part, "on_behalf_of": actor or None, "reason": reason}
            told = self.api.edit("/review/verdicts", VerdictResult, body)
            done = Settled(
                (*done.seqs, *told.seqs), (*done.fact_ids, *told.fact_ids), (*done.before, *told.before)
            )
        return done

    def limit(
        self,
        *,
        accepted_only: bool,
        corpus: str | None = None,
        keyset_id: int | None = None,
        **who: Unpack[OnRecord],
    ) -> Edit:
        body = {
            "accepted_only": accepted_only,
            "corpus": corpus,
            "keyset_id": keyset_id,
            "reason": who["reason"],
        }
        body["on_behalf_of"] = who["actor"] or None
        return edit_of(self.api.edit("/review/limits", EditResult, body))
