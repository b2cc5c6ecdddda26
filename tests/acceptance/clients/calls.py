"""Runs the calls of one client and prints what came of each; read by the scripts beside it, in their environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass

QUESTION = "What is the capital of Peru?"
UNKNOWN = "Who was never written about?"
FORCED = {"mode": "forced"}
FINDING_NOTHING = {"mode": "forced", "threshold": 1}
VALUES = ("Lima", "Titicaca")
BATCH = 16


@dataclass(frozen=True)
class Server:
    """Where to ask, with which token, for which model."""

    url: str
    key: str
    model: str


def server() -> Server:
    """Gives the server that the arguments of the program name."""
    return Server(*sys.argv[1:4])


def check(holds: object, said: object) -> None:
    if not holds:
        raise AssertionError(f"{said!r}"[:300])


def report(*calls: Callable[[], object]) -> None:
    """Prints "green" for each call that ended, and what it raised for any other."""
    found = {}
    for call in calls:
        try:
            call()
            found[call.__name__] = "green"
        except Exception as error:
            found[call.__name__] = f"{type(error).__name__}: {error}"[:400]
    print(json.dumps(found))
