"""Numbers of a server that are parameters but no settings, since no installation has had to change them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from colmlm.api.door.lanes import SIZES, Lane, Size

LONGEST_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The intervals and limits of a server.

    A stream that waits queries the database every `poll_seconds`, sends a comment after `idle_seconds` of silence, and
    ends after `longest_seconds`. Probes get a result that is up to `readiness_seconds` old, of a check that takes at
    most `look_seconds`. An edit keys at most `keyed_at_once` facts at once; more is left to a rekey. A request searches
    files of at most `most_scanned` bytes. `clock` gives seconds, by which rate limits are kept.
    """

    poll_seconds: float = 1.0
    idle_seconds: float = 15.0  # proxies close connections on which nothing is sent
    longest_seconds: float = LONGEST_SECONDS
    readiness_seconds: float = 1.0
    look_seconds: float = 5.0
    keyed_at_once: int = 256
    most_scanned: int = 1 << 30  # bytes, read twice: some ten seconds
    lanes: Mapping[Lane, Size] = field(default_factory=lambda: SIZES)
    clock: Callable[[], float] = time.monotonic
