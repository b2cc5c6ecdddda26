"""Responses that resources share: of edits, in the form that was asked for, traces, and streams of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from litestar import Request, Response
from litestar.concurrency import sync_to_thread
from litestar.response import ServerSentEvent, ServerSentEventMessage

from colmlm.api import request_context
from colmlm.api.errors import client_left, problem_of, server_draining
from colmlm.api.ports import Ports
from colmlm.api.routes.parameters import WithToken
from colmlm.api.wire import EditResult, Why
from colmlm.kb.errors import KeysetMismatch, refusals
from colmlm.kb.evidence.generation import FinishedOutput, Item, MissedLookup, SplicedValue
from colmlm.kb.evidence.provenance import MEDIA_TYPES, PROV, Provenance, write_prov
from colmlm.kb.facts.records import Edit
from colmlm.kb.log.audit import check_name
from colmlm.kb.log.records import OnRecord
from colmlm.kb.principal import act_for, current_origin


def on_record(request: WithToken, why: Why) -> OnRecord:
    """Give a change's actor (the token's name) and reason, and note for the log on whose behalf the token acts."""
    if (behalf := why.on_behalf_of or why.actor) is not None:
        check_name("name on whose behalf this is done", behalf)
        act_for(behalf)
    return {"actor": request.user.name, "reason": why.reason}


def edit_result(edit: Edit, *, min_seq: int | None = None, keyed: bool = True) -> EditResult:
    """Build the response to an edit; `keyed` says whether all of its facts have keys."""
    return EditResult(
        seq=edit.seq,
        min_seq=min_seq or edit.seq,
        kind=edit.kind,
        fact_ids=list(edit.fact_ids),
        keyed=keyed,
        also_said_by=list(edit.also_said_by),
    )


def plan_deletion(ports: Ports, fact_ids: list[int]) -> EditResult:
    """Build the response to a deletion in a dry run. Raise `FactNotFound` or `FactDeleted`."""
    facts = ports.kb.facts.show_many(list(dict.fromkeys(fact_ids)))
    if gone := [fact.fact_id for fact in facts if fact.deleted_seq is not None]:
        raise refusals.fact_deleted(gone)
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


def answer_edit(ports: Ports, edit: Edit) -> EditResult:
    """Build the response to an edit, after making the keys that its facts lack."""
    return edit_result(edit) if edit.keyed else key_and_answer(ports, edit)


def key_and_answer(ports: Ports, edit: Edit) -> EditResult:
    """Make the keys that the facts of an edit lack, and build the response."""
    if not key_at_once(ports, edit.fact_ids):
        return edit_result(edit, keyed=False)
    return edit_result(edit, min_seq=ports.kb.log.head_seq())


def key_at_once(ports: Ports, fact_ids: Sequence[int]) -> bool:
    """Make the keys that these facts lack, and tell whether they have them now.

    Give False without the active keyset's model, or if more facts lack keys than a request should key. Keysets that may
    answer next or again get the keys as well, so that a switch or a rollback loses none.
    """
    try:
        model = ports.models.model_of_active_keyset()
    except KeysetMismatch:
        return False
    keysets, most = ports.kb.keysets, ports.tuning.keyed_at_once
    if model is None or not keysets.key_facts(model.encoder, fact_ids, most=most):
        return False
    for checkpoint_id, encoder in ports.models.encoders().items():
        if checkpoint_id != model.checkpoint.checkpoint_id and keysets.is_ready(checkpoint_id):
            keysets.key_facts(encoder, fact_ids, most=most)
    return True


# The forms beside JSON in which a route gives what it has, where a request asks for one by `Accept`.

JSON = "application/json"


def preferred_type(request: Request[Any, Any, Any], *others: str) -> str:
    """Give the media type that a request prefers among JSON and `others`; JSON if it names none of them."""
    return request.accept.best_match([JSON, *others]) or JSON


def names_type(request: Request[Any, Any, Any], media_type: str) -> bool:
    """Tell whether `Accept` names this media type itself, whatever else it names."""
    return any(named.partition(";")[0].strip() == media_type for named in request.accept)


def encode_response(value: Any, media_type: str = JSON, **headers: str) -> Response[Any]:
    """Encode a response of this media type, with `Vary: Accept`, since another request may get another type."""
    return Response(msgspec.json.encode(value), media_type=media_type, headers={"vary": "accept", **headers})


# Streams outputs while they are decoded, as server-sent events.


def check_client() -> None:
    """Raise `ClientLeft` if the client of the current request has disconnected."""
    request = request_context.current()
    if request is not None and request.has_left:
        raise client_left()


def name_asker() -> str:
    """Name the token that asks, so that the decoder takes turns between tokens."""
    return current_origin().principal.name


def stream_events(items: Iterator[Item]) -> Iterator[ServerSentEventMessage]:
    """Yield an event for each item of an output, and one for an error that ends them early."""
    try:
        for item in items:
            yield _output_event(_name_of_output(item), {"text": item} if isinstance(item, str) else item)
    except Exception as error:  # noqa: BLE001 - the status is already sent, so an event and the log report it
        yield _output_event("error", problem_of(error)[0])


def _name_of_output(item: Item) -> str:
    match item:
        case str():
            return "piece"
        case SplicedValue():
            return "splice"
        case MissedLookup():
            return "no_match"
        case FinishedOutput():
            return "finish"
    return "trace"


def _output_event(name: str, data: object) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=name, data=msgspec.json.encode(data).decode())


# Traces as responses: as they are, or in the terms of W3C PROV where the request asks for that.

T = TypeVar("T")


def encode_trace(
    ports: Ports, request: WithToken, trace: T, account: Callable[[T, str], Provenance]
) -> Response[T]:
    """Encode a trace in the media type that the request prefers; `account` converts it to the terms of PROV."""
    media_type = preferred_type(request, *MEDIA_TYPES.values())
    for form, named in MEDIA_TYPES.items():
        if media_type == named:
            told = write_prov(account(trace, ports.kb.log.database_id()), form)
            return encode_response(told, media_type, link=f'<{PROV}>; rel="profile"')
    return encode_response(trace)


# Streams of server-sent events that poll for news until their subject is over, their time is up, or the server drains.


@dataclass(frozen=True, slots=True)
class PolledEvents:
    """The result of one poll: events to send, whether more are ready at once, and whether this was the last."""

    messages: list[ServerSentEventMessage]
    has_more: bool = False
    is_over: bool = False


def stream_polled_events(
    ports: Ports, poll: Callable[[], PolledEvents], seconds: float | None = None
) -> ServerSentEvent:
    """Stream the events that `poll` finds, called repeatedly in a thread, for `seconds` at most (None: the longest)."""
    longest = ports.tuning.longest_seconds
    return ServerSentEvent(_messages(ports, poll, longest if seconds is None else min(seconds, longest)))


async def _messages(
    ports: Ports, poll: Callable[[], PolledEvents], seconds: float
) -> AsyncIterator[ServerSentEventMessage]:
    clock, tuning, drain = asyncio.get_running_loop().time, ports.tuning, ports.readiness.drain
    end, spoke = clock() + seconds, float("-inf")
    while True:
        try:
            polled = await sync_to_thread(poll)
        except Exception as error:  # noqa: BLE001 - the status is already sent, so an event and the log report it
            yield _problem("error", error)
            return
        for message in polled.messages:
            yield message
        if polled.messages:
            spoke = clock()
        elif clock() - spoke >= tuning.idle_seconds:
            yield ServerSentEventMessage(data=None, comment="nothing new")
            spoke = clock()
        if polled.is_over or clock() >= end:
            return
        pause = 0.0 if polled.has_more else min(tuning.poll_seconds, end - clock())
        if await drain.begins_within(pause):
            yield _problem("draining", server_draining())
            return


def _problem(event: str, error: Exception) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=event, data=msgspec.json.encode(problem_of(error)[0]).decode())
