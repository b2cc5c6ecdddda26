"""Synced files: which folder a corpus follows, which files it was filled from, and what each gave.

Session first; nothing commits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from colmlm.kb.log import audit
from colmlm.kb.tables import SyncedFileRow, SyncedFolderRow


@dataclass(frozen=True, slots=True)
class SyncedFile:
    """A file by its path below the folder, and the ids of its documents.

    `digest` is of its bytes and how they were read; None where it has to be read again.
    """

    path: str
    digest: str | None
    documents: tuple[str, ...]


def followed(session: Session, corpus: str) -> Sequence[str]:
    """Gives the paths that lead to the folder that the corpus follows; none where it follows none."""
    return (
        session.scalars(select(SyncedFolderRow.places).where(SyncedFolderRow.corpus == corpus)).first() or ()
    )


def follow(session: Session, corpus: str, places: Sequence[str]) -> None:
    """Notes that the corpus follows the folder to which these paths lead."""
    row = insert(SyncedFolderRow).values(corpus=corpus, places=list(places))
    session.execute(
        row.on_conflict_do_update(index_elements=["corpus"], set_={"places": row.excluded.places})
    )


def synced_files(session: Session, corpus: str) -> dict[str, SyncedFile]:
    """Gives the files of the last sync, by their paths; one that it had not finished has to be read again."""
    rows = select(SyncedFileRow).where(SyncedFileRow.corpus == corpus)
    files: dict[str, SyncedFile] = {}
    for row in session.scalars(rows.order_by(SyncedFileRow.path, SyncedFileRow.part)):
        before = files[row.path].documents if row.path in files else ()
        files[row.path] = SyncedFile(row.path, row.digest, (*before, *row.documents))
    return files


def begin(session: Session, corpus: str, path: str, documents: Collection[str]) -> None:
    """Notes documents of a file before they are ingested, so that they are known where the sync does not finish."""
    named = (SyncedFileRow.corpus == corpus, SyncedFileRow.path == path)
    last = session.scalar(select(func.max(SyncedFileRow.part)).where(*named))
    session.add(
        SyncedFileRow(corpus=corpus, path=path, part=(last or 0) + 1, digest=None, documents=list(documents))
    )


def keep(session: Session, corpus: str, files: Collection[SyncedFile], gone: Collection[str]) -> None:
    """Notes what was read of these files, and that those at the paths `gone` are no more."""
    dropped = [*gone, *(file.path for file in files)]
    dropping = delete(SyncedFileRow).where(
        SyncedFileRow.corpus == corpus, SyncedFileRow.path == func.any(dropped)
    )
    session.execute(dropping)
    session.add_all(
        SyncedFileRow(
            corpus=corpus, path=file.path, part=0, digest=file.digest, documents=list(file.documents)
        )
        for file in files
    )


def keyed(session: Session, digests: Mapping[str, str]) -> dict[str, str]:
    """Keys digests of files with the secret of this database, so that what was erased cannot be guessed by them."""
    return {path: audit.keyed_digest(session, digest) for path, digest in digests.items()}
