"""Misses: the work list of what was asked and found nothing, and what was decided about it."""

from __future__ import annotations

from typing import Annotated

from litestar import get, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from colmlm.api.middleware.auth import Limiter, Right, in_thread
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import Cursor, Limit, PathId, WithToken, after_of, shown_to
from colmlm.api.routes.responses import on_record
from colmlm.api.wire import MAX_FACTS_PER_EDIT, Decided, Id, MissList, Why
from colmlm.api.wire import cursor as cursor_of
from colmlm.kb.misses.listing import Asks
from colmlm.kb.misses.records import MISSES_LISTED, MissDetails, MissSort, MissState, Solving

Which = Annotated[MissState, QueryParameter(name="state", description="Which groups")]
Sort = Annotated[
    MissSort, QueryParameter(name="sort", description="By how often it was asked, or newest first")
]
Near = Annotated[int, QueryParameter(ge=0, le=10, description="How many facts to find near each group")]


class MissGroups(Why, frozen=True, kw_only=True):
    """Groups of misses, all or none."""

    group_ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class Solution(Why, frozen=True, kw_only=True):
    """The fact that a group's questions should find. `anyway` solves it by that fact where one of them does not."""

    fact_id: Id
    anyway: bool = False


@get("/misses", **in_thread(Right.read))
def list_misses(
    ports: FromPorts,
    request: WithToken,
    which: Which = "open",
    sort: Sort = "asked",
    nearest: Near = 3,
    cursor: Cursor = None,
    limit: Limit = MISSES_LISTED,
) -> MissList:
    """List what was missed.

    In groups of questions that are near one another, each with the live facts nearest to it. `ungrouped` misses are in
    no group yet.
    """
    after = after_of(cursor, "misses")
    page = (
        shown_to(request, ports)
        .misses()
        .find(state=which, sort=sort, after=after, limit=limit, nearest=nearest)
    )
    return MissList(
        items=list(page.groups),
        next=None if page.next_after is None else cursor_of("misses", (page.next_after,)),
        total=page.total,
        ungrouped=page.ungrouped,
        kept=page.kept,
    )


@get("/misses/{group_id:int}", **in_thread(Right.read))
def read_misses(ports: FromPorts, request: WithToken, group_id: PathId) -> MissDetails:
    """Read a group of misses.

    With its different questions, newest first. Without the right `audit`, values that facts no longer have are masked.
    """
    return shown_to(request, ports).misses().read(group_id)


@post("/misses/dismiss", status_code=200, **in_thread(Right.edit))
def dismiss_misses(ports: FromPorts, request: WithToken, data: JSONBody[MissGroups]) -> Decided:
    """Dismiss misses.

    They are not this base's to answer. What is asked near them later is dismissed with them.
    """
    return Decided(seq=ports.kb.misses.dismiss(data.group_ids, **on_record(request, data)))


@post("/misses/reopen", status_code=200, **in_thread(Right.edit))
def reopen_misses(ports: FromPorts, request: WithToken, data: JSONBody[MissGroups]) -> Decided:
    """Open misses again.

    Those that were dismissed or solved.
    """
    return Decided(seq=ports.kb.misses.reopen(data.group_ids, **on_record(request, data)))


@post("/misses/{group_id:int}/solve", status_code=200, **in_thread(Right.edit, Limiter.reading))
def solve_misses(ports: FromPorts, request: WithToken, group_id: PathId, data: JSONBody[Solution]) -> Solving:
    """Solve misses by a fact.

    Asks the newest five questions of the group again. Where all of them find the fact, or with `anyway`, it is solved.
    """
    misses = ports.kb.caller_view(past=True).misses(asks_of(ports))
    return misses.solve(group_id, data.fact_id, anyway=data.anyway, **on_record(request, data))


def asks_of(ports: Ports) -> Asks | None:
    """Give a function that answers questions without storing the answers; None if no reader is loaded."""
    return None if ports.answers is None else ports.answers.answering.ids_of_answer


HANDLERS = (
    list_misses,
    read_misses,
    dismiss_misses,
    reopen_misses,
    solve_misses,
)
