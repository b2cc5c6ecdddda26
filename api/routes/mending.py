"""Mending: mark facts in documents, move their spans, and undo edits. Each is one change in the log."""

from __future__ import annotations

from typing import Annotated

from litestar import post
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.door.auth import Right, needs
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, actor_of, keyed, settled
from colmlm.api.schema.schemas import PathId
from colmlm.api.wire.answers import EditResult
from colmlm.api.wire.requests import Question, Value, Version, Why
from colmlm.kb.facts.records import Marking

Offset = Annotated[int, Meta(ge=0, le=2**31 - 1, description="In Unicode code points of the document's text")]


class Span(Why, frozen=True, kw_only=True):
    """A stretch of a document: its offsets; or its exact text, which must be there once; or both, which must agree.

    `allow_erased` accepts one whose fact was erased before, `anyway` one whose question another fact answers otherwise.
    """

    start: Offset | None = None
    end: Offset | None = None
    text: Value | None = None
    allow_erased: bool = False
    anyway: bool = False

    @property
    def marking(self) -> Marking:
        return {"start": self.start, "end": self.end, "text": self.text}


class NewMark(Span, frozen=True, kw_only=True):
    """A fact to add to a document, whose words at the span are its value."""

    question: Question | None = None
    answer: Value | None = None


@post("/documents/{document_id:int}/facts", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def mark_fact(
    ports: FromPorts, request: WithToken, document_id: PathId, data: JSONBody[NewMark]
) -> EditResult:
    """Add a fact to a document.

    Its value is what the document says at the span, which may overlap no other fact. If the server has an encoder,
    lookups find it at once.
    """
    edit = ports.kb.facts.add_to(
        document_id,
        data.marking,
        question=data.question,
        answer=data.answer,
        actor=actor_of(request, data),
        reason=data.reason,
        allow_erased=data.allow_erased,
        anyway=data.anyway,
    )
    return keyed(ports, edit)


class NewPlace(Span, frozen=True, kw_only=True):
    """Where to move the span of a fact, also with the `question` that it answers from then on."""

    question: Question | None = None
    version: Version | None = None


@post(
    "/facts/{fact_id:int}/move",
    status_code=200,
    opt=needs(Right.edit),
    responses=PROBLEMS,
    sync_to_thread=True,
)
def move_fact(ports: FromPorts, request: WithToken, fact_id: PathId, data: JSONBody[NewPlace]) -> EditResult:
    """Move a fact's span.

    Within its document, whose words there become its value. Where it stood before stays in its history.
    """
    edit = ports.kb.facts.move(
        fact_id,
        data.marking,
        actor=actor_of(request, data),
        reason=data.reason,
        allow_erased=data.allow_erased,
        question=data.question,
        version=data.version,
        anyway=data.anyway,
    )
    return settled(ports, edit)


@post(
    "/changes/{seq:int}/undo", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True
)
def undo_change(ports: FromPorts, request: WithToken, seq: PathId, data: JSONBody[Why]) -> EditResult:
    """Undo an edit of facts.

    Takes back what one insert, update, move, delete, restore, verdict or note that both hold did, all of it; refused
    where one of its facts was edited since.
    """
    edit = ports.kb.facts.undo(seq, actor=actor_of(request, data), reason=data.reason)
    # What is restored may lack keys of a keyset that was made meanwhile.
    return keyed(ports, edit) if edit.kind == "restore" else settled(ports, edit)
