"""Parameters that resources share: ids, pages, selectors of facts, strict bodies, and what a token may be shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict, Unpack

import msgspec
from litestar import Request as Connection
from litestar.exceptions import ValidationException
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta, field
from msgspec.structs import asdict

from colmlm.api.errors import invalid_cursor, right_missing, unacceptable_body
from colmlm.api.ports import Ports
from colmlm.api.wire import MAX_ID, MAX_PAGE, Id, Page, Place, Request, T, Threshold, cursor, place_in
from colmlm.kb.access.records import Right, TokenRecord
from colmlm.kb.errors import InvalidQuery
from colmlm.kb.evidence.shown import CallerView
from colmlm.kb.facts.records import FactSearch
from colmlm.kb.principal import as_service, scope_of_caller, work_as_service
from colmlm.kb.removal.forget import Forgetting
from colmlm.kb.removal.selector import Selector

WithToken = Connection[TokenRecord, Any, Any]

PathId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]
Corpus = Annotated[str | None, QueryParameter(max_length=1000, description="Only of this corpus")]
OfDocument = Annotated[
    int | None, QueryParameter(ge=1, le=MAX_ID, description="Only facts that were read from this document")
]


# Makes pages of lists, and reads the cursors that requests bring back; `api.wire` defines both.

Cursor = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=200, description="The `next` of the page before; none: the first"
    ),
]
Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, description="The longest page to give")]


def page(found: Sequence[T], limit: int, of: str, place: Callable[[T], Place]) -> Page[T]:
    """Make a page of `limit` items from up to `limit + 1` that were found; the extra one shows that more follow."""
    items = list(found[:limit])
    return Page(items=items, next=cursor(of, place(items[-1])) if len(found) > limit else None)


def place_of(given: str | None, of: str, length: int = 1) -> Place:
    """Decode a cursor of the list `of` to a place of `length` numbers; zeros without one. Raise `InvalidCursor`."""
    if given is None:
        return (0,) * length
    try:
        said = place_in(given)
    except (ValueError, RecursionError) as error:
        raise invalid_cursor(of) from error
    match said:
        case [name, *place] if name == of and len(place) == length and all(map(_is_place, place)):
            return tuple(place)
    raise invalid_cursor(of)


def after_of(given: str | None, of: str) -> int:
    """Decode a cursor of the list `of` to the id or change in it; 0 without a cursor."""
    return place_of(given, of)[0]


def _is_place(number: object) -> bool:
    return type(number) is int and 0 <= number <= MAX_ID


def time_of(name: str, said: str | None) -> datetime | None:
    """Read a time in ISO 8601, in UTC if it names no zone. Raise `InvalidQuery`."""
    if said is None:
        return None
    try:
        time = datetime.fromisoformat(said)
    except ValueError as error:
        cause = f"{name} {said!r} is not a time such as 2026-01-31T12:00:00Z"
        raise InvalidQuery(cause, "The request cannot be answered") from error
    return time if time.tzinfo else time.replace(tzinfo=UTC)


# Selectors of facts in JSON, with the same parts as the options of `colmlm forget plan`.

Said = Annotated[str, Meta(min_length=1, max_length=10_000)]
Time = Annotated[datetime, Meta(tz=True)]


class SelectorParts(Request, frozen=True, kw_only=True):
    """Selects the facts that fit every given part; at least one, or `everything` alone.

    `document` is an id or corpus/name. `text` is matched literally in value and question, ignoring case; `question` is
    the exact text. `first_seq`, `last_seq`, `since` and `until` bound the change that created the fact. `like` is a
    fact that the others must resemble: the cosine of their keys is at least `radius` (null: the keyset's threshold).
    """

    fact_ids: Annotated[list[Id], Meta(max_length=10_000)] = field(default_factory=list)
    document: Said | None = None
    corpus: Said | None = None
    uri: Said | None = None
    uri_prefix: Said | None = None
    text: Said | None = None
    question: Said | None = None
    licence: Said | None = None
    first_seq: Id | None = None
    last_seq: Id | None = None
    since: Time | None = None
    until: Time | None = None
    like: Id | None = None
    radius: Threshold | None = None
    everything: bool = False

    def selector(self) -> Selector:
        """Convert the parts to a selector. Raise `InvalidSelector`."""
        return Selector(**{**asdict(self), "fact_ids": tuple(self.fact_ids)})


# Limits what a token is shown: without the right `audit`, deleted, corrected and replaced texts are withheld.


def require_past(request: WithToken) -> None:
    """Raise `RightMissing` unless the token may read deleted, corrected and replaced texts."""
    if not request.user.may(Right.audit):
        raise right_missing(request.user.role, Right.audit)


def require_shown(request: WithToken, sought: FactSearch) -> None:
    """Raise `RightMissing` if the search is for deleted facts or by changes, and the token may not audit."""
    if sought.get("state", "live") != "live" or any(
        sought.get(name) is not None for name in ("actor", "kind", "since", "until")
    ):
        require_past(request)


class NamedWork(TypedDict, total=False):
    """The target of a caller's edit: facts, a document, a corpus, or those of the change `seq` or a forget run."""

    fact_ids: Sequence[int]
    document_id: int
    corpus: str | None
    seq: int
    run_id: int


def edit_in_scope(ports: Ports, **named: Unpack[NamedWork]) -> None:
    """Check that a caller limited to corpora may read all named targets, and let the rest of this request edit them.

    Targets in another corpus, or in none, are not found, as if they did not exist. Callers of all corpora pass. Raises
    `FactNotFound`, `DocumentNotFound`, `CorpusNotFound`, `ChangeNotFound` or `ForgetRunNotFound`.
    """
    if scope_of_caller() is not None:
        _check_in_scope(ports, **named)
        work_as_service()


@contextmanager
def editing_in_scope(ports: Ports, **named: Unpack[NamedWork]) -> Iterator[None]:
    """Check as `edit_in_scope` does, and let the block edit, but not what follows it, which shows a page."""
    if scope_of_caller() is not None:
        _check_in_scope(ports, **named)
    with as_service():
        yield


def _check_in_scope(
    ports: Ports,
    fact_ids: Sequence[int] = (),
    document_id: int | None = None,
    corpus: str | None = None,
    seq: int | None = None,
    run_id: int | None = None,
) -> None:
    if corpus is not None:
        ports.kb.corpora.count(corpus, [])
    if fact_ids:
        ports.kb.facts.show_many(list(dict.fromkeys(fact_ids)))
    if document_id is not None:
        ports.kb.documents.read(document_id)
    if seq is not None:
        ports.kb.log.change(seq)
    if run_id is not None:
        Forgetting(ports.kb).run(run_id)


def shown_to(request: WithToken, ports: Ports) -> CallerView:
    """Give the view of the knowledge base that this token may read."""
    return ports.kb.caller_view(past=request.user.may(Right.audit))


# Parses request bodies strictly: a number in quotes is no number, and 0 is not false.

_PLACE = re.compile(r" - at `\$\.?(?P<place>[^`]*)`$")


class StrictRequest(Connection[Any, Any, Any]):
    """A request whose body must match its route's type exactly; a refusal names the place of the mistake."""

    async def json(self) -> Any:
        field = self.route_handler.parsed_data_field
        if field is None:
            return await super().json()
        body = await self.body()
        try:
            return _read(body, field.annotation)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, ValueError):  # each field is valid, but not their combination
                raise unacceptable_body(str(error.__cause__)) from error
            detail = (
                "Some fields have another type or size than this takes. Nothing was changed. Correct them."
            )
            raise ValidationException(detail, extra=[_fault(str(error))]) from error
        except msgspec.DecodeError as error:
            detail = f"The body is no JSON: {error}. Nothing was changed. Correct it and send it again."
            raise ValidationException(detail, extra=[]) from error


def _read(body: bytes, kind: Any) -> Any:
    """Decode the body into its type. 1.0 is accepted as an integer, as JSON has it."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return msgspec.convert(_whole(msgspec.json.decode(body)), kind)


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_whole(item) for item in value]
        case dict():
            return {name: _whole(item) for name, item in value.items()}
    return value


def _fault(said: str) -> dict[str, str]:
    found = _PLACE.search(said)
    place = found["place"] if found else ""
    return {"message": said[: found.start()] if found else said, "key": place, "source": "body"}
