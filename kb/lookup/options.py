"""The options of lookups and of answers: as callers give them, and in full with their defaults.

A `FactFilter` says which facts may be found. It is passed from the caller to the SQL statements that decide, and its
conditions in these are defined here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol, TypedDict, cast

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from colmlm.kb.errors import InvalidQuery, refusals
from colmlm.kb.principal import scope_of_caller

MAX_K = 1000
KEY, WORDS, READER = "key", "words", "reader"
RANKINGS = (KEY, WORDS, READER)
NEAREST = 200  # facts that a search by meaning gives


class FilterOptions(TypedDict, total=False):
    """Choose which facts are found. With `accepted_only` no proposed ones are; the active keyset or a fact's corpus may
    demand the same. Where `corpora` are named, only facts in their documents are found.
    """

    accepted_only: bool
    corpora: tuple[str, ...]


class LookupOptions(FilterOptions, total=False):
    """Choose what a lookup is asked for: the `k` best facts (1), at or above the `threshold` (None: the keyset's own).

    `min_seq` is the seq of an edit that the answer must include. `ranking` is the way in which facts are found: "key"
    (the default), "words" or "reader". The latter two, of `kb.answers.ranked`, need one of the `texts` for each query.
    """

    k: int
    threshold: float | None
    min_seq: int | None
    ranking: str
    texts: Sequence[str]


class AnswerOptions(FilterOptions, total=False):
    """Choose how a question is answered: from which score on, with how many passages, and by which facts.

    `threshold` is the least probability that a span is right, and that of passages moves with it. In the mode "paper"
    it is a cosine. None is the threshold that this base was calibrated to, or else the fitted one. `nearest` passages
    (3) come with the answer.
    """

    threshold: float | None
    nearest: int


AcceptedOnly = Annotated[
    bool,
    Meta(
        description="Find no fact that is only proposed, as where the active keyset or the corpus of the fact says so"
    ),
]

CorporaNames = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=1000)], ...],
    Meta(max_length=100, description="Only documents of these corpora answer; 404 for one that is none"),
]


@dataclass(frozen=True, slots=True)
class FactFilter:
    """Choose which facts may be found. `accepted_only` None, for people who curate or forget, lets proposed facts pass
    even where lookups find accepted ones only. The facts `without` are passed over, as if they had no keys. Where
    `corpora` are named, only facts in their documents are found.
    """

    accepted_only: bool | None = False
    without: frozenset[int] = frozenset()
    corpora: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the SQL conditions below. Raises `RuntimeError` where it exceeds the caller's scope."""
        scope = scope_of_caller()
        if scope is not None and not (self.corpora and set(self.corpora) <= set(scope)):
            raise RuntimeError("a filter of facts is wider than the scope of the caller")
        return {"accepted_only": self.accepted_only, "corpora": list(self.corpora) or None}

    def of_past(self) -> FactFilter:
        """Give this filter for a lookup as of a past change. Raises `InvalidQuery` where it has `accepted_only`."""
        if self.accepted_only:
            raise InvalidQuery("--accepted-only (accepted_only) has no effect on the past. Leave it out")
        return replace(self, accepted_only=None)


def limit_corpora(named: Iterable[str]) -> tuple[str, ...]:
    """Give the corpora that this context's caller searches: the `named` ones, or without any all in the caller's scope.

    Raises `CorpusNotFound` for one outside the scope, as for one that does not exist. An empty result means all.
    """
    scope, corpora = scope_of_caller(), tuple(named)
    if scope is None:
        return corpora
    for corpus in corpora:
        if corpus not in scope:
            raise refusals.corpus_not_found(corpus)
    return corpora or scope


USUAL_FACTS, EVERY_FACT = FactFilter(), FactFilter(accepted_only=None)


def every_fact_in_scope() -> FactFilter:
    """Give the filter that lets every fact in the scope of this context's caller pass, also proposed ones."""
    return replace(EVERY_FACT, corpora=limit_corpora(()))


class FilteredOptions(LookupOptions, total=False):
    """The options of a lookup from within the program, which may give a whole `FactFilter`."""

    fact_filter: FactFilter


class FullAnswerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All `AnswerOptions`, with defaults, and with the bounds that a request's fields have."""

    threshold: Annotated[float, Meta(ge=-1, le=1)] | None = None
    nearest: Annotated[int, Meta(ge=0, le=10)] = 3
    accepted_only: AcceptedOnly = False
    corpora: CorporaNames = ()

    def __post_init__(self) -> None:
        force_setattr(self, "corpora", limit_corpora(self.corpora))

    @property
    def options(self) -> AnswerOptions:
        return cast(
            "AnswerOptions", {name: getattr(self, name) for name in FullAnswerOptions.__struct_fields__}
        )

    @property
    def fact_filter(self) -> FactFilter:
        return FactFilter(self.accepted_only, corpora=tuple(self.corpora))


@dataclass(frozen=True, slots=True)
class FullLookupOptions:
    """All options of one lookup by keys, with defaults. Raises `InvalidQuery` where they contradict each other."""

    k: int = 1
    threshold: float | None = None
    min_seq: int | None = None
    ranking: str = KEY
    texts: Sequence[str] = ()
    fact_filter: FactFilter = USUAL_FACTS

    @classmethod
    def from_options(cls, options: FilteredOptions | LookupOptions) -> FullLookupOptions:
        given: dict[str, Any] = {**options}
        corpora = limit_corpora(given.pop("corpora", ()))
        asked = FactFilter(given.pop("accepted_only", False), corpora=corpora)
        return cls(**{"fact_filter": asked, **given})

    def __post_init__(self) -> None:
        if self.ranking != KEY:
            raise InvalidQuery(
                f"this lookup finds facts by key alone, not by {self.ranking!r}. Leave the ranking out"
            )
        if not 1 <= self.k <= MAX_K:
            raise InvalidQuery(f"k is {self.k}, but must be between 1 and {MAX_K}")
        if self.threshold is not None and not -1 <= self.threshold <= 1:
            raise InvalidQuery(f"the threshold {self.threshold} is not a cosine, from -1 to 1")


class AskedOfFacts(Protocol):
    """A request, or the record of one, with the filter of the facts that it may find."""

    @property
    def accepted_only(self) -> bool: ...
    @property
    def corpora(self) -> Sequence[str]: ...


def filter_of(asked: AskedOfFacts) -> FilterOptions:
    """Give the filter options of a request, to repeat the request or to store them with its result."""
    return {"accepted_only": asked.accepted_only, "corpora": tuple(asked.corpora)}


def filter_note(asked: AskedOfFacts) -> str:
    """Describe the filter of a request, such as "accepted facts only, corpora a, b"; give "" where it has none."""
    of_corpora = f"corpora {', '.join(asked.corpora)}" if asked.corpora else ""
    return ", ".join(filter(None, ("accepted facts only" if asked.accepted_only else "", of_corpora)))


# Conditions (SQL) of the statements that decide, which take the `parameters` of a filter.
#
# A fact is left out where it is not accepted and only accepted facts are to be found: where `accepted_only` is true, or
# where it is false and the keyset, or the corpus of the fact, says so. Where it is NULL nothing is left out. What is
# outside of the `corpora` is as if it were not there; where these are NULL nothing is.


def _hidden_sql(asked: str, keyset: str) -> str:
    """Give the condition (SQL) that the fact `f` is left out, from what is `asked` and what the `keyset` demands."""
    condition = """
(f.review <> 'accepted' AND <asked> IS NOT NULL AND (<asked> OR <keyset> OR coalesce((
    SELECT r.accepted_only FROM corpus_review r
    WHERE r.corpus = (SELECT o.corpus FROM document o WHERE o.id = f.document_id)
), false)))
"""
    return condition.replace("<asked>", asked).replace("<keyset>", keyset)


def _inside_sql(corpora: str) -> str:
    """Give the condition (SQL) that the fact `f` stands in a document of these `corpora`, or that there are none."""
    condition = """
(<corpora> IS NULL OR EXISTS (
    SELECT FROM document o WHERE o.id = f.document_id AND o.corpus = ANY(<corpora>)
))
"""
    return condition.replace("<corpora>", corpora)


# The fact `f` is left out; of statements of SQLAlchemy.
HIDDEN = _hidden_sql(
    "CAST(:accepted_only AS boolean)",
    "EXISTS (SELECT 1 FROM keyset y WHERE y.state = 'active' AND y.accepted_only)",
)
# The sentence `s` of the document `d` is outside; of statements of SQLAlchemy.
OUTSIDE = "CAST(:corpora AS text[]) IS NOT NULL AND (d.corpus = ANY(CAST(:corpora AS text[]))) IS NOT TRUE"
# The fact `f` is inside; of statements of SQLAlchemy.
INSIDE = _inside_sql("CAST(:corpora AS text[])")
_INSIDE_OF_DRIVER = _inside_sql("%(corpora)s::text[]")
# The key `k` of the fact `f`, whose live version is `v`, may be found, or hides others as that of a tombstone; of
# statements of the driver, which know the keyset as `active`.
FOUND_BY_KEY = """
CASE
    WHEN v.version IS NULL THEN (SELECT true FROM tombstone t WHERE t.fact_id = k.fact_id) ELSE NOT <hidden>
END AND <inside>
""".replace("<hidden>", _hidden_sql("%(accepted_only)s::boolean", "active.accepted_only")).replace(
    "<inside>", _INSIDE_OF_DRIVER
)
# The same of the past: `v` is the version of then, and `abstaining` has the tombstones of then.
FOUND_BY_KEY_THEN = """
(v.fact_id IS NOT NULL OR k.fact_id IN (SELECT fact_id FROM abstaining)) AND <inside>
""".replace("<inside>", _INSIDE_OF_DRIVER)
