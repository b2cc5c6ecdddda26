"""Counts the functions of this program between a door and the first SQL of a verb."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import psycopg
import pytest

# The verb's own statements are the ones below this file: those before it authenticate and connect.
VERB = "kb/facts/edits.py"
PROGRAM = ("kb/", "api/", "cli/", "model/", "migrations/")


def own_frames() -> list[str]:
    """Name the functions of this program on the stack of this thread, outermost first."""
    frame: FrameType | None = sys._getframe()
    found: list[str] = []
    while frame is not None:
        _, _, path = frame.f_code.co_filename.rpartition("/colmlm/")
        if path.startswith(PROGRAM):
            found.append(f"{path} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


@contextmanager
def recorded_hops() -> Iterator[list[list[str]]]:
    """Record the stack at each statement of the verb, as psycopg is told to execute it."""
    stacks: list[list[str]] = []
    execute = psycopg.Cursor.execute

    def executed(self: Any, *given: Any, **options: Any) -> Any:
        frames = own_frames()
        if any(frame.startswith(VERB) for frame in frames):
            stacks.append(frames)
        return execute(self, *given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", executed)
        yield stacks
