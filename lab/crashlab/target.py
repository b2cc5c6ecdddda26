"""The second database of a round: for a restore, a migration, a sync of a folder or an import of a release."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from colmlm.kb.store.settings import Settings

CORPUS = "crashlab"


class Who(TypedDict):
    """The actor and the reason that every edit takes."""

    actor: str
    reason: str


WHO: Who = {"actor": "crashlab", "reason": "crashlab"}


@dataclass(frozen=True, slots=True)
class CrashTarget:
    """A database, and a folder for its home and for what is restored, synced or imported into it."""

    url: str
    folder: str

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def settings(self) -> Settings:
        return Settings(home=self.path / "home", database_url=self.url, actor=WHO["actor"])

    @property
    def backup(self) -> Path:
        return self.path / "base.backup"

    @property
    def log(self) -> Path:
        return self.path / "changes.jsonl"

    @property
    def followed(self) -> Path:
        return self.path / "followed"

    @property
    def release(self) -> Path:
        return self.path / "release"
