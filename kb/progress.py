"""Progress and remarks of verbs that take long, as they reach the caller."""

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
    """Report no progress."""
    yield lambda done, total: None


@dataclass(frozen=True, slots=True)
class Telling:
    """Choose where remarks and the progress of long work go. By default remarks are logged, and progress is not
    reported.
    """

    note: Callable[[str], None] = _log.info
    progress: Reporting = silently
