"""Finds the reader for commands."""

from __future__ import annotations

from pathlib import Path

from colmlm.cli.settings import UserSettings


def reader_at(user: UserSettings, named: Path | None) -> Path:
    """Give the directory of the reader: what was named, that of the settings, or the released one."""
    from colmlm.model.annotate.checkpoint import RELEASED_READER

    return named or user.reader or RELEASED_READER


def verifying_reader_at(user: UserSettings) -> Path:
    """Give the directory of the reader that verifies questions: that of the settings, or the small one."""
    from colmlm.model.annotate.checkpoint import SMALL_READER

    return user.reader or SMALL_READER
