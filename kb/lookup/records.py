"""What lookups find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer of a lookup: a live fact and its exact inner product with the query."""

    fact_id: int
    version: int
    value: str
    score: float
    key_id: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """What one query gave: `hits` best first, all at or above `threshold`; empty is *no match*.

    `runner_up` is the best score of any live fact, also below the threshold (None in an empty base);
    `seq` is the last change the index had applied. `abstained` is the forgotten fact that the query
    points at, where it was forgotten with the policy "abstain": then there are no hits.
    """

    hits: tuple[Hit, ...]
    runner_up: float | None
    threshold: float
    seq: int
    abstained: int | None = None


@dataclass(frozen=True, slots=True)
class AsOfLookup(Lookup):
    """What a query would have found as of change `seq`.

    `redacted` facts were live then and are erased now; `unkeyed` ones were live then without a key that is still there:
    they were not keyed yet, or lost it since, as a later ingest changed the text before them. Any of these may be
    missing from the hits; all else is as it was.
    """

    redacted: int = 0
    unkeyed: int = 0
