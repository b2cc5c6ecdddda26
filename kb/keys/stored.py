"""Stored records: columns of JSON that servers of two releases read while the ones take the place of the others.

Some releases refuse a record with a name that they do not know. So such a column has what the release before knows, and
one beside it the record as it is now. What a server of the release before wrote since is believed: then the one beside
it is of what was there before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

SINCE = "since"  # in a field's metadata: the migration before which no release knows it


def known_before(record: Any) -> dict[str, Any]:
    """Give the record, a dataclass, as the release before reads it: without fields that it does not know."""
    named = asdict(record)
    return {field.name: named[field.name] for field in fields(record) if SINCE not in field.metadata}


def read_stored(kind: type[T], known: Mapping[str, Any] | None, whole: Mapping[str, Any] | None) -> T | None:
    """Give a record from the column that the release before knows and the one beside it; None where there is none.

    Names that only a later release knows are passed over.
    """
    if known is None:
        return None
    is_of_it = whole is not None and known.items() <= whole.items()
    return msgspec.convert(whole if is_of_it else known, kind)
