"""Review: proposed facts are listed and judged; a corpus or a keyset may let only accepted ones answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from colmlm.kb.facts import verdicts
from colmlm.kb.facts.records import Edit
from colmlm.kb.facts.reviews import ReviewVerdict, Settled
from colmlm.kb.log.records import OnRecord
from colmlm.kb.review import limits
from colmlm.kb.review.inbox import inbox, progress
from colmlm.kb.review.records import Inbox, InboxSought, ReviewProgress
from colmlm.kb.store.contention import tried_again
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class FactReview:
    """The review of the facts of a store."""

    store: Store

    def inbox(self, **sought: Unpack[InboxSought]) -> Inbox:
        """Gives proposed facts, those first where most is at stake. Raises `CorpusNotFound`."""
        with self.store.sessions() as session:
            return inbox(session, **sought)

    def progress(self, *, corpus: str | None = None, document_id: int | None = None) -> ReviewProgress:
        """Counts what is proposed and what was settled, of a corpus or document or of all."""
        with self.store.sessions() as session:
            return progress(session, corpus, document_id)

    @tried_again
    def settle(self, judged: Sequence[ReviewVerdict], *, actor: str, reason: str) -> Settled:
        """Carries out verdicts, each kind in one change; those that no longer fit their facts are named instead.

        Raises `FactNotFound`, or `InvalidValue` where there is none or a fact has two.
        """
        with self.store.edits.begin() as session:
            return verdicts.settle(session, judged, actor, reason)

    @tried_again
    def limit(
        self,
        *,
        accepted_only: bool,
        corpus: str | None = None,
        keyset_id: int | None = None,
        **who: Unpack[OnRecord],
    ) -> Edit:
        """Lets only accepted facts of a corpus, or in a keyset, answer from this commit on, or again proposed ones too.

        Raises `CorpusNotFound`, `KeysetNotFound` or `InvalidValue`.
        """
        with self.store.sessions.begin() as session:
            return limits.limit(
                session, corpus, keyset_id, who["actor"], who["reason"], accepted_only=accepted_only
            )
