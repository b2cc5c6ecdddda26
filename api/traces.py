"""Traces: from a fact to its source and to the outputs that used it, and the log of changes."""

from __future__ import annotations

from litestar import get

from api.errors import PROBLEMS
from api.ports import FromPorts
from api.rights import Right, needs
from api.schemas import After, Changes, Limit, PathId
from kb.records import FactTrace, KeysetRecord


@get("/facts/{fact_id:int}/trace", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def trace_fact(ports: FromPorts, fact_id: PathId) -> FactTrace:
    """A fact's source, its versions, its changes, and every stored output that used it."""
    return ports.kb.trace_fact(fact_id)


@get("/changes", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def list_changes(ports: FromPorts, after: After = 0, limit: Limit = 100) -> Changes:
    """Changes past seq `after`, oldest first."""
    return Changes(head_seq=ports.kb.head_seq(), changes=ports.kb.changes(after=after, limit=limit))


@get("/keysets", opt=needs(Right.read), responses=PROBLEMS, sync_to_thread=True)
def list_keysets(ports: FromPorts) -> list[KeysetRecord]:
    """Every checkpoint's keys; at most one keyset is active."""
    return ports.kb.keysets()
