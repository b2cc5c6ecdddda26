"""The change log of this machine's knowledge base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colmlm.kb.evidence.diff import Diff, diff
from colmlm.kb.evidence.impact import Impact, impact_of
from colmlm.kb.log import audit, denials
from colmlm.kb.log.chain import Sealed, seal
from colmlm.kb.log.denials import DenialRecord
from colmlm.kb.log.signing import as_pem, signing_key
from colmlm.kb.log.witness import AuditReport, Head, check_database, export_log, signed_head
from colmlm.kb.records import ChangeRecord

if TYPE_CHECKING:
    from colmlm.kb.service import KnowledgeBase


@dataclass(frozen=True, slots=True)
class LocalLog:
    """See `cli.nouns.log.Log`."""

    kb: KnowledgeBase

    def changes(self, after: int, limit: int, **filters: Any) -> list[ChangeRecord]:
        with self.kb.sessions() as session:
            return audit.changes(session, after, limit, **filters)

    def diff(self, first: int, last: int, *, corpus: str | None, after: int, limit: int) -> Diff:
        return diff(self.kb, first, last, corpus=corpus, after=after, limit=limit)

    def denials(self, *, after: int, limit: int) -> list[DenialRecord]:
        with self.kb.sessions() as session:
            return denials.list_denials(session, after=after, limit=limit)

    def impact(self, fact_id: int) -> Impact:
        return impact_of(self.kb, fact_id)

    def verify(self, witnessed: Head | None) -> AuditReport:
        return check_database(self.kb, witnessed)

    def seal(self, seqs: Sequence[int], *, actor: str, reason: str, dry_run: bool) -> Sealed:
        return seal(self.kb, seqs, actor=actor, reason=reason, dry_run=dry_run)

    def head(self) -> dict[str, Any]:
        key = signing_key(self.kb.settings.home)
        with self.kb.sessions() as session:
            return signed_head(session, key)

    def public_key(self) -> str:
        return as_pem(signing_key(self.kb.settings.home).public_key())

    def export(self) -> Iterator[str]:
        return export_log(self.kb, signing_key(self.kb.settings.home))
