"""Run every known hostile case on a server, a worker and a database: documents, headers, connections, bodies, races.

    python -m tests.acceptance.hostile
    python -m tests.acceptance.hostile --only races --long
    python -m tests.acceptance.hostile --only "host: user" --json

A case fails if the server answers with a 5xx, except a transient one with a problem document, or does what the case
forbids. At the end the base must be sound and hold nothing that was erased. The exit code is 1 if a case failed.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

from colmlm.kb.store.settings import Settings
from colmlm.lab.faults.harness import Figures, run_scenario
from tests.acceptance.hostile import aftermath, bodies, connections, files, headers, races
from tests.acceptance.hostile.cases import Case
from tests.acceptance.hostile.world import World, served

SHORT, LONG = 5, 100  # rounds of each race


def run(
    settings: Settings, rounds: int | None = None, *, only: str | None = None, long: bool = False
) -> Figures:
    """Run the cases of a group, or with a part of a name, by default all: `--long` has 100 rounds of each race."""
    with served(settings, rounds or (LONG if long else SHORT)) as world:
        results = list(_results(world, only))
    failed = sum(not one["ok"] for one in results)
    return {"tried": len(results), "failed": failed, "tried_ok": bool(results), "cases": results}


def _results(world: World, only: str | None) -> Iterator[dict[str, Any]]:
    chosen = [
        case
        for group in (headers, connections, bodies, files, races)
        for case in group.cases()
        if only is None or only == case.group or only in case.name
    ]
    for case in (*chosen, *aftermath.cases()):
        result = _tried(world, case)
        print(
            f"{'ok  ' if result['ok'] else 'FAIL'} {case.group}: {case.name}: {result['detail'][:300]}",
            file=sys.stderr,
        )
        yield result


def _tried(world: World, case: Case) -> dict[str, Any]:
    try:
        is_ok, said = True, case.attack(world)
        world.lives()
    except Exception as error:
        is_ok, said = False, f"{type(error).__name__}: {error}"[:2000]
    return {"name": case.name, "group": case.group, "ok": is_ok, "detail": said}


if __name__ == "__main__":
    # It ends the server, the worker and the database as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run_scenario(run)
