"""Sends the chunks of a response as server-sent events, as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec
from litestar import Response
from litestar.response import ServerSentEvent, ServerSentEventMessage

from colmlm.api.openai.errors import openai_problem

DONE = "[DONE]"


def chunks(items: Iterator[msgspec.Struct]) -> Response[Any]:
    """Gives a stream of these chunks, ended by `[DONE]`.

    An error before the first is raised here, while its status can still be sent.
    """
    return _streamed(_unnamed(chain([next(items)], items)))


def named_events(items: Iterator[dict[str, Any]]) -> Response[Any]:
    """Gives a stream of events named by their `type`. An error before the first is raised here."""
    return _streamed(_named(chain([next(items)], items)))


def _streamed(events: Iterator[ServerSentEventMessage]) -> Response[Any]:
    streamed: Response[Any] = ServerSentEvent(events, status_code=200)
    return streamed


def _unnamed(items: Iterator[msgspec.Struct]) -> Iterator[ServerSentEventMessage]:
    try:
        for item in items:
            yield _event(msgspec.json.encode(item).decode())
    except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
        yield _event(msgspec.json.encode(openai_problem(error)[0]).decode())
    else:
        yield _event(DONE)


def _named(items: Iterator[dict[str, Any]]) -> Iterator[ServerSentEventMessage]:
    number = 0
    try:
        for item in items:
            number = item["sequence_number"] + 1
            yield _event(msgspec.json.encode(item).decode(), item["type"])
    except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
        told = openai_problem(error)[0].error
        said = {"type": "error", "sequence_number": number, "code": told.code, "message": told.message}
        yield _event(msgspec.json.encode({**said, "param": told.param}).decode(), "error")


def _event(data: str, name: str | None = None) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=data, event=name)
