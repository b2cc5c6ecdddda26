"""Facts: read and edit them. Every edit takes a reason, is one change in the log, and gives its seq."""

from __future__ import annotations

from typing import Annotated, Literal

from litestar import Response, delete, get, patch, post
from litestar.params import JSONBody, QueryParameter
from msgspec import Meta

from colmlm.api.door.auth import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, actor_of, keyed, result, settled, would_delete
from colmlm.api.routes.provenance import traced
from colmlm.api.schema.schemas import PathId, shown_to
from colmlm.api.wire.answers import EditResult
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, Id, Question, Request, Value, Version, Why
from colmlm.kb.evidence.provenance import of_fact
from colmlm.kb.evidence.records import FactTrace
from colmlm.kb.facts.records import FactRecord

State = Annotated[
    Literal["live", "deleted", "all"],
    QueryParameter(
        name="state", description="Which facts: the live ones, those that were deleted or erased, or both"
    ),
]
DELETED = {"live": False, "deleted": True, "all": None}


class NewFact(Why, frozen=True, kw_only=True):
    """A fact without a document, keyed from its question. Where it is `proposed`, somebody else is to accept it.

    `allow_erased` accepts one that was erased before, `anyway` one whose question another fact answers otherwise.
    """

    question: Question
    value: Value
    answer: Value | None = None
    proposed: bool = False
    allow_erased: bool = False
    anyway: bool = False


class NewValue(Why, frozen=True, kw_only=True):
    """The new value of a fact, its new question, or both. Null leaves either as it is.

    `anyway` accepts what another fact contradicts.
    """

    value: Value | None = None
    question: Question | None = None
    version: Version | None = None
    anyway: bool = False


class OneFact(Why, frozen=True, kw_only=True):
    """The reason for deleting a fact. With `abstain`, queries nearest to it get no match."""

    abstain: bool = False


class FactSet(Why, frozen=True, kw_only=True):
    """Facts to restore, all or none."""

    fact_ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class FactsToRead(Request, frozen=True, kw_only=True):
    """Facts by their ids, in the order in which they are answered."""

    fact_ids: Annotated[list[Id], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


class DeletedSet(FactSet, frozen=True, kw_only=True):
    """Facts to delete, all or none. With `abstain`, queries nearest to one get no match instead of the runner-up.

    A `dry_run` deletes nothing, and tells which other facts say the same.
    """

    abstain: bool = False
    dry_run: bool = False


@get("/facts/{fact_id:int}", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_fact(ports: FromPorts, request: WithToken, fact_id: PathId) -> FactRecord:
    """Read a fact.

    Gives its present state, deleted or not. Its earlier values need the right `audit`; `withheld` says that they were
    left out.
    """
    return shown_to(request, ports).fact(fact_id)


@post("/facts/read", status_code=200, opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_facts(ports: FromPorts, request: WithToken, data: JSONBody[FactsToRead]) -> list[FactRecord]:
    """Read many facts.

    In the order they are asked for, each as `GET /v1/facts/{fact_id}` reads it; all of them, or none.
    """
    return shown_to(request, ports).facts(ports.kb.facts.show_many(data.fact_ids))


@get("/facts/{fact_id:int}/trace", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def trace_fact(ports: FromPorts, request: WithToken, fact_id: PathId) -> Response[FactTrace]:
    """Read a fact's history.

    Gives its source sentence, every value it has had and when, its changes, and the stored outputs that used it.
    Without the right `audit`, its earlier values are masked. `Accept: application/ld+json` gives it in the terms of W3C
    PROV as JSON-LD, `application/provenance+json` as PROV-JSON.
    """
    return traced(ports, request, shown_to(request, ports).trace_fact(fact_id), of_fact)


@post("/facts", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def insert_fact(ports: FromPorts, request: WithToken, data: JSONBody[NewFact]) -> EditResult:
    """Add a fact that no document says.

    If the server has an encoder, lookups find it at once; otherwise `keyed` is false and it waits for a rekey. Where
    another fact answers its question otherwise it is refused with 409, which names that fact.
    """
    edit = ports.kb.facts.add(
        data.question,
        data.value,
        answer=data.answer,
        proposed=data.proposed,
        actor=actor_of(request, data),
        reason=data.reason,
        allow_erased=data.allow_erased,
        anyway=data.anyway,
    )
    return keyed(ports, edit)


@patch("/facts/{fact_id:int}", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def update_fact(
    ports: FromPorts, request: WithToken, fact_id: PathId, data: JSONBody[NewValue]
) -> EditResult:
    """Edit a fact's value or question.

    Every process uses the new value from this commit on, and no longer finds the fact by its former question. The text
    of the fact's document does not change.
    """
    actor = actor_of(request, data)
    edit = ports.kb.facts.edit(
        fact_id,
        data.value,
        question=data.question,
        version=data.version,
        actor=actor,
        reason=data.reason,
        anyway=data.anyway,
    )
    return settled(ports, edit)


@delete("/facts", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def delete_facts(ports: FromPorts, request: WithToken, data: JSONBody[DeletedSet]) -> EditResult:
    """Delete facts.

    All of them or none. The deletion takes effect at once in every process, and can be undone.
    """
    if data.dry_run:
        return would_delete(ports, data.fact_ids)
    actor = actor_of(request, data)
    return result(ports.kb.facts.delete(data.fact_ids, actor=actor, reason=data.reason, abstain=data.abstain))


@delete(
    "/facts/{fact_id:int}", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True
)
def delete_fact(ports: FromPorts, request: WithToken, fact_id: PathId, data: JSONBody[OneFact]) -> EditResult:
    """Delete one fact.

    The deletion takes effect at once in every process, and can be undone.
    """
    actor = actor_of(request, data)
    return result(ports.kb.facts.delete([fact_id], actor=actor, reason=data.reason, abstain=data.abstain))


@post("/facts/restore", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def restore_facts(ports: FromPorts, request: WithToken, data: JSONBody[FactSet]) -> EditResult:
    """Bring deleted facts back.

    All of them or none, with their last values.
    """
    edit = ports.kb.facts.restore(data.fact_ids, actor=actor_of(request, data), reason=data.reason)
    return keyed(ports, edit)  # a keyset made while they were deleted lacks their keys
