"""Synced files: which files a corpus was filled from by a sync, and what each gave. Session first; nothing commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.log import audit
from colmlm.kb.tables import SyncedFileRow


@dataclass(frozen=True, slots=True)
class SyncedFile:
    """A file by its path below the folder, and the ids of its documents.

    `digest` is of its bytes and how they were read; None where it has to be read again.
    """

    path: str
    digest: str | None
    documents: tuple[str, ...]


def synced_files(session: Session, corpus: str) -> dict[str, SyncedFile]:
    """Gives the files of the last sync, by their paths."""
    rows = session.scalars(select(SyncedFileRow).where(SyncedFileRow.corpus == corpus))
    return {row.path: SyncedFile(row.path, row.digest, tuple(row.documents)) for row in rows}


def keep(session: Session, corpus: str, files: Iterable[SyncedFile], gone: Collection[str]) -> None:
    """Notes what was read of these files, and that those at the paths `gone` are no more."""
    dropping = delete(SyncedFileRow).where(
        SyncedFileRow.corpus == corpus, SyncedFileRow.path == func.any(list(gone))
    )
    session.execute(dropping)
    for file in files:
        said = {"digest": file.digest, "documents": list(file.documents)}
        row = insert(SyncedFileRow).values(corpus=corpus, path=file.path, **said)
        session.execute(row.on_conflict_do_update(index_elements=["corpus", "path"], set_=said))


def keyed(session: Session, digests: Mapping[str, str]) -> dict[str, str]:
    """Keys digests of files with the secret of this database, so that what was erased cannot be guessed by them."""
    return {path: audit.keyed_digest(session, digest) for path, digest in digests.items()}
