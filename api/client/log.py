"""The change log of a remote knowledge base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from colmlm.api.client.api import Api
from colmlm.api.client.only_there import options
from colmlm.api.wire.answers import NEWEST_CHANGES, Differences, SigningKey
from colmlm.kb.evidence.records import DIFFERENCES_LISTED, Diff, DiffOptions, FactDifference
from colmlm.kb.log.chain import Sealed
from colmlm.kb.log.denials import DenialRecord
from colmlm.kb.log.records import ChangeRecord
from colmlm.kb.log.witness import AuditReport, Head, check_log

if TYPE_CHECKING:
    from colmlm.kb.log.audit import Fitting


@dataclass(frozen=True, slots=True)
class RemoteLog:
    """`api.nouns.log.Log` over the API."""

    api: Api

    def changes(self, after: int = 0, limit: int = 100, **fitting: Unpack[Fitting]) -> list[ChangeRecord]:
        said = _as_texts(fitting)
        return self.api.listed("/changes", ChangeRecord, "changes", after=after, limit=limit, **said)

    def changes_before(self, before: int, limit: int = 100, **fitting: Unpack[Fitting]) -> list[ChangeRecord]:
        said = _as_texts(fitting) | {"order": "newest"}
        return self.api.listed("/changes", ChangeRecord, NEWEST_CHANGES, after=before, limit=limit, **said)

    def diff(self, first: int, last: int, **which: Unpack[DiffOptions]) -> Diff:
        listed = {"limit": DIFFERENCES_LISTED, **options(DiffOptions, which)}
        between = {"first": first, "last": last, "corpus": listed.pop("corpus", None)}
        counts = self.api.get("/changes/diff", Differences, **between, limit=1).counts
        of = "differences"
        found = self.api.listed("/changes/diff", FactDifference, of, **listed, **between)
        return Diff(first, last, counts, tuple(found))

    def denials(self, *, after: int, limit: int) -> list[DenialRecord]:
        return self.api.listed("/denials", DenialRecord, "denials", after=after, limit=limit)

    def verify(self, witnessed: Head | None = None) -> AuditReport:
        """Fetches the whole log and verifies it locally; only the public key is taken from the server."""
        return check_log(self.export(), self.api.connection.url, witnessed)

    def seal(self, seqs: Sequence[int], *, actor: str, reason: str, dry_run: bool) -> Sealed:
        body = {"seqs": list(seqs), "on_behalf_of": actor or None, "reason": reason, "dry_run": dry_run}
        return self.api.edit("/changes/seal", Sealed, body)

    def head(self) -> dict[str, Any]:
        return self.api.get("/changes/head", dict[str, Any])

    def public_key(self) -> str:
        return self.api.get("/signing-key", SigningKey).pem

    def export(self) -> Iterator[str]:
        return self.api.lines("/changes/export")


def _as_texts(fitting: Fitting) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value for name, value in fitting.items()
    }
