"""The verbs of the change log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack

if TYPE_CHECKING:
    from colmlm.kb.evidence.records import Diff, DiffOptions
    from colmlm.kb.log.audit import Fitting
    from colmlm.kb.log.chain import Sealed
    from colmlm.kb.log.denials import DenialRecord
    from colmlm.kb.log.records import ChangeRecord
    from colmlm.kb.log.witness import AuditReport, Head


class LogVerbs(Protocol):
    """What the change log can be asked for: changes, differences, denials, verification, and export."""

    def changes(self, after: int = 0, limit: int = 100, **fitting: Unpack[Fitting]) -> list[ChangeRecord]: ...

    def changes_before(
        self, before: int, limit: int = 100, **fitting: Unpack[Fitting]
    ) -> list[ChangeRecord]: ...

    def diff(self, first: int, last: int, **which: Unpack[DiffOptions]) -> Diff: ...

    def denials(self, *, after: int, limit: int) -> list[DenialRecord]: ...

    def verify(self, witnessed: Head | None = None) -> AuditReport: ...

    def seal(self, seqs: Sequence[int], *, actor: str, reason: str, dry_run: bool) -> Sealed:
        """Acknowledges breaks of the log by a change of kind "seal". A dry run is rolled back."""
        ...

    def head(self) -> dict[str, Any]: ...

    def public_key(self) -> str:
        """Gives, as PEM, the public key for the signatures of the base."""
        ...

    def export(self) -> Iterator[str]:
        """Gives the log as lines: the signed head, then every change."""
        ...
