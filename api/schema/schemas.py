"""The path parameters, and the responses about a server's health."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from litestar.params import PathParameter, QueryParameter
from msgspec import Meta, field
from msgspec.structs import asdict

from colmlm.api.errors import InvalidCursor, RightMissing
from colmlm.api.ports import Ports
from colmlm.api.routes.edits import WithToken
from colmlm.api.wire.answers import Page, Place, T, cursor, place_in
from colmlm.api.wire.requests import MAX_ID, MAX_PAGE, Id, Request, Threshold
from colmlm.kb.access.records import Right
from colmlm.kb.evidence.shown import Shown
from colmlm.kb.keys.records import KeysetHead
from colmlm.kb.removal.selector import Selector

PathId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class OwnWorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The worker process that a server runs. `failures` counts its latest consecutive unexpected exits.

    Its last output is on the console's page Status and in the log.
    """

    running: bool
    since: datetime
    failures: int
    restarts: int
    exit_code: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a server. `ok` is true if nothing is `missing`: it answers lookups and prompts.

    `index_seq` is the last change in this process's index, `head_seq` the last in the log; `index_lag` is how many were
    not yet in the index at the request. `checkpoint_id` is the loaded model's; lookups need it to be the active
    keyset's. `workers` is the number of live workers, and `worker` the one that this server runs. `degraded` holds
    `worker` where no jobs are done, and `model` where a model that may be wanted next is not loaded; `models_refused`
    says why, by checkpoint, and `models` are the checkpoints that are loaded.
    """

    ok: bool
    missing: list[str]
    database: bool
    migrations_at_head: bool
    head_seq: int | None = None
    index_seq: int | None = None
    index_lag: int | None = None
    active_keyset: KeysetHead | None = None
    checkpoint_id: str | None = None
    generator_loaded: bool
    degraded: list[str]
    workers: int | None = None
    worker: OwnWorkerHealth | None = None
    models: list[str] = []
    models_refused: dict[str, str] = {}


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a server should be sent requests. The names in `missing` and `degraded` are from fixed lists.

    A degraded server should be sent requests all the same (docs/operations.md).
    """

    ready: bool
    missing: tuple[str, ...]
    degraded: tuple[str, ...] = ()


# Makes pages of lists, and reads the cursors that requests bring back; `api.wire.answers` defines both.

Cursor = Annotated[
    str | None,
    QueryParameter(
        min_length=1, max_length=200, description="The `next` of the page before; none: the first"
    ),
]
Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE, description="The longest page to give")]


def page(found: Sequence[T], limit: int, of: str, place: Callable[[T], Place]) -> Page[T]:
    """Makes a page of `limit` items from up to `limit + 1` that were found; the extra one shows that more follow."""
    items = list(found[:limit])
    return Page(items=items, next=cursor(of, place(items[-1])) if len(found) > limit else None)


def place_of(given: str | None, of: str, length: int = 1) -> Place:
    """Decodes the place, `length` numbers, in a cursor of this list; zeros without one. Raises `InvalidCursor`."""
    if given is None:
        return (0,) * length
    try:
        said = place_in(given)
    except (ValueError, RecursionError) as error:
        raise InvalidCursor(of) from error
    match said:
        case [name, *place] if name == of and len(place) == length and all(map(_is_place, place)):
            return tuple(place)
    raise InvalidCursor(of)


def after_of(given: str | None, of: str) -> int:
    """Decodes the id or change in a cursor of this list; 0 without a cursor."""
    return place_of(given, of)[0]


def _is_place(number: object) -> bool:
    return type(number) is int and 0 <= number <= MAX_ID


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
        """Converts the parts to a selector. Raises `InvalidSelector`."""
        return Selector(**{**asdict(self), "fact_ids": tuple(self.fact_ids)})


# Limits what a token is shown: without the right `audit`, deleted, corrected and replaced texts are withheld.


def require_past(request: WithToken) -> None:
    """Raises `RightMissing` unless the token may read deleted, corrected and replaced texts."""
    if not request.user.may(Right.audit):
        raise RightMissing(request.user.role, Right.audit)


def shown_to(request: WithToken, ports: Ports) -> Shown:
    """Gives the view of the knowledge base that this token may read."""
    return ports.kb.shown(past=request.user.may(Right.audit))
