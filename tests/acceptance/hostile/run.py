"""Runs the cases one after the other and collects their results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from colmlm.kb.store.settings import Settings
from tests.acceptance.hostile import aftermath, bodies, connections, files, headers, races
from tests.acceptance.hostile.cases import Case
from tests.acceptance.hostile.world import World, served

SHORT, LONG = 5, 100  # rounds of each race


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    group: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Outcome:
    tried: int
    failed: int
    cases: list[Result]


def run(settings: Settings, *, only: str | None = None, rounds: int = SHORT) -> Outcome:
    """Runs the cases of this group or name, by default all, on the empty, migrated database of `settings`."""
    with served(settings, rounds) as world:
        results = list(_results(world, only))
    return Outcome(len(results), sum(not one.ok for one in results), results)


def _results(world: World, only: str | None) -> Iterator[Result]:
    chosen = [
        case
        for group in (headers, connections, bodies, files, races)
        for case in group.cases()
        if only is None or only == case.group or only in case.name
    ]
    for case in (*chosen, *aftermath.cases()):
        result = _tried(world, case)
        print(
            f"{'ok  ' if result.ok else 'FAIL'} {case.group}: {case.name}: {result.detail[:300]}",
            file=sys.stderr,
        )
        yield result


def _tried(world: World, case: Case) -> Result:
    try:
        said = case.attack(world)
        world.lives()
    except Exception as error:
        return Result(case.name, case.group, False, f"{type(error).__name__}: {error}"[:2000])
    return Result(case.name, case.group, True, said)
