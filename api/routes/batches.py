"""Batches: add or correct many facts in one change, all or none."""

from __future__ import annotations

from typing import Annotated

from litestar import patch, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.rights import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, actor_of, keyed, result
from colmlm.api.wire.answers import EditResult
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, Id, Question, Request, Value, Why
from colmlm.kb.errors import InvalidValue
from colmlm.kb.facts.records import FactDraft


class Draft(Request, frozen=True, kw_only=True):
    """A fact without a document, keyed from its question."""

    question: Question
    value: Value
    answer: Value | None = None


class NewFacts(Why, frozen=True, kw_only=True):
    """Facts to add. `allow_erased` accepts facts that were erased before."""

    facts: Annotated[list[Draft], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]
    allow_erased: bool = False


class Correction(Request, frozen=True, kw_only=True):
    """The new value of a fact."""

    fact_id: Id
    value: Value


class NewValues(Why, frozen=True, kw_only=True):
    """Facts to correct. A fact may be named only once."""

    facts: Annotated[list[Correction], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]


@post("/facts/batch", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def insert_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewFacts]) -> EditResult:
    """Add many facts.

    All facts are added in one change, or none; `fact_ids` are in the order of the request.
    """
    drafts = [FactDraft(draft.question, draft.value, draft.answer) for draft in data.facts]
    edit = ports.kb.facts.add_many(
        drafts, actor=actor_of(request, data), reason=data.reason, allow_erased=data.allow_erased
    )
    return keyed(ports, edit)


@patch("/facts/batch", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def update_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewValues]) -> EditResult:
    """Correct many facts.

    All facts are corrected in one change, or none.
    """
    values = {correction.fact_id: correction.value for correction in data.facts}
    if len(values) < len(data.facts):
        raise InvalidValue("batch", "it names a fact twice")
    return result(ports.kb.facts.edit_many(values, actor=actor_of(request, data), reason=data.reason))
