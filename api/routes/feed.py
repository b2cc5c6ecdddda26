"""The feed of changes: a stream of server-sent events, one for each new change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from litestar import get
from litestar.concurrency import sync_to_thread
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage

from colmlm.api.door.auth import Lane, Right, needs
from colmlm.api.door.lanes import LONGEST_SECONDS
from colmlm.api.errors import PROBLEMS
from colmlm.api.ports import FromPorts
from colmlm.api.routes.edits import WithToken, is_named
from colmlm.api.routes.following import Glance, followed
from colmlm.api.wire.requests import MAX_ID
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.log.cloud_events import EVENT, cloud_event
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.service import KnowledgeBase

PIECE = 100

FromSeq = Annotated[
    int | None,
    QueryParameter(
        gt=-1, le=MAX_ID, description="Give what comes after this change; none: what comes from now on"
    ),
]
Seconds = Annotated[int, QueryParameter(ge=0, le=LONGEST_SECONDS, description="When the stream ends")]
LastEvent = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", max_length=20, description="The last event that was received"),
]


@get(
    "/changes/events", opt=needs(Right.audit, Lane.feeds), responses=PROBLEMS, media_type="text/event-stream"
)
async def follow_changes(
    ports: FromPorts,
    request: WithToken,
    after: FromSeq = None,
    seconds: Seconds = LONGEST_SECONDS,
    last_event: LastEvent = None,
) -> ServerSentEvent:
    """Follow the change log.

    `text/event-stream`: an event `change` for each change, with its seq as the id, and comments while there are none. A
    client that reconnects with `Last-Event-ID` misses nothing. If the log cannot be read, the last event is `error`; if
    the server is ending, it is `draining`. Both hold a problem document. Where `Accept` names
    `application/cloudevents+json` too, the data of each event is a CloudEvent.
    """
    start = _seq(last_event) if last_event is not None else after
    if start is None:
        start = await sync_to_thread(ports.kb.log.head_seq)
    database = await sync_to_thread(ports.kb.log.database_id) if is_named(request, EVENT) else None
    return followed(ports, _Changes(ports.kb, start, database).look, seconds)


@dataclass(slots=True)
class _Changes:
    """Reads the changes after `seq`, up to `PIECE` at a time; as CloudEvents of that `database` where it is given."""

    kb: KnowledgeBase
    seq: int
    database: str | None

    def look(self) -> Glance:
        changes = self.kb.log.changes(self.seq, PIECE)
        if changes:
            self.seq = changes[-1].seq
        messages = [
            ServerSentEventMessage(event="change", id=str(change.seq), data=self._written(change))
            for change in changes
        ]
        return Glance(messages, has_more=len(changes) == PIECE)

    def _written(self, change: ChangeRecord) -> str:
        event = change if self.database is None else cloud_event(change, self.database)
        return msgspec.json.encode(event).decode()


def _seq(said: str) -> int:
    if not said.isascii() or not said.isdecimal() or int(said) > MAX_ID:
        raise InvalidQuery("the Last-Event-ID is no change's seq")
    return int(said)
