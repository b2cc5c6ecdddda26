"""Denials: who was refused what, for auditors."""

from __future__ import annotations

from litestar import get
from sqlalchemy.orm import Session

from api.errors import PROBLEMS
from api.ports import FromPorts
from api.rights import Right, needs
from api.schemas import After, Limit
from kb import denials
from kb.denials import DenialRecord


@get("/denials", opt=needs(Right.audit), responses=PROBLEMS, sync_to_thread=True)
def list_denials(ports: FromPorts, after: After = 0, limit: Limit = 100) -> list[DenialRecord]:
    """Requests refused for who asked, newest first. Pass the last id as `after` for those before it."""
    with Session(ports.kb.engine) as session:
        return denials.list_denials(session, after=after, limit=limit)
