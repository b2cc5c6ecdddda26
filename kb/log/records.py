"""Changes as the log tells them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from colmlm.kb.principal import Principal


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One entry of the change log; it holds no fact text.

    `principal` is who was authenticated, and `on_behalf_of` whom they said to act for. `request_id` is of the API's
    request that asked for it, `client_request_id` what the caller named that. All of them are None in changes from
    before they were kept.
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
