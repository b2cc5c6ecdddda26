"""Numbers of a server that nobody has had to change yet, so that they are no settings: handed in, by tests too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from colmlm.api.door.lanes import SIZES, Lane, Size

LONGEST_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How a server behaves where nothing is set.

    A stream that waits asks the database every `poll_seconds`, shows that it lives after `idle_seconds` of silence,
    and ends after `longest_seconds`. Probes are told what was found up to `readiness_seconds` ago,
    by a look of at most `look_seconds`. An edit keys at
    most `keyed_at_once` facts; more is a rekey's work, not a request's. `clock` gives seconds, by which rates are kept.
    """

    poll_seconds: float = 1.0
    idle_seconds: float = 15.0  # proxies cut connections on which nothing moves
    longest_seconds: float = LONGEST_SECONDS
    readiness_seconds: float = 1.0
    look_seconds: float = 5.0
    keyed_at_once: int = 256
    lanes: Mapping[Lane, Size] = field(default_factory=lambda: SIZES)
    clock: Callable[[], float] = time.monotonic
