"""Kept backups: the files that jobs write into the folder `backups` of the home."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from colmlm.kb.store.settings import Settings


@dataclass(frozen=True, slots=True)
class KeptBackup:
    """A file in the folder of backups, as the file system describes it. `verify_backup` tells whether it is intact."""

    name: str
    num_bytes: int
    written_at: datetime


def backup_folder(settings: Settings) -> Path:
    """Give the folder that jobs write backups into. It need not exist."""
    return settings.home / "backups"


def kept_backups(settings: Settings) -> list[KeptBackup]:
    """List the backups of this home, newest first, without those that are still being written."""
    folder = backup_folder(settings)
    if not folder.is_dir():
        return []
    files = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    kept = [
        KeptBackup(file.name, said.st_size, _moment(said.st_mtime)) for file in files if (said := file.stat())
    ]
    return sorted(kept, key=lambda one: one.written_at, reverse=True)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
