"""The origin of an edit: who was authenticated for it, and the request or job that asked for it.

The origin is a context variable and not a parameter of every verb, since no edit depends on it and no caller of a verb
may claim another. Where none was set, the process edits for itself, as the user it runs as.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import update
from sqlalchemy.orm import Session

from colmlm.kb.errors import RequestUnderWay
from colmlm.kb.principal import Principal, local_principal
from colmlm.kb.tables import IdempotencyRow


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry out the request of one row of `idempotency`, until another claims it."""

    row_id: int
    claim: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The principal and the request of an edit. Its ids go into the log, which nothing erases, so they are never text.

    `request_id` is the server's own, `client_request_id` the caller's name for the request. `on_behalf_of` is the
    person the principal says to act for.
    """

    principal: Principal
    request_id: str | None = None
    client_request_id: str | None = None
    on_behalf_of: str | None = None
    claim: Claim | None = None


class Signature(NamedTuple):
    """The actor that the log names, and the person it acts on behalf of."""

    actor: str
    on_behalf_of: str | None


origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def current() -> Origin:
    """Gives the origin of edits in this context."""
    return origin.get() or Origin(local_principal())


@contextmanager
def acting_as(principal: Principal, on_behalf_of: str | None = None) -> Iterator[None]:
    """Makes this principal the one that edits, within the block and in the same request."""
    before = origin.set(replace(current(), principal=principal, on_behalf_of=on_behalf_of))
    try:
        yield
    finally:
        origin.reset(before)


def act_for(name: str | None) -> None:
    """Sets on whose behalf the rest of this context edits."""
    origin.set(replace(current(), on_behalf_of=name))


def signed(actor: str) -> Signature:
    """Gives the actor that the log names: with a token always the token's own name, whatever `actor` was given.

    On the server's machine the given name is kept, since whoever has a shell there has the database.
    """
    found = current()
    principal = found.principal
    if principal.kind == "key":
        behalf = found.on_behalf_of
        return Signature(principal.name, behalf if behalf != principal.name else None)
    named = found.on_behalf_of or actor
    is_other = principal.kind == "local" and named != principal.name
    return Signature(actor, named if is_other else None)


def evidence(signature: Signature) -> dict[str, Any]:
    """Gives the part of a change's payload, and so of its hash, that records this origin."""
    found = current()
    kept = {
        "request_id": found.request_id,
        "client_request_id": found.client_request_id,
        "principal": found.principal.to_json(),
        "on_behalf_of": signature.on_behalf_of,
    }
    return {name: value for name, value in kept.items() if value is not None}


def mark(session: Session, seq: int) -> None:
    """Notes change `seq` in the claim of this request, in the same transaction as the change.

    A deed that is no change but must not be done twice either is marked with the number of the change before it.

    Raises `RequestUnderWay` where another run has taken over the claim, so that the two can't both edit.
    """
    claim = current().claim
    if claim is None:
        return
    held = (IdempotencyRow.id == claim.row_id) & (IdempotencyRow.claim == claim.claim)
    marked = update(IdempotencyRow).where(held).values(seq=seq).returning(IdempotencyRow.id)
    if session.scalar(marked) is None:
        raise RequestUnderWay
