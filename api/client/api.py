"""Sends requests to API v1 and decodes the responses into the records of `kb`.

There is one method for each kind of request: read, list, ask, edit, read lines.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from colmlm.api.client.connection import Connection
from colmlm.api.client.errors import AnswerLost, ServerUnreachable, unsendable
from colmlm.api.nouns.telling import Telling
from colmlm.api.wire.answers import Page, cursor
from colmlm.api.wire.requests import MAX_PAGE

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Api:
    """API v1 of one server. An error response is raised as the `KBError` that the server raised."""

    connection: Connection
    telling: Telling = field(default_factory=Telling)

    def get(self, path: str, kind: type[T], /, **given: Any) -> T:
        response = self.connection.request("GET", f"/v1{path}", is_repeatable=True, params=_said(given))
        return self.read(response.content, kind)

    def listed(
        self, path: str, kind: type[T], of: str, /, *, after: int = 0, limit: int | None = None, **given: Any
    ) -> list[T]:
        """Reads the list `of` page by page from after the place `after`, to its end or up to `limit` items."""
        found: list[T] = []
        at = cursor(of, (after,)) if after else None
        while limit is None or len(found) < limit:
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(found))
            page: Page[T] = self.get(path, Page[kind], **given, cursor=at, limit=size)  # type: ignore[valid-type]
            found += page.items
            if (at := page.next) is None:
                break
        return found

    def ask(self, path: str, kind: type[T], body: Any) -> T:
        """Sends a POST that changes nothing, so it may be repeated."""
        return self._send("POST", path, kind, body, {})

    def edit(self, path: str, kind: type[T], body: Any = None, *, method: str = "POST") -> T:
        """Sends an edit under an `Idempotency-Key`, so that the server carries it out once even if it is sent again.

        Raises `AnswerLost` where the request was sent and no response came, so that the edit may have been made.
        """
        try:
            return self._send(method, path, kind, body, {"Idempotency-Key": secrets.token_hex(16)})
        except ServerUnreachable as error:
            raise (AnswerLost(error) if error.was_sent else error) from error

    def once(self, path: str, kind: type[T], body: Any) -> T:
        """Sends a POST that is repeated only where the server was not reached, since each one would be carried out."""
        response = self.connection.request("POST", f"/v1{path}", is_repeatable=False, **_json(body))
        return self.read(response.content, kind)

    def _send(self, method: str, path: str, kind: type[T], body: Any, headers: dict[str, str]) -> T:
        options = {} if body is None else _json(body)
        options["headers"] = headers | options.get("headers", {})
        response = self.connection.request(method, f"/v1{path}", is_repeatable=True, **options)
        return self.read(response.content, kind)

    def form(self, path: str, media_type: str) -> dict[str, Any]:
        """Gives what a GET has in another form than its own, which is a JSON object too."""
        asked = {"Accept": media_type}
        response = self.connection.request("GET", f"/v1{path}", is_repeatable=True, headers=asked)
        return self.read(response.content, dict[str, Any])

    def text(self, path: str) -> str:
        """Gives the body of a response unparsed, decoded as UTF-8."""
        response = self.connection.request("GET", f"/v1{path}", is_repeatable=True)
        return response.content.decode()

    def lines(self, path: str, **given: Any) -> Iterator[str]:
        """Yields the lines of a GET's response as they arrive, each with its line end."""
        return self.connection.lines("GET", f"/v1{path}", params=_said(given))

    def lines_of(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        """Yields the lines of a POST's response as they arrive, each with its line end."""
        return self.connection.lines("POST", f"/v1{path}", **_json(body))

    def read(self, content: bytes, kind: type[T]) -> T:
        """Decodes a response as this type.

        Raises `ServerUnreachable` where it has another shape: another program or release.
        """
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise self.not_ours(error) from error

    def not_ours(self, error: Exception) -> ServerUnreachable:
        """Gives the error for a response that this program's server would not send."""
        return ServerUnreachable(self.connection.url, f"its answer cannot be read ({error})")


def _json(body: Any) -> dict[str, Any]:
    try:
        content = msgspec.json.encode(_said(body) if isinstance(body, dict) else body)
    except (UnicodeEncodeError, OverflowError) as error:
        raise unsendable() from error
    return {"content": content, "headers": {"Content-Type": "application/json"}}


def _said(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
