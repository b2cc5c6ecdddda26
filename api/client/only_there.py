"""Refuses, by name, parameters that the API does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colmlm.kb.errors import NotHeeded

_NOT_HEEDED = "it can be heeded only on the machine of the knowledge base; leave it out with a server."
_ITS_KEY = "a server records this under the name of the token; leave it out."


def options(shape: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Gives the options of a call, which a `TypedDict` describes, as what to send.

    Raises `TypeError`, as a call does, where it has no such option, or where one is missing.
    """
    if unknown := given.keys() - shape.__annotations__.keys():
        raise TypeError(f"there is no option {', '.join(sorted(unknown))}")
    required: frozenset[str] = shape.__required_keys__  # type: ignore[attr-defined]
    if missing := required - given.keys():
        raise TypeError(f"it needs the option {', '.join(sorted(missing))}")
    return dict(given)


def refuse(**given: object) -> None:
    """Raises `NotHeeded` for the first of these parameters that is set."""
    for name, value in given.items():
        if value not in (None, False, "", (), []):
            raise NotHeeded(name, _ITS_KEY if name == "actor" else _NOT_HEEDED)
