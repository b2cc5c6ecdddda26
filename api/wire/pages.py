"""Pages: all lists are paginated alike. A request takes `cursor`, a page gives `next`; null is the end.

A cursor holds where the last page ended, and of which list. It is opaque: clients pass it back unchanged.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")
Place = tuple[int, ...]
NEWEST_CHANGES = "newest changes"  # the list of changes from the newest on, whose cursors are its own


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list. `next` is the cursor of the page after it; null where this is the last."""

    items: list[T]
    next: str | None


class CountedPage(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list, with how many things the whole list has; there are more than `total` unless `is_exact`."""

    items: list[T]
    next: str | None
    total: int
    is_exact: bool


def cursor(of: str, place: Place) -> str:
    """Encodes the cursor of the page after this place of a list."""
    said = json.dumps([of, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(said).decode().rstrip("=")


def place_in(cursor: str) -> Any:
    """Decodes what a cursor holds: the name of its list, and the place. Raises `ValueError` where it is none."""
    return json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
