"""Keysets: which one answers lookups, their progress, and the switch from one to another."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import get, post, put
from litestar.params import JSONBody
from msgspec import Meta

from colmlm.api.middleware.auth import Right, in_thread
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.parameters import Cursor, Limit, PathId, WithToken, after_of, page
from colmlm.api.routes.responses import on_record
from colmlm.api.wire import MAX_ID, KeysetView, Page, Threshold, Why
from colmlm.kb.jobs.records import FileName
from colmlm.kb.keys.records import MAX_EDITS, GateStanding, KeysetRecord


class KeysetGate(msgspec.Struct, frozen=True, kw_only=True):
    """Record whether a keyset's gate still lets it be activated, and its last report (null: never checked); see
    docs/models/change-checkpoint.md.
    """

    standing: GateStanding
    report: dict[str, Any] | None


class Activation(Why, frozen=True, kw_only=True):
    """The reason for an activation. `force` activates without a passed gate, which the log records.

    `max_edits` is how many edits may have been made since the gate, which must have asked the set `questions` where one
    is named.
    """

    force: bool = False
    max_edits: Annotated[int, Meta(ge=0, le=MAX_ID)] = MAX_EDITS
    questions: FileName | None = None


class NewThreshold(Why, frozen=True, kw_only=True):
    """The score below which a lookup is no match."""

    threshold: Threshold


@get("/keysets", **in_thread(Right.read))
def list_keysets(ports: FromPorts, cursor: Cursor = None, limit: Limit = 50) -> Page[KeysetView]:
    """List the keysets.

    In order of id, with the retired ones; at most one is active. `num_unkeyed` facts still lack a key in it.
    """
    after = after_of(cursor, "keysets")
    found = [keyset for keyset in ports.kb.keysets.all() if keyset.keyset_id > after][: limit + 1]
    views = [_view(ports, keyset) for keyset in found]
    return page(views, limit, "keysets", lambda view: (view.keyset.keyset_id,))


@get("/keysets/{keyset_id:int}", **in_thread(Right.read))
def read_keyset(ports: FromPorts, keyset_id: PathId) -> KeysetView:
    """Read a keyset.

    Gives its state and progress: it has `num_keys` keys, and `num_unkeyed` facts still lack one.
    """
    return _view(ports, ports.kb.keysets.show(keyset_id))


@get("/keysets/{keyset_id:int}/gate", **in_thread(Right.read))
def read_gate(ports: FromPorts, keyset_id: PathId) -> KeysetGate:
    """Read a keyset's gate.

    Gives the report that decides whether it may be activated: each criterion with its figure and its limit.
    """
    retraining = ports.kb.keysets
    report = retraining.gate(keyset_id)
    return KeysetGate(standing=retraining.standing(keyset_id), report=report)


@post("/keysets/{keyset_id:int}/activate", status_code=200, **in_thread(Right.train))
def activate_keyset(
    ports: FromPorts, request: WithToken, keyset_id: PathId, data: JSONBody[Activation]
) -> KeysetRecord:
    """Let a keyset answer.

    Takes effect at commit in every process. Its gate must have passed recently. Lookups then need its checkpoint.
    """
    return ports.kb.keysets.activate(
        keyset_id,
        force=data.force,
        max_edits=data.max_edits,
        questions=data.questions,
        **on_record(request, data),
    )


@post("/keysets/rollback", status_code=200, **in_thread(Right.train))
def roll_back(ports: FromPorts, request: WithToken, data: JSONBody[Why]) -> KeysetRecord:
    """Go back to the former keyset.

    Activates the keyset that was active before, at once and without a gate. A second roll-back undoes the first.
    """
    return ports.kb.keysets.rollback(**on_record(request, data))


@post("/keysets/{keyset_id:int}/retire", status_code=200, **in_thread(Right.train))
def retire_keyset(
    ports: FromPorts, request: WithToken, keyset_id: PathId, data: JSONBody[Why]
) -> KeysetRecord:
    """Drop a keyset's keys.

    They are dropped for good; only a rekey makes them again. The active keyset is refused.
    """
    return ports.kb.keysets.retire(keyset_id, **on_record(request, data))


@put("/keysets/{keyset_id:int}/threshold", **in_thread(Right.train))
def set_threshold(
    ports: FromPorts, request: WithToken, keyset_id: PathId, data: JSONBody[NewThreshold]
) -> KeysetRecord:
    """Set a keyset's threshold.

    From the next lookup on, in every process, a score below the threshold is no match.
    """
    return ports.kb.keysets.set_threshold(keyset_id, data.threshold, **on_record(request, data))


def _view(ports: Ports, keyset: KeysetRecord) -> KeysetView:
    return KeysetView(keyset=keyset, gate=ports.kb.keysets.standing(keyset.keyset_id))


HANDLERS = (
    list_keysets,
    read_keyset,
    read_gate,
    activate_keyset,
    roll_back,
    retire_keyset,
    set_threshold,
)
