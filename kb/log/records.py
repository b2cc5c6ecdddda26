"""The records that verbs of the change log give."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from colmlm.kb.principal import Principal


class OnRecord(TypedDict):
    """What the log keeps of a change beside what it does: who made it (`actor`), and why (`reason`)."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One entry of the change log; it holds no fact text.

    `principal` is who was authenticated, and `on_behalf_of` the person they said to act for. `request_id` is that of
    the API's request that asked for it, `client_request_id` the caller's name for that. All of them are None in changes
    made before they were recorded. `undoes` is the change that this one takes back, if it is an undo.
    """

    seq: int
    kind: str
    fact_ids: tuple[int, ...]
    num_facts: int
    actor: str
    reason: str
    at: datetime
    prev_hash: str
    hash: str
    request_id: str | None = None
    client_request_id: str | None = None
    principal: Principal | None = None
    on_behalf_of: str | None = None
    undoes: int | None = None
