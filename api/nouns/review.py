"""The verbs of review."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

if TYPE_CHECKING:
    from colmlm.kb.facts.records import Edit
    from colmlm.kb.facts.reviews import ReviewVerdict, Settled
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.review.records import Inbox, InboxSought


class ReviewVerbs(Protocol):
    """What the review of facts can be asked for, as `kb.review.review.FactReview` describes it."""

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox: ...

    def settle(self, judged: Sequence[ReviewVerdict], *, actor: str, reason: str) -> Settled: ...

    def limit(
        self,
        *,
        accepted_only: bool,
        corpus: str | None = None,
        keyset_id: int | None = None,
        **who: Unpack[OnRecord],
    ) -> Edit: ...
