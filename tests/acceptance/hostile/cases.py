"""Cases of hostile input: each has a name, a group and an attack on a world. A failed check raises `Wrong`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.acceptance.hostile.world import World, Wrong


class Case(NamedTuple):
    """A hostile case. `attack` runs it and describes its result in a few words."""

    group: str
    name: str
    attack: Callable[[World], str]


def expect(found: bool, what: str) -> None:
    if not found:
        raise Wrong(what)
