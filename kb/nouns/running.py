"""What keeps a knowledge base running: jobs, keysets and access keys."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from datetime import timedelta

    from colmlm.kb.access.api_keys import ApiKeyRecord
    from colmlm.kb.jobs.kinds import Work
    from colmlm.kb.jobs.records import JobRecord
    from colmlm.kb.keys.activation import GateStanding
    from colmlm.kb.keys.records import KeysetRecord
    from colmlm.kb.switching.gate import GateLimits


class JobVerbs(Protocol):
    """Of `kb.jobs.queue.Jobs`."""

    def submit(self, work: Work, *, actor: str) -> JobRecord: ...

    def get(self, job_id: int) -> JobRecord: ...

    def cancel(self, job_id: int, *, actor: str) -> JobRecord: ...

    def num_workers(self) -> int | None:
        """How many were heard of lately; None where that is not told."""
        ...

    def list(
        self,
        *,
        kinds: Collection[str] | None = None,
        states: Collection[str] | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[JobRecord]: ...


class KeysetVerbs(Protocol):
    """Keysets; `kb.switching.keysets.Keysets` has most of it."""

    def listed(self) -> list[tuple[KeysetRecord, GateStanding]]: ...

    def show(self, keyset_id: int) -> KeysetRecord: ...

    def check(
        self,
        keyset_id: int,
        limits: GateLimits,
        *,
        plot: Path | None,
        checkpoint: Path | None,
        active_checkpoint: Path | None,
    ) -> dict[str, Any]:
        """The gate's report, as it is stored."""
        ...

    def activate(
        self, keyset_id: int, *, force: bool, max_edits: int, actor: str, reason: str
    ) -> KeysetRecord: ...

    def rollback(self, *, actor: str, reason: str) -> KeysetRecord: ...

    def retirable(self, keyset_id: int) -> KeysetRecord: ...

    def retire(self, keyset_id: int, *, actor: str, reason: str) -> KeysetRecord: ...

    def set_threshold(self, keyset_id: int, threshold: float) -> KeysetRecord: ...

    def rekey(
        self, keyset_id: int, *, corpus: str | None, kinds: str, checkpoint: Path | None
    ) -> KeysetRecord:
        """Key what a keyset has no key of, with its own checkpoint."""
        ...


class KeyVerbs(Protocol):
    """Of `kb.access.access.Access`. A dry run is done and undone."""

    def all(self) -> list[ApiKeyRecord]: ...

    def show(self, name: str) -> ApiKeyRecord: ...

    def create(
        self, name: str, role: str, *, expires_in: timedelta | None, rate_limit: int | None, dry_run: bool
    ) -> tuple[str, ApiKeyRecord]:
        """The token, and the key without it."""
        ...

    def rotate(
        self, name: str, *, grace: timedelta, expires_in: timedelta | None, dry_run: bool
    ) -> tuple[str, ApiKeyRecord]: ...

    def revoke(self, name: str, *, dry_run: bool) -> ApiKeyRecord: ...
