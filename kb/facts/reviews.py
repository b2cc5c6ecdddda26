"""The reviews that facts have, and the records of verdicts on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colmlm.kb.corpus.format import REVIEWS as REVIEWS
from colmlm.kb.corpus.format import Review as Review

VerdictKind = Literal["accept", "reject", "propose"]
OUTCOMES: dict[VerdictKind, Review] = {"accept": "accepted", "reject": "rejected", "propose": "proposed"}


@dataclass(frozen=True, slots=True)
class ReviewVerdict:
    """A person's verdict on a fact, which counts where the fact still has the version and the review that it saw."""

    fact_id: int
    verdict: VerdictKind
    version: int
    review: Review = "proposed"

    def fits(self, version: int, review: Review, *, live: bool) -> bool:
        """Whether a fact that is like this is as it was judged, and not yet as the verdict would have it."""
        return live and (version, review) == (self.version, self.review) and review != OUTCOMES[self.verdict]


@dataclass(frozen=True, slots=True)
class SettledBefore:
    """A fact whose verdict was not carried out, as it is now: change `seq`, by `actor`, had settled or edited it."""

    fact_id: int
    verdict: VerdictKind
    version: int
    review: Review
    live: bool
    seq: int
    actor: str | None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of verdicts: their changes, the facts they settled, and those that others had settled `before`."""

    seqs: tuple[int, ...]
    fact_ids: tuple[int, ...]
    before: tuple[SettledBefore, ...]
