"""Sends the chunks of a response as server-sent events, ended by `[DONE]`, as OpenAI's clients read them."""

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
    """Gives a stream of these chunks. An error before the first is raised here, while its status can still be sent."""
    first = next(items)
    streamed: Response[Any] = ServerSentEvent(_events(chain([first], items)), status_code=200)
    return streamed


def _events(items: Iterator[msgspec.Struct]) -> Iterator[ServerSentEventMessage]:
    try:
        for item in items:
            yield _event(msgspec.json.encode(item).decode())
    except Exception as error:  # noqa: BLE001 - the status is sent: only an event can still tell, and the log
        yield _event(msgspec.json.encode(openai_problem(error)[0]).decode())
    else:
        yield _event(DONE)


def _event(data: str) -> ServerSentEventMessage:
    return ServerSentEventMessage(data=data)
