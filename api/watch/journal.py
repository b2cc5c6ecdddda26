"""Logs every denial and every edit, one line each, with request id, actor and route as fields.

Denials are also stored in the database for auditors: up to `RECORDED_A_MINUTE` of requests with a token and as many of
requests without. The rest is only counted. A database that does not answer does not change the response.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from colmlm.api.door.lanes import Lane, Lanes
from colmlm.api.door.limits import Bucket, Clock
from colmlm.api.door.requests import Asked, route_of
from colmlm.api.door.rights import is_edit
from colmlm.api.errors import Busy
from colmlm.kb.evidence.log import Log
from colmlm.kb.log.denials import NewDenial
from colmlm.kb.store import outages

if TYPE_CHECKING:
    from litestar.types import HTTPScope

RECORDED_A_MINUTE = 60

_DENIED = frozenset({401, 403, 421, 429})

_log = logging.getLogger("colmlm.journal")


class Journal:
    """Logs denials and edits for auditors. Used on the event loop."""

    def __init__(self, log: Log, lanes: Lanes, clock: Clock = time.monotonic) -> None:
        self._log, self._lanes = log, lanes
        self._of_tokens, self._of_strangers = (Bucket(RECORDED_A_MINUTE, clock) for _ in range(2))
        self._num_unrecorded = 0

    async def note(self, scope: HTTPScope, request: Asked) -> None:
        """Logs an answered request if it was denied or was an edit."""
        if request.status in _DENIED and request.refusal is not None:
            await self._denied(scope, request)
        elif (request.status or 500) < 400 and is_edit(scope) and not request.is_replay:
            _log.info("edited", extra=_fields(scope, request))

    async def _denied(self, scope: HTTPScope, request: Asked) -> None:
        fields = _fields(scope, request)
        _log.info("denied", extra={**fields, "cause": request.refusal})
        actor = fields["actor"]
        if (self._of_tokens if actor else self._of_strangers).take():
            self._num_unrecorded += 1
            return
        denial = NewDenial(
            request_id=request.request_id,
            actor=actor,
            method=scope["method"],
            path=route_of(scope),  # the template, since the path itself may hold what was asked
            status=request.status or 0,
            cause=request.refusal or "",
            num_unrecorded=self._num_unrecorded,
        )
        self._num_unrecorded = 0
        try:
            await self._lanes.run(Lane.records, self._record, denial)
        except Busy:
            self._num_unrecorded += 1 + denial.num_unrecorded

    def _record(self, denial: NewDenial) -> None:
        try:
            self._log.deny(denial)
        except SQLAlchemyError as error:
            outages.tell(_log, "a denial was not recorded", error)


def _fields(scope: HTTPScope, request: Asked) -> dict[str, Any]:
    token = scope.get("user")
    return {
        "request_id": request.request_id,
        "client_request_id": request.client_request_id,
        "actor": token.name if token else None,
        "method": scope["method"],
        "route": scope.get("path_template"),
        "status": request.status,
    }
