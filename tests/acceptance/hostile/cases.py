"""Cases: a name, a group, and what is done to a world; who finds a fault raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.acceptance.hostile.world import World, Wrong


class Case(NamedTuple):
    """`attack` says in a few words what came of it."""

    group: str
    name: str
    attack: Callable[[World], str]


def expect(found: bool, what: str) -> None:
    if not found:
        raise Wrong(what)
