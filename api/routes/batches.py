"""Batches: add or edit many facts in one change, all or none."""

from __future__ import annotations

from typing import Annotated

from litestar import patch, post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.auth import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, actor_of, keyed, settled
from colmlm.api.wire.answers import EditResult
from colmlm.api.wire.requests import MAX_FACTS_PER_EDIT, Id, Question, Request, Value, Version, Why
from colmlm.kb.facts.records import Correction, FactDraft


class Draft(Request, frozen=True, kw_only=True):
    """A fact without a document, keyed from its question."""

    question: Question
    value: Value
    answer: Value | None = None


class NewFacts(Why, frozen=True, kw_only=True):
    """Facts to add.

    `allow_erased` accepts facts that were erased before, `anyway` facts that contradict others.
    """

    facts: Annotated[list[Draft], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]
    allow_erased: bool = False
    anyway: bool = False


class Corrected(Request, frozen=True, kw_only=True):
    """The new value of a fact, its new question, or both. Null leaves either as it is."""

    fact_id: Id
    value: Value | None = None
    question: Question | None = None
    version: Version | None = None


class NewValues(Why, frozen=True, kw_only=True):
    """Facts to edit. A fact may be named only once. `anyway` accepts what other facts contradict."""

    facts: Annotated[list[Corrected], Meta(min_length=1, max_length=MAX_FACTS_PER_EDIT)]
    anyway: bool = False


@post("/facts/batch", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def insert_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewFacts]) -> EditResult:
    """Add many facts.

    All facts are added in one change, or none; `fact_ids` are in the order of the request.
    """
    drafts = [FactDraft(draft.question, draft.value, draft.answer) for draft in data.facts]
    edit = ports.kb.facts.add_many(
        drafts,
        actor=actor_of(request, data),
        reason=data.reason,
        allow_erased=data.allow_erased,
        anyway=data.anyway,
    )
    return keyed(ports, edit)


@patch("/facts/batch", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def update_facts(ports: FromPorts, request: WithToken, data: JSONBody[NewValues]) -> EditResult:
    """Edit many facts.

    All facts get their new values and questions in one change, or none.
    """
    corrections = [Correction(one.fact_id, one.value, one.question, one.version) for one in data.facts]
    edit = ports.kb.facts.edit_many(
        corrections, actor=actor_of(request, data), reason=data.reason, anyway=data.anyway
    )
    return settled(ports, edit)
