"""Denials: keeps the requests that were refused for who sent them, for auditors.

The functions take the session first and never commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from colmlm.kb.tables import DenialRow

KEPT = timedelta(days=90)
MAX_PATH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDenial:
    """A denial to record. `actor` is the name of the token, None where none was valid; `cause` names the refusal.

    `path` is the template of the route, or "unrouted" where none was reached: a path itself may hold a text.

    `num_unrecorded` counts the denials since the last recorded one, since a flood of them is only counted.
    """

    request_id: str
    actor: str | None
    method: str
    path: str
    status: int
    cause: str
    num_unrecorded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DenialRecord(NewDenial):
    denial_id: int
    at: datetime


def record_denial(session: Session, denial: NewDenial) -> None:
    """Records a denial, and delete those older than `KEPT`."""
    session.execute(delete(DenialRow).where(DenialRow.at < func.now() - KEPT))
    session.add(
        DenialRow(
            request_id=denial.request_id,
            actor=denial.actor,
            method=_shown(denial.method),
            path=_shown(denial.path),
            status=denial.status,
            cause=denial.cause,
            num_unrecorded=denial.num_unrecorded,
        )
    )


def list_denials(session: Session, *, after: int = 0, limit: int = 100) -> list[DenialRecord]:
    """Give denials, newest first; with `after` those before that id."""
    statement = select(DenialRow).order_by(DenialRow.id.desc()).limit(limit)
    if after:
        statement = statement.where(DenialRow.id < after)
    return [
        DenialRecord(
            denial_id=row.id,
            at=row.at,
            request_id=row.request_id,
            actor=row.actor,
            method=row.method,
            path=row.path,
            status=row.status,
            cause=row.cause,
            num_unrecorded=row.num_unrecorded,
        )
        for row in session.scalars(statement)
    ]


def _shown(text: str) -> str:
    """Give the start of a text that a stranger sent, without characters that would act on a log or a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_PATH])
