"""Facts: read and edit. Every edit takes a reason, is one change in the log, and gives its seq."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, patch, post
from litestar.params import JSONBody, QueryParameter

from api.errors import PROBLEMS
from api.ports import FromPorts, Ports
from api.rights import Right, needs
from api.schemas import After, EditResult, FactSet, Limit, NewFact, NewValue, OneFact, PathId
from kb.access import ApiKeyRecord
from kb.errors import InvalidQuery
from kb.records import Edit, FactRecord

MAX_KEYED_AT_ONCE = 256  # more is a rekey's work, not a request's

Text = Annotated[
    str | None, QueryParameter(max_length=1000, description="Found in the value or the question")
]
Corpus = Annotated[str | None, QueryParameter(max_length=1000)]
Deleted = Annotated[bool, QueryParameter(description="The deleted facts instead of the live ones")]
WithKey = Request[ApiKeyRecord, Any, Any]


@get("/facts", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_facts(
    ports: FromPorts,
    corpus: Corpus = None,
    text: Text = None,
    deleted: Deleted = False,
    after: After = 0,
    limit: Limit = 50,
) -> list[FactRecord]:
    """Facts by id. Pass the last id as `after` for the next page."""
    if text is not None and "\x00" in text:
        raise InvalidQuery("a text holds no NUL character")
    return ports.kb.facts(corpus=corpus, text=text, deleted=deleted, after=after, limit=limit)


@get("/facts/{fact_id:int}", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def read_fact(ports: FromPorts, fact_id: PathId) -> FactRecord:
    """A fact as it stands, deleted or not."""
    return ports.kb.fact(fact_id)


@post("/facts", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def insert_fact(ports: FromPorts, request: WithKey, data: JSONBody[NewFact]) -> EditResult:
    """Add a fact that no document says. With an encoder it can be looked up at once."""
    edit = ports.kb.insert(
        data.question,
        data.value,
        answer=data.answer,
        actor=data.actor or request.user.name,
        reason=data.reason,
    )
    return _keyed(ports, edit)


@patch("/facts/{fact_id:int}", opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def update_fact(ports: FromPorts, request: WithKey, fact_id: PathId, data: JSONBody[NewValue]) -> EditResult:
    """Give a live fact another value. Its document keeps saying what it said."""
    actor = data.actor or request.user.name
    return _result(ports.kb.update(fact_id, data.value, actor=actor, reason=data.reason))


@delete("/facts", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def delete_facts(ports: FromPorts, request: WithKey, data: JSONBody[FactSet]) -> EditResult:
    """Delete these facts, all or none. It holds from now on in every process, and can be undone."""
    actor = data.actor or request.user.name
    return _result(ports.kb.delete(data.fact_ids, actor=actor, reason=data.reason))


@delete(
    "/facts/{fact_id:int}", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True
)
def delete_fact(ports: FromPorts, request: WithKey, fact_id: PathId, data: JSONBody[OneFact]) -> EditResult:
    """Delete one fact."""
    actor = data.actor or request.user.name
    return _result(ports.kb.delete([fact_id], actor=actor, reason=data.reason))


@post("/facts/restore", status_code=200, opt=needs(Right.edit), responses=PROBLEMS, sync_to_thread=True)
def restore_facts(ports: FromPorts, request: WithKey, data: JSONBody[FactSet]) -> EditResult:
    """Bring deleted facts back with the values they had last, all or none."""
    actor = data.actor or request.user.name
    edit = ports.kb.restore(data.fact_ids, actor=actor, reason=data.reason)
    return _keyed(ports, edit)  # a keyset made while they were gone has no key of them


def _result(edit: Edit, *, min_seq: int | None = None, keyed: bool = True) -> EditResult:
    return EditResult(
        seq=edit.seq, min_seq=min_seq or edit.seq, kind=edit.kind, fact_ids=list(edit.fact_ids), keyed=keyed
    )


def _keyed(ports: Ports, edit: Edit) -> EditResult:
    if not key_at_once(ports):
        return _result(edit, keyed=False)
    return _result(edit, min_seq=ports.kb.head_seq())


def key_at_once(ports: Ports) -> bool:
    """Key what an edit left without a key; False where there is no encoder, or a whole corpus's backlog."""
    if ports.encoder is None or _backlog(ports, ports.encoder.checkpoint.checkpoint_id) > MAX_KEYED_AT_ONCE:
        return False
    ports.kb.rekey(ports.encoder)
    return True


def _backlog(ports: Ports, checkpoint_id: str) -> int:
    for keyset in ports.kb.keysets():
        if keyset.checkpoint_id == checkpoint_id and keyset.state != "retired":
            return keyset.num_unkeyed
    return len(ports.kb.facts(limit=MAX_KEYED_AT_ONCE + 1))
