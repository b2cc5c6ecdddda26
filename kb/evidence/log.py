"""The verbs of the change log: lists, compares, verifies, signs and exports it, and acknowledges its breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from colmlm.kb.errors import NoSuchChange
from colmlm.kb.evidence.diff import diff
from colmlm.kb.evidence.records import Diff, DiffOptions
from colmlm.kb.log import audit, denials
from colmlm.kb.log.audit import Fitting
from colmlm.kb.log.chain import Sealed, seal_breaks
from colmlm.kb.log.denials import DenialRecord, NewDenial
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.log.signing import as_pem, signing_key
from colmlm.kb.log.witness import AuditReport, Head, check_database, export_log, hash_at, holds, signed_head
from colmlm.kb.store.store import Store


@dataclass(frozen=True, slots=True)
class Log:
    """The change log of a store."""

    store: Store

    def database_id(self) -> str:
        """Gives the id of this base, which its evidence and its events name it by."""
        with self.store.sessions() as session:
            return audit.database_id(session)

    def head_seq(self) -> int:
        """Gives the number of the last change, 0 where there is none."""
        with self.store.sessions() as session:
            return audit.head_seq(session)

    def changes(self, after: int = 0, limit: int = 100, **fitting: Unpack[Fitting]) -> list[ChangeRecord]:
        """Lists changes past `after`, oldest first, that match every given filter."""
        with self.store.sessions() as session:
            return audit.changes(session, after, limit, **fitting)

    def change(self, seq: int) -> ChangeRecord:
        """Gives one change. Raises `NoSuchChange`."""
        with self.store.sessions() as session:
            if not (found := audit.changes(session, seq - 1, 1)) or found[0].seq != seq:
                raise NoSuchChange(seq, audit.head_seq(session))
            return found[0]

    def counts(self, after: int, last: int) -> dict[str, int]:
        """Counts the changes past `after`, up to `last`, by kind."""
        with self.store.sessions() as session:
            return audit.counts(session, after, last)

    def changes_before(self, before: int, limit: int = 100, **fitting: Unpack[Fitting]) -> list[ChangeRecord]:
        """Lists changes before `before`, newest first, that match every given filter."""
        with self.store.sessions() as session:
            return audit.changes_before(session, before, limit, **fitting)

    def diff(self, first: int, last: int, **which: Unpack[DiffOptions]) -> Diff:
        """Compares the facts as of two changes. Raises `NoSuchChange`, `CorpusNotFound`, `InvalidQuery`."""
        with self.store.reports() as session:
            return diff(session, first, last, **which)

    def hash_at(self, seq: int) -> str | None:
        """Gives the hash of change `seq`, or None where the log has none; 0 has the genesis hash."""
        with self.store.sessions() as session:
            return hash_at(session, seq)

    def verify(self, witnessed: Head | None = None) -> AuditReport:
        """Checks the whole chain, and whether a witnessed head is in it."""
        with self.store.sessions() as session:
            return check_database(session, witnessed)

    def seal(self, seqs: Sequence[int], *, actor: str, reason: str, dry_run: bool = False) -> Sealed:
        """Acknowledges the breaks at these changes, all or none; a dry run is rolled back. Raises `NoOpenBreak`."""
        with self.store.sessions() as session:
            sealed = seal_breaks(session, seqs, actor, reason)
            session.rollback() if dry_run else session.commit()
        return sealed

    def head(self) -> dict[str, Any]:
        """Gives the head of the log as of now, signed with the key of this home."""
        with self.store.sessions() as session:
            return signed_head(session, signing_key(self.store.settings.home))

    def public_key(self) -> str:
        """Gives, as PEM, the public key for the signatures of this home."""
        return as_pem(signing_key(self.store.settings.home).public_key())

    def holds(self, witnessed: Head) -> bool:
        """Tells whether the log has a change with this number and hash. The chain up to there is not checked."""
        with self.store.sessions() as session:
            return holds(session, witnessed)

    def export(self) -> Iterator[str]:
        """Gives the log as JSON lines, from one snapshot of the database: its signed head, then every change."""
        key = signing_key(self.store.settings.home)
        with self.store.sessions() as session:
            yield from export_log(session, key)

    def denials(self, *, after: int = 0, limit: int = 100) -> list[DenialRecord]:
        """Lists denials, newest first; those older than denial `after`, if that is not 0."""
        with self.store.sessions() as session:
            return denials.list_denials(session, after=after, limit=limit)

    def deny(self, denial: NewDenial) -> None:
        """Stores a denial."""
        with self.store.sessions.begin() as session:
            denials.record_denial(session, denial)
