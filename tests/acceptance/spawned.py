"""Runs a second process of a test, with a pipe to it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any


@contextmanager
def spawned(work: Callable[..., None], *given: Any) -> Iterator[Connection]:
    """Runs `work` with these arguments and a pipe in a process that shares nothing with this one but the database."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(*given, theirs))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()
    assert process.exitcode == 0, "the other process ended with an error"
