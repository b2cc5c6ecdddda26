"""Where an edit comes from: the request it was asked for in, which the change log keeps beside actor and reason.

A context variable and not a parameter of every verb: what is edited does not depend on it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from sqlalchemy import update
from sqlalchemy.orm import Session

from kb.errors import RequestUnderWay
from kb.tables import Idempotency


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to carry out the request of one row of `idempotency`, until another claims it."""

    row_id: int
    claim: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that edits. Its id goes into the log, where nothing is erased: it is never text of a person's."""

    request_id: str
    claim: Claim | None = None


origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def mark(session: Session, seq: int) -> dict[str, str]:
    """What the log keeps of the origin of change `seq`; in the same transaction the claim learns that it edited.

    What is no change but must not be done twice either marks with the change before it.

    Raises `RequestUnderWay` where another run has taken the claim over, so that the two can't both edit.
    """
    found = origin.get()
    if found is None:
        return {}
    if found.claim is not None:
        held = (Idempotency.id == found.claim.row_id) & (Idempotency.claim == found.claim.claim)
        marked = update(Idempotency).where(held).values(seq=seq).returning(Idempotency.id)
        if session.scalar(marked) is None:
            raise RequestUnderWay
    return {"request_id": found.request_id}
