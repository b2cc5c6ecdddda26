"""Fixtures for the tests of the knowledge base."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home whose folders the embedded server's own user may enter."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == Path.home().owner() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    return tmp_path / "home"
