"""Makes pages of lists, and reads the cursors that requests bring back; `api.wire.pages` defines both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from litestar.params import QueryParameter

from colmlm.api.errors import InvalidCursor
from colmlm.api.wire.pages import Page, Place, T, cursor, place_in
from colmlm.api.wire.requests import MAX_ID, MAX_PAGE

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
