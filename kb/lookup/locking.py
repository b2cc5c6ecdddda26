"""The lock of an index: searches run beside each other, and an edit alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadWriteLock:
    """A lock for many readers or one writer. A waiting writer keeps new readers waiting behind it."""

    def __init__(self) -> None:
        self._gate, self._left, self._readers = threading.Lock(), threading.Condition(), 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._gate, self._left:
            self._readers += 1
        try:
            yield
        finally:
            with self._left:
                self._readers -= 1
                self._left.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._gate:
            with self._left:
                self._left.wait_for(lambda: self._readers == 0)
            yield
