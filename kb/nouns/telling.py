"""How a verb that takes long says how far it is, to whoever called it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

Advance = Callable[[int, int | None], None]  # how much is done, of how much; None: nobody knows
Reporting = Callable[[str], AbstractContextManager[Advance]]  # what is done, by a description of it

_log = logging.getLogger("colmlm")


@contextmanager
def silently(description: str) -> Iterator[Advance]:
    """Says nothing of how far the work is."""
    yield lambda done, total: None


@dataclass(frozen=True, slots=True)
class Telling:
    """Where remarks go, and the progress of long work. A program hears remarks in the log and of progress nothing."""

    note: Callable[[str], None] = _log.info
    progress: Reporting = silently
