"""The change log: read it by pages, follow it, compare two changes, check a signed head, and export it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import msgspec
from litestar import Response, get, post
from litestar.concurrency import sync_to_thread
from litestar.params import HeaderParameter, JSONBody, QueryParameter
from litestar.response import ServerSentEvent, ServerSentEventMessage, Stream

from colmlm.api.errors import PROBLEMS
from colmlm.api.middleware.auth import CorpusLimit, Limiter, Right, in_thread, needs
from colmlm.api.middleware.limiters import LONGEST_SECONDS
from colmlm.api.ports import FromPorts, Ports
from colmlm.api.routes.corpora import JSON_LINES
from colmlm.api.routes.parameters import Corpus, Cursor, Limit, PathId, WithToken, after_of, page, time_of
from colmlm.api.routes.responses import (
    PolledEvents,
    encode_response,
    names_type,
    on_record,
    preferred_type,
    stream_polled_events,
)
from colmlm.api.wire import MAX_ID, NEWEST_CHANGES, Differences, Page, Request, Why
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.evidence.log import Log
from colmlm.kb.log import witness
from colmlm.kb.log.audit import LogFilters
from colmlm.kb.log.chain import DenialRecord, Sealed
from colmlm.kb.log.records import BATCH, EVENT, ChangeRecord, cloud_event
from colmlm.kb.service import KnowledgeBase

Who = Annotated[
    str | None, QueryParameter(max_length=200, description="Only changes by this person or token")
]
Authenticated = Annotated[
    str | None,
    QueryParameter(
        max_length=200, description="Only changes this token, or user of the machine, was authenticated for"
    ),
]
Kind = Annotated[str | None, QueryParameter(max_length=100, description="Only this kind, such as delete")]
OfFact = Annotated[int | None, QueryParameter(ge=1, le=MAX_ID, description="Only changes of this fact")]
Since = Annotated[
    str | None,
    QueryParameter(format="date-time", description="From this time on; without a zone it is UTC"),
]
Until = Annotated[
    str | None,
    QueryParameter(format="date-time", description="Before this time; without a zone it is UTC"),
]
Earlier = Annotated[int, QueryParameter(ge=0, le=MAX_ID, description="The earlier change")]
Later = Annotated[int, QueryParameter(ge=0, le=MAX_ID, description="The later change")]


FormerSize = Annotated[
    int,
    QueryParameter(ge=0, le=MAX_ID, description="How many changes the log had, as a head or a proof says"),
]
Order = Annotated[
    Literal["oldest", "newest"],
    QueryParameter(
        description="Which change comes first. Follow the log with `oldest`: its cursors go on to new changes"
    ),
]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the change log. `head_seq` is its last change; `next` is null where no further change fits."""

    head_seq: int
    items: list[ChangeRecord]
    next: str | None


class Witnessed(Request, frozen=True, kw_only=True):
    """A signed head of this log, as `GET /v1/changes/head` gave it."""

    head: dict[str, Any]


class Sealing(Why, frozen=True, kw_only=True):
    """Breaks of the log to acknowledge, by the numbers of their changes. With `dry_run` it is rolled back."""

    seqs: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]], msgspec.Meta(min_length=1, max_length=1000)
    ]
    dry_run: bool = False


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Record whether the log still has that head at its place, and the head with its signer."""

    held: bool
    head: witness.Head


@get("/changes", **in_thread(Right.audit, scoped=CorpusLimit.rows))
def list_changes(
    ports: FromPorts,
    request: WithToken,
    actor: Who = None,
    principal: Authenticated = None,
    kind: Kind = None,
    fact_id: OfFact = None,
    since: Since = None,
    until: Until = None,
    order: Order = "oldest",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response[Changes]:
    """List changes.

    The changes that fit every filter, the oldest first unless `order` says otherwise. They hold who did what to which
    facts, when and why; no fact's text. With `Accept: application/cloudevents-batch+json` they come as a list of
    CloudEvents, and the next page as a `Link` of the relation `next`.
    """
    if "\x00" in f"{actor or ''}{principal or ''}{kind or ''}":
        raise InvalidQuery("the name holds a NUL character. Remove it")
    only: LogFilters = {
        "actor": actor,
        "principal": principal,
        "kind": kind,
        "fact_id": fact_id,
        "since": time_of("since", since),
        "until": time_of("until", until),
    }
    shown = _page_of(ports.kb.log, order, cursor, limit, only)
    if preferred_type(request, BATCH) == BATCH:
        return _batch(ports, request, shown)
    return encode_response(Changes(head_seq=ports.kb.log.head_seq(), items=shown.items, next=shown.next))


def _page_of(log: Log, order: str, cursor: str | None, limit: int, only: LogFilters) -> Page[ChangeRecord]:
    """Read a page of the log in this order. A cursor belongs to one order."""
    if order == "newest":
        of, before = NEWEST_CHANGES, after_of(cursor, NEWEST_CHANGES) or MAX_ID
        found = log.changes_before(before, limit + 1, **only)
    else:
        of, found = "changes", log.changes(after_of(cursor, "changes"), limit + 1, **only)
    return page(found, limit, of, lambda change: (change.seq,))


def _batch(ports: Ports, request: WithToken, shown: Page[ChangeRecord]) -> Response[Any]:
    database = ports.kb.log.database_id()
    events = [cloud_event(change, database) for change in shown.items]
    if shown.next is None:
        return encode_response(events, BATCH)
    following = f"{request.url.path}?{_with_cursor(request, shown.next)}"
    return encode_response(events, BATCH, link=f'<{following}>; rel="next"')


def _with_cursor(request: WithToken, cursor: str) -> str:
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    return urlencode([*kept, ("cursor", cursor)])


@get("/changes/{seq:int}", **in_thread(Right.audit, scoped=CorpusLimit.rows))
def read_change(ports: FromPorts, request: WithToken, seq: PathId) -> Response[ChangeRecord]:
    """Read a change.

    Who did what to which facts, when and why; no fact's text. With `Accept: application/cloudevents+json` it comes as
    a CloudEvent.
    """
    change = ports.kb.log.change(seq)
    if preferred_type(request, EVENT) == EVENT:
        return encode_response(cloud_event(change, ports.kb.log.database_id()), EVENT)
    return encode_response(change)


@get("/changes/diff", **in_thread(Right.audit, Limiter.long_reads))
def compare_changes(
    ports: FromPorts,
    first: Earlier,
    last: Later,
    corpus: Corpus = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Differences:
    """Compare the facts at two changes.

    An edit that was undone in between is no difference. An erased fact is named without its values.
    """
    after = after_of(cursor, "differences")
    found = ports.kb.log.diff(first, last, corpus=corpus, after=after, limit=limit + 1)
    shown = page(found.facts, limit, "differences", lambda difference: (difference.fact_id,))
    return Differences(first=first, last=last, counts=found.counts, items=shown.items, next=shown.next)


@get("/changes/head", **in_thread(Right.audit))
def read_head(ports: FromPorts) -> dict[str, Any]:
    """Get the signed head of the change log.

    Keep it outside this server: later it shows whether the log up to it was rewritten.
    """
    return ports.kb.log.head()


@get("/changes/{seq:int}/proof", **in_thread(Right.audit, Limiter.long_reads))
def prove_change(ports: FromPorts, seq: PathId) -> dict[str, Any]:
    """Prove that a change is in the log.

    Gives the change and its path to the signed root of the log's Merkle tree (RFC 6962), by which it is checked
    without the rest of the log.
    """
    return ports.kb.log.proof(seq=seq)


@get("/changes/proof", **in_thread(Right.audit, Limiter.long_reads))
def prove_growth(ports: FromPorts, size: FormerSize) -> dict[str, Any]:
    """Prove that the log goes on from its first changes.

    Gives the path (RFC 6962) from the root over the first `size` changes to the signed root over all.
    """
    return ports.kb.log.proof(since=size)


@post("/changes/head/check", status_code=200, **in_thread(Right.audit, Limiter.long_reads))
def check_head(ports: FromPorts, data: JSONBody[Witnessed]) -> Held:
    """Check a head that was kept.

    Verifies its signature, and whether this log still has it. A job of kind `fsck` verifies the chain up to it.
    """
    head = witness.read_head(json.dumps(data.head), "head")
    return Held(held=ports.kb.log.holds(head), head=head)


@post("/changes/seal", status_code=200, **in_thread(Right.admin))
def seal_breaks(ports: FromPorts, request: WithToken, data: JSONBody[Sealing]) -> Sealed:
    """Acknowledge breaks of the change log.

    Appends a change that records what was found at each break and what was expected. Verification of the log then
    succeeds apart from these breaks; any other break is still reported.
    """
    return ports.kb.log.seal(data.seqs, **on_record(request, data), dry_run=data.dry_run)


@get("/changes/export", media_type=JSON_LINES, **in_thread(Right.audit, Limiter.long_reads))
def export_changes(ports: FromPorts) -> Stream:
    """Export the change log.

    JSON Lines: the signed head, then every change, without any fact's text. It can be verified without the database.
    """
    return Stream(ports.kb.log.export(), media_type=JSON_LINES)


# Denials: the requests that were refused, for auditors.


@get("/denials", **in_thread(Right.audit))
def list_denials(ports: FromPorts, cursor: Cursor = None, limit: Limit = 100) -> Page[DenialRecord]:
    """List denials.

    Requests that were refused for their token, host or rate, newest first.
    """
    found = ports.kb.log.denials(after=after_of(cursor, "denials"), limit=limit + 1)
    return page(found, limit, "denials", lambda denial: (denial.denial_id,))


# The feed of changes: a stream of server-sent events, one for each new change.

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
    "/changes/events",
    opt=needs(Right.audit, Limiter.feeds),
    responses=PROBLEMS,
    media_type="text/event-stream",
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
    start = _parse_event_id(last_event) if last_event is not None else after
    if start is None:
        start = await sync_to_thread(ports.kb.log.head_seq)
    database = await sync_to_thread(ports.kb.log.database_id) if names_type(request, EVENT) else None
    return stream_polled_events(ports, _ChangesFollower(ports.kb, start, database).poll_events, seconds)


@dataclass(slots=True)
class _ChangesFollower:
    """Reads the changes after `seq`, up to `PIECE` at a time, as CloudEvents of `database` if that is given."""

    kb: KnowledgeBase
    seq: int
    database: str | None

    def poll_events(self) -> PolledEvents:
        changes = self.kb.log.changes(self.seq, PIECE)
        if changes:
            self.seq = changes[-1].seq
        messages = [
            ServerSentEventMessage(event="change", id=str(change.seq), data=self._encode_change(change))
            for change in changes
        ]
        return PolledEvents(messages, has_more=len(changes) == PIECE)

    def _encode_change(self, change: ChangeRecord) -> str:
        event = change if self.database is None else cloud_event(change, self.database)
        return msgspec.json.encode(event).decode()


def _parse_event_id(said: str) -> int:
    if not said.isascii() or not said.isdecimal() or int(said) > MAX_ID:
        raise InvalidQuery("the Last-Event-ID is not the seq of a change")
    return int(said)


HANDLERS = (
    list_changes,
    read_change,
    compare_changes,
    read_head,
    prove_change,
    prove_growth,
    check_head,
    seal_breaks,
    export_changes,
    follow_changes,
    list_denials,
)
