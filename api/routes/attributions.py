"""Attributions and impact: which facts stored outputs spliced, and what has happened to those facts since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import get, post
from litestar.params import JSONBody, QueryParameter

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.searching import OfDocument
from colmlm.api.schema.schemas import Cursor, Limit, PathId, SelectorParts, page, place_of
from colmlm.api.wire.answers import FactImpact, Page
from colmlm.api.wire.requests import MAX_ID, Request
from colmlm.kb.evidence.outputs import AttributionRecord
from colmlm.kb.evidence.records import ImpactedOutput

OfFact = Annotated[int | None, QueryParameter(ge=1, le=MAX_ID, description="Only what spliced this fact")]
OfOutput = Annotated[int | None, QueryParameter(ge=1, le=MAX_ID, description="Only of this stored output")]


class Selection(Request, frozen=True, kw_only=True):
    """Live facts chosen by a selector."""

    selector: SelectorParts


@get("/attributions", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def list_attributions(
    ports: FromPorts,
    fact_id: OfFact = None,
    generation_id: OfOutput = None,
    document_id: OfDocument = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Page[AttributionRecord]:
    """List the lookups of stored outputs.

    The lookups that fit every filter, in order of output and of place in it.
    """
    output, ordinal = place_of(cursor, "attributions", 2)
    found = ports.kb.outputs.attributions(
        fact_id=fact_id,
        generation_id=generation_id,
        document_id=document_id,
        after=(output, ordinal),
        limit=limit + 1,
    )
    return page(found, limit, "attributions", lambda a: (a.generation_id, a.ordinal))


class SelectionImpact(msgspec.Struct, frozen=True, kw_only=True):
    """How many live facts a selector chose, how many outputs spliced one, and a page of the uses, oldest first."""

    num_facts: int
    num_outputs: int
    items: list[ImpactedOutput]
    next: str | None


@get("/facts/{fact_id:int}/impact", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def read_fact_impact(
    ports: FromPorts, fact_id: PathId, cursor: Cursor = None, limit: Limit = 50
) -> FactImpact:
    """Read what a fact was used for.

    Every place in stored outputs where the fact was spliced, with its version there and what has happened to it since.
    """
    output, ordinal = place_of(cursor, "uses", 2)
    found = ports.kb.outputs.impact(fact_id, after=(output, ordinal), limit=limit + 1)
    uses = _uses(found.outputs, limit)
    return FactImpact(
        fact_id=fact_id,
        is_live=found.is_live,
        erased_seq=found.erased_seq,
        items=uses.items,
        next=uses.next,
    )


@post(
    "/impact",
    status_code=200,
    opt=needs(Right.audit, Lane.long_reads),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def read_selection_impact(
    ports: FromPorts, data: JSONBody[Selection], cursor: Cursor = None, limit: Limit = 50
) -> SelectionImpact:
    """Read what a set of facts was used for.

    The same as for one fact, for all live facts that a selector chooses. Changes nothing.
    """
    output, ordinal = place_of(cursor, "uses", 2)
    selector = data.selector.selector()
    found = ports.kb.outputs.impact_of_selection(selector, after=(output, ordinal), limit=limit + 1)
    uses = _uses(found.outputs, limit)
    return SelectionImpact(
        num_facts=found.num_facts, num_outputs=found.num_outputs, items=uses.items, next=uses.next
    )


def _uses(found: Sequence[ImpactedOutput], limit: int) -> Page[ImpactedOutput]:
    return page(found, limit, "uses", lambda use: (use.generation_id, use.ordinal))
