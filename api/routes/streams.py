"""Streams outputs while they are decoded, as server-sent events."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from litestar.response import ServerSentEventMessage

from colmlm.api.door import requests
from colmlm.api.errors import ClientLeft, problem_of
from colmlm.api.nouns.generation import Finished, Item, Missed, Spliced
from colmlm.kb.log.audit import current


def check_client() -> None:
    """Raises `ClientLeft` where the client of the current request has disconnected."""
    request = requests.current()
    if request is not None and request.has_left:
        raise ClientLeft


def asker() -> str:
    """Names the token that asks, so that the decoder takes turns between tokens."""
    return current().principal.name


def events(items: Iterator[Item]) -> Iterator[ServerSentEventMessage]:
    """Yields an event for each item, and one for an error that ends them early."""
    try:
        for item in items:
            yield _event(_name(item), {"text": item} if isinstance(item, str) else item)
    except Exception as error:  # noqa: BLE001 - the status is already sent, so an event and the log report it
        yield _event("error", problem_of(error)[0])


def _name(item: Item) -> str:
    match item:
        case str():
            return "piece"
        case Spliced():
            return "splice"
        case Missed():
            return "no_match"
        case Finished():
            return "finish"
    return "trace"


def _event(name: str, data: object) -> ServerSentEventMessage:
    return ServerSentEventMessage(event=name, data=msgspec.json.encode(data).decode())
