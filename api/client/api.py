"""Send requests to API v1 and decode the responses into the records of `kb`.

`Api` has one method for each kind of request: read, list, ask, edit, read lines. `get_verb`, `list_verb` and
`edit_verb` make the verbs of a resource that are one request each, from the route and the names of the parameters, so
that a signature is written in `kb` alone. `tests/cli/bases/test_resources.py` compares the two.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, TypeVar, overload
from urllib.parse import quote

import msgspec

from colmlm.api.client.connection import Connection, ServerUnreachable, answer_lost, unsendable
from colmlm.api.wire import MAX_PAGE, Page, cursor, place_in
from colmlm.kb.errors import NotHeeded
from colmlm.kb.log.records import require_options
from colmlm.kb.progress import Advance, Telling

T = TypeVar("T")
R = TypeVar("R")

_UPLOAD_BLOCK = 1 << 18  # bytes
_NOT_HEEDED = "it works only on the machine of the knowledge base. Leave it out with a server."
_ITS_KEY = "the server takes the name from the token. Leave it out."


@dataclass(frozen=True, slots=True)
class Api:
    """API v1 of one server. An error response is raised as the `KBError` that the server raised."""

    connection: Connection
    telling: Telling = field(default_factory=Telling)

    def get(self, path: str, kind: type[T], /, **given: Any) -> T:
        response = self.connection.request("GET", f"/v1{path}", is_repeatable=True, params=drop_none(given))
        return self.decode_response(response.content, kind)

    def read_list(
        self, path: str, kind: type[T], of: str, /, *, after: int = 0, limit: int | None = None, **given: Any
    ) -> list[T]:
        """Read the list `of` page by page from after the place `after`, to its end or up to `limit` items."""
        found: list[T] = []
        at = cursor(of, (after,)) if after else None
        while limit is None or len(found) < limit:
            size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(found))
            page: Page[T] = self.get(path, Page[kind], **given, cursor=at, limit=size)  # type: ignore[valid-type]
            found += page.items
            if (at := page.next) is None:
                break
        return found

    def read_list_part(
        self, path: str, kind: type[T], of: str, /, *, after: int, limit: int, **given: Any
    ) -> tuple[list[Any], T, int | None]:
        """Read a part of a list whose pages, of the type `kind`, say more than their items.

        Give up to `limit` items, the last page, and the place where the next part begins (None: there is none).
        """
        items: list[Any] = []
        at: int | None = after
        while True:
            size = min(MAX_PAGE, limit - len(items))
            page: Any = self.get(path, kind, **given, cursor=cursor(of, (at,)) if at else None, limit=size)
            items += page.items
            at = place_in(page.next)[1] if page.next else None
            if at is None or len(items) >= limit:
                return items, page, at

    def ask(self, path: str, kind: type[T], body: Any) -> T:
        """Send a POST that changes nothing, so it may be repeated."""
        return self._send("POST", path, kind, body, {})

    def edit(self, path: str, kind: type[T], body: Any = None, *, method: str = "POST") -> T:
        """Send an edit under an `Idempotency-Key`, so that the server carries it out once even if it is sent again.

        Raises `AnswerLost` where the request was sent and no response came, so that the edit may have been made.
        """
        try:
            return self._send(method, path, kind, body, {"Idempotency-Key": secrets.token_hex(16)})
        except ServerUnreachable as error:
            raise (answer_lost(error) if error.was_sent else error) from error

    def post_once(self, path: str, kind: type[T], body: Any) -> T:
        """Send a POST that is repeated only where the server was not reached, since each one would be carried out."""
        response = self.connection.request("POST", f"/v1{path}", is_repeatable=False, **_json(body))
        return self.decode_response(response.content, kind)

    def _send(self, method: str, path: str, kind: type[T], body: Any, headers: dict[str, str]) -> T:
        request = {} if body is None else _json(body)
        request["headers"] = headers | request.get("headers", {})
        response = self.connection.request(method, f"/v1{path}", is_repeatable=True, **request)
        return self.decode_response(response.content, kind)

    def read_as_media_type(self, path: str, media_type: str) -> dict[str, Any]:
        """Read a resource as JSON of another media type."""
        asked = {"Accept": media_type}
        response = self.connection.request("GET", f"/v1{path}", is_repeatable=True, headers=asked)
        return self.decode_response(response.content, dict[str, Any])

    def text(self, path: str) -> str:
        """Give the body of a response unparsed, decoded as UTF-8."""
        response = self.connection.request("GET", f"/v1{path}", is_repeatable=True)
        return response.content.decode()

    def lines(self, path: str, **given: Any) -> Iterator[str]:
        """Yield the lines of a GET's response as they arrive, each with its line end."""
        return self.connection.lines("GET", f"/v1{path}", params=drop_none(given))

    def lines_of(self, path: str, body: dict[str, Any]) -> Iterator[str]:
        """Yield the lines of a POST's response as they arrive, each with its line end."""
        return self.connection.lines("POST", f"/v1{path}", **_json(body))

    def upload(self, file: Path, name: str | None = None) -> str:
        """Upload a file, by default under its own name, and give the id of the upload.

        The server keeps it until a job is done with it, or for a day. The request is retried only where the server did
        not accept it.
        """
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
        name = name or file.name
        with self.telling.progress(f"Uploading {name} (KB)") as advance:
            response = self.connection.request(
                "POST",
                "/v1/uploads",
                is_repeatable=False,
                params={"name": name},
                headers=headers,
                content=_FileBlocks(file, advance),
            )
        return str(self.decode_response(response.content, dict[str, Any])["upload_id"])

    def decode_response(self, content: bytes, kind: type[T]) -> T:
        """Decode a response as this type.

        Raises `ServerUnreachable` if it has another shape, as from another program or another version of this one.
        """
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise self.not_ours(error) from error

    def not_ours(self, error: Exception) -> ServerUnreachable:
        """Make the error for a response that this program's server would not send."""
        cause = f"its answer cannot be read ({error}). Install the server's release of colmlm here"
        error = ServerUnreachable(self.connection.url, cause, was_sent=True)
        error.was_sent = False  # so that a process of this machine asks its own base instead
        return error


@dataclass(frozen=True, slots=True)
class _FileBlocks:
    """The bytes of a file in blocks, read from its start for each attempt to send it. `advance` is told the kB."""

    file: Path
    advance: Advance

    def __iter__(self) -> Iterator[bytes]:
        total, sent = self.file.stat().st_size, 0
        with self.file.open("rb") as stream:
            stream.seek(0)  # on macOS a second open of /dev/fd goes on where the first stopped
            while block := stream.read(_UPLOAD_BLOCK):
                yield block
                sent += len(block)
                self.advance(sent // 1000, total // 1000)


def _json(body: Any) -> dict[str, Any]:
    try:
        content = msgspec.json.encode(drop_none(body) if isinstance(body, dict) else body)
    except (UnicodeEncodeError, OverflowError) as error:
        raise unsendable() from error
    return {"content": content, "headers": {"Content-Type": "application/json"}}


def drop_none(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def on_behalf(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the parameter `actor` to `on_behalf_of`, since the API's actor is the token."""
    body = dict(given)
    actor = body.pop("actor")
    return {**body, "on_behalf_of": actor or None}


def options(shape: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of a call, described by the `TypedDict` `shape`, to the fields of a request.

    Raises `TypeError`, as a call does, where it has no such option, or where one is missing.
    """
    require_options(shape, given)
    return dict(given)


def refuse(**given: object) -> None:
    """Raise `NotHeeded` for the first of these parameters that is set, since the API does not have it."""
    for name, value in given.items():
        if value not in (None, False, "", (), []):
            raise NotHeeded(name, _ITS_KEY if name == "actor" else _NOT_HEEDED)


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of a remote knowledge base, with the verbs that its class in `kb` has. Threads may share it."""

    api: Api


def get_verb(path: str, kind: type[T], *given: str) -> Callable[..., T]:
    """Make a verb that reads a resource. Parameters that are not in the path go into the query."""

    def send(resource: Resource, /, *args: Any, **kwargs: Any) -> T:
        where, query = call(args, kwargs)
        return resource.api.get(where, kind, **{name: _time_as_text(value) for name, value in query.items()})

    call = _VerbParameters(path, given)
    return call.describe(send)


def list_verb(path: str, kind: type[T], of: str, *given: str, **sent_as: str) -> Callable[..., list[T]]:
    """Make a verb that reads the list `of`, page by page; `after` and `limit` say which part of it."""

    def send(resource: Resource, /, *args: Any, **kwargs: Any) -> list[T]:
        where, query = call(args, kwargs)
        query = {sent_as.get(name, name): _time_as_text(value) or None for name, value in query.items()}
        return resource.api.read_list(where, kind, of, after=query.pop("after", None) or 0, **query)

    call = _VerbParameters(path, given)
    return call.describe(send)


@overload
def edit_verb(path: str, kind: type[T], *given: str, to: None = None, **how: Any) -> Callable[..., T]: ...


@overload
def edit_verb(
    path: str, kind: type[T], *given: str, to: Callable[[T], R], **how: Any
) -> Callable[..., R]: ...


def edit_verb(
    path: str,
    kind: type[Any],
    *given: str,
    to: Callable[[Any], Any] | None = None,
    method: str = "POST",
    shape: type | None = None,
    here_only: tuple[str, ...] = (),
    is_edit: bool = True,
    **sent_as: str,
) -> Callable[..., Any]:
    """Make a verb that edits (or asks, if not `is_edit`). Parameters that are not in the path go into the body.

    Parameters of `here_only` are refused where they are set, and `sent_as` renames a parameter for the body. `to` makes
    the verb's result from the response, which is of the type `kind`.
    """

    def send(resource: Resource, /, *args: Any, **kwargs: Any) -> Any:
        where, body = call(args, kwargs)
        refuse(**{name: body.pop(name) for name in here_only if name in body})
        body = on_behalf(body) if "actor" in body else body
        named = {sent_as.get(name, name): value for name, value in body.items()} or None
        api = resource.api
        done = api.edit(where, kind, named, method=method) if is_edit else api.ask(where, kind, named)
        return done if to is None else to(done)

    call = _VerbParameters(path, given, shape)
    return call.describe(send)


class _VerbParameters:
    """The parameters of a verb: those of its path, then these names. One that ends in "?" or "=50" may be left out.

    A name after "*" is given by keyword. Those of a `TypedDict` follow, where the verb takes its options.
    """

    def __init__(self, path: str, given: tuple[str, ...], shape: type | None = None) -> None:
        self.path, self.shape = path, shape
        kind: Any = Parameter.POSITIONAL_OR_KEYWORD
        self.parameters: list[Parameter] = []
        for name in (*re.findall(r"{(\w+)}", path), *given):
            if name == "*":
                kind = Parameter.KEYWORD_ONLY
                continue
            named, has_default, default = name.removesuffix("?").partition("=")
            chosen: Any = int(default) if has_default else None if name.endswith("?") else Parameter.empty
            self.parameters.append(Parameter(named, kind, default=chosen))
        self.own = {one.name for one in self.parameters}
        self.defaults = {
            one.name: one.default for one in self.parameters if one.default not in (None, Parameter.empty)
        }
        self.signature = Signature(self.parameters)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Give the path with its parameters in place, and the other parameters. Raises `TypeError` as a call does."""
        chosen: dict[str, Any] = {}
        if self.shape is not None:
            chosen = options(self.shape, {key: value for key, value in kwargs.items() if key not in self.own})
            kwargs = {name: value for name, value in kwargs.items() if name in self.own}
        said = {**self.defaults, **self.signature.bind(*args, **kwargs).arguments, **chosen}
        return re.sub(r"{(\w+)}", lambda found: quote_part(said.pop(found[1])), self.path), said

    def describe(self, send: Callable[..., T]) -> Callable[..., T]:
        """Give `send` the verb's signature, as `inspect` reads it, and return `send`."""
        resource = Parameter("self", Parameter.POSITIONAL_ONLY)
        parameters = [resource, *self.parameters]
        if self.shape is not None:
            about = f"Unpack[{self.shape.__name__}]"
            parameters.append(Parameter("options", Parameter.VAR_KEYWORD, annotation=about))
        send.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what `inspect` reads
        return send


def quote_part(value: object) -> str:
    """Quote a value as one part of a path."""
    return quote(str(value), safe="", errors="surrogatepass")


def _time_as_text(value: object) -> object:
    """Give a time as text in the form of ISO 8601, and other values as they are."""
    return value.isoformat() if isinstance(value, datetime) else value
