"""The second database of a round, into which a backup is restored, or which is migrated to head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colmlm.kb.store.settings import Settings


@dataclass(frozen=True, slots=True)
class CrashTarget:
    """A database, and a folder for its home and for the backup and log that are restored into it."""

    url: str
    folder: str

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def settings(self) -> Settings:
        return Settings(home=self.path / "home", database_url=self.url, actor="crashlab")

    @property
    def backup(self) -> Path:
        return self.path / "base.backup"

    @property
    def log(self) -> Path:
        return self.path / "changes.jsonl"
