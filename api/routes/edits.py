"""The response to every edit of facts, and the keys that new facts get within the same request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request

from colmlm.api.ports import Ports
from colmlm.api.wire.answers import EditResult
from colmlm.api.wire.requests import Why
from colmlm.kb.access.tokens import TokenRecord
from colmlm.kb.errors import FactDeleted, KeysetMismatch
from colmlm.kb.facts.records import Edit
from colmlm.kb.log.audit import act_for, check_name

WithToken = Request[TokenRecord, Any, Any]


def actor_of(request: WithToken, why: Why) -> str:
    """Gives the token's name, the actor of the change. Notes on whose behalf it acts, where the body says so."""
    if (behalf := why.on_behalf_of or why.actor) is not None:
        check_name("name on whose behalf this is done", behalf)
        act_for(behalf)
    return request.user.name


def result(edit: Edit, *, min_seq: int | None = None, keyed: bool = True) -> EditResult:
    """Builds the response to an edit after which no fact lacks a key."""
    return EditResult(
        seq=edit.seq,
        min_seq=min_seq or edit.seq,
        kind=edit.kind,
        fact_ids=list(edit.fact_ids),
        keyed=keyed,
        also_said_by=list(edit.also_said_by),
    )


def would_delete(ports: Ports, fact_ids: list[int]) -> EditResult:
    """Builds the response to a deletion that is not done. Raises `FactNotFound` or `FactDeleted`."""
    facts = ports.kb.facts.show_many(list(dict.fromkeys(fact_ids)))
    if gone := [fact.fact_id for fact in facts if fact.deleted_seq is not None]:
        raise FactDeleted(gone)
    also = {other for said in ports.kb.comparisons.also_said(fact_ids) for other in said.by}
    head = ports.kb.log.head_seq()
    ids = [fact.fact_id for fact in facts]
    return EditResult(
        seq=head,
        min_seq=head,
        kind="delete",
        fact_ids=ids,
        keyed=True,
        also_said_by=sorted(also),
        dry_run=True,
    )


def settled(ports: Ports, edit: Edit) -> EditResult:
    """Builds the response to an edit, after keying its facts where they lack keys."""
    return result(edit) if edit.keyed else keyed(ports, edit)


def keyed(ports: Ports, edit: Edit) -> EditResult:
    """Keys the facts of an edit that lack keys, and builds the response."""
    if not key_at_once(ports, edit.fact_ids):
        return result(edit, keyed=False)
    return result(edit, min_seq=ports.kb.log.head_seq())


def key_at_once(ports: Ports, fact_ids: Sequence[int]) -> bool:
    """Keys those of these facts that lack keys.

    Gives False without the active keyset's model, or where more than a request should key do. In keysets that may
    answer next, or again, they get keys as well, so that a switch or a rollback loses none.
    """
    try:
        model = ports.models.answering()
    except KeysetMismatch:
        return False
    keysets, most = ports.kb.keysets, ports.tuning.keyed_at_once
    if model is None or not keysets.key_facts(model.encoder, fact_ids, most=most):
        return False
    for checkpoint_id, encoder in ports.models.encoders().items():
        if checkpoint_id != model.checkpoint.checkpoint_id and keysets.is_ready(checkpoint_id):
            keysets.key_facts(encoder, fact_ids, most=most)
    return True
