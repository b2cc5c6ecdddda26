"""Edits: what every edit of facts is answered with, and the keys that new facts get at once."""

from __future__ import annotations

from typing import Any

from litestar import Request

from colmlm.api.ports import Ports
from colmlm.api.wire.answers import EditResult
from colmlm.api.wire.requests import Why
from colmlm.kb.access.api_keys import ApiKeyRecord
from colmlm.kb.facts.records import Edit
from colmlm.kb.log.audit import check_name
from colmlm.kb.log.origin import act_for

WithKey = Request[ApiKeyRecord, Any, Any]


def actor_of(request: WithKey, why: Why) -> str:
    """Who the change log names: the key. On whose behalf it says to act is noted beside that."""
    if (behalf := why.on_behalf_of or why.actor) is not None:
        check_name("name on whose behalf this is done", behalf)
        act_for(behalf)
    return request.user.name


def result(edit: Edit, *, min_seq: int | None = None, keyed: bool = True) -> EditResult:
    """The answer to an edit after which no fact lacks a key."""
    return EditResult(
        seq=edit.seq, min_seq=min_seq or edit.seq, kind=edit.kind, fact_ids=list(edit.fact_ids), keyed=keyed
    )


def keyed(ports: Ports, edit: Edit) -> EditResult:
    """The answer to an edit whose facts may lack keys, which they get now."""
    if not key_at_once(ports):
        return result(edit, keyed=False)
    return result(edit, min_seq=ports.kb.log.head_seq())


def key_at_once(ports: Ports) -> bool:
    """Key what an edit left without a key; False where there is no encoder, or a whole corpus's backlog."""
    if ports.encoder is None:
        return False
    if _backlog(ports, ports.encoder.checkpoint.checkpoint_id) > ports.tuning.keyed_at_once:
        return False
    ports.kb.keysets.rekey(ports.encoder)
    return True


def _backlog(ports: Ports, checkpoint_id: str) -> int:
    for keyset in ports.kb.keysets.all():
        if keyset.checkpoint_id == checkpoint_id and keyset.state != "retired":
            return keyset.num_unkeyed
    return len(ports.kb.facts.find(limit=ports.tuning.keyed_at_once + 1))
