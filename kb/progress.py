"""Callbacks by which long verbs report their progress and remarks to the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

Advance = Callable[[int, int | None], None]  # called with how much is done, and of how much (None: unknown)
Reporting = Callable[[str], AbstractContextManager[Advance]]  # called with a description of the work

_log = logging.getLogger("colmlm")


@contextmanager
def silently(description: str) -> Iterator[Advance]:
    """Yield a callback that ignores the progress of the work."""
    yield lambda done, total: None


@dataclass(frozen=True, slots=True)
class Telling:
    """The callbacks for remarks and the progress of long work: remarks are logged and progress dropped by default."""

    note: Callable[[str], None] = _log.info
    progress: Reporting = silently
