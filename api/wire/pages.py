"""Pages: all lists are paginated alike. A request takes `cursor`, a page gives `next`; null is the end.

A cursor holds where the last page ended, and of which list. It is opaque: clients pass it back unchanged.
"""

from __future__ import annotations

import base64
import json
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
Place = tuple[int, ...]


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list. `next` is the cursor of the page after it; null where this is the last."""

    items: list[T]
    next: str | None


def cursor(of: str, place: Place) -> str:
    """Encodes the cursor of the page after this place of a list."""
    said = json.dumps([of, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(said).decode().rstrip("=")
