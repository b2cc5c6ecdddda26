"""Comparisons: list facts that contradict, say the same or are stale, and note that both of two hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from litestar import get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from colmlm.api.door.auth import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, actor_of, result
from colmlm.api.routes.facts import FactsToRead
from colmlm.api.routes.searching import Corpus
from colmlm.api.schema.schemas import Cursor, Limit, after_of, shown_to
from colmlm.api.wire.answers import CountedPage, EditResult, T
from colmlm.api.wire.answers import cursor as cursor_after
from colmlm.api.wire.requests import Id, Why
from colmlm.kb.facts.compared import AlsoSaid, ComparedCounts, FactPair, PairPage, StaleFact, StalePage

Held = Annotated[
    bool, QueryParameter(description="Only those of which somebody said that both hold; else only the others")
]


class Holding(Why, frozen=True, kw_only=True):
    """Two facts that contradict each other, of which both hold; without `holds` that is taken back."""

    fact_ids: Annotated[list[Id], Meta(min_length=2, max_length=2)]
    holds: bool = True


@get("/facts/contradictions", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_contradictions(
    ports: FromPorts,
    request: WithToken,
    corpus: Corpus = None,
    held: Held = False,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> CountedPage[FactPair]:
    """List contradictions.

    Pairs of live facts that answer one question with two values, as edits and the job `compare` found them, counted up
    to 10,000. `answering` is the fact that answers.
    """
    after = after_of(cursor, "contradictions")
    found = shown_to(request, ports).pairs(
        "contradictions", corpus=corpus, held=held, after=after, limit=limit
    )
    return _page(found.pairs, found, "contradictions")


@get("/facts/duplicates", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_duplicates(
    ports: FromPorts, request: WithToken, corpus: Corpus = None, cursor: Cursor = None, limit: Limit = 50
) -> CountedPage[FactPair]:
    """List duplicates.

    Pairs of live facts that answer one question with the same value.
    """
    after = after_of(cursor, "duplicates")
    found = shown_to(request, ports).pairs("duplicates", corpus=corpus, after=after, limit=limit)
    return _page(found.pairs, found, "duplicates")


@get("/facts/stale", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_stale_facts(
    ports: FromPorts, request: WithToken, corpus: Corpus = None, cursor: Cursor = None, limit: Limit = 50
) -> CountedPage[StaleFact]:
    """List stale facts.

    Live facts whose document has a newer text: those restored since (`replaced`), or corrected before.
    """
    found = shown_to(request, ports).stale(corpus=corpus, after=after_of(cursor, "stale"), limit=limit)
    return _page(found.facts, found, "stale")


@get("/facts/compared", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def count_compared(ports: FromPorts) -> ComparedCounts:
    """Count contradictions, duplicates and stale facts.

    None of them is counted beyond 10,000.
    """
    return ports.kb.comparisons.counts()


@post("/facts/also-said", status_code=200, opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_also_said(ports: FromPorts, data: JSONBody[FactsToRead]) -> list[AlsoSaid]:
    """Read which other facts say the same.

    Of facts that may be deleted: those of them that others, which are not among them, say too.
    """
    return ports.kb.comparisons.also_said(data.fact_ids)


@post("/facts/hold", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def hold_both(ports: FromPorts, request: WithToken, data: JSONBody[Holding]) -> EditResult:
    """Note that both of two facts hold.

    They are no contradiction any more, until one of them is edited; the nearer one answers.
    """
    one, other = data.fact_ids
    edit = ports.kb.comparisons.hold(
        one, other, actor=actor_of(request, data), reason=data.reason, holds=data.holds
    )
    return result(edit)


def _page(items: Sequence[T], found: PairPage | StalePage, of: str) -> CountedPage[T]:
    end = None if found.next_after is None else cursor_after(of, (found.next_after,))
    return CountedPage(items=list(items), next=end, total=found.total, is_exact=found.is_exact)
