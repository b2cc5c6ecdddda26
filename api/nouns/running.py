"""The verbs of jobs, keysets and tokens."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

if TYPE_CHECKING:
    from datetime import timedelta

    from colmlm.kb.access.records import TokenRecord
    from colmlm.kb.jobs.records import JobRecord
    from colmlm.kb.jobs.work import Work
    from colmlm.kb.keys.records import Activating, Adapting, GateStanding, KeysetRecord
    from colmlm.kb.switching.limits import GateLimits


class JobVerbs(Protocol):
    """What jobs can be asked for, as `kb.jobs.queue.Jobs` describes it."""

    def submit(self, work: Work, *, actor: str) -> JobRecord: ...

    def get(self, job_id: int) -> JobRecord: ...

    def cancel(self, job_id: int, *, actor: str) -> JobRecord: ...

    def num_workers(self) -> int | None:
        """Counts the workers with a recent heartbeat. Gives None where a server does not say."""
        ...

    def list(
        self,
        *,
        kinds: Collection[str] | None = None,
        states: Collection[str] | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[JobRecord]: ...


class GateOptions(TypedDict, total=False):
    """What a keyset is measured with: the models of both keysets (None: where they were last), and a file of plots."""

    plot: Path | None
    checkpoint: Path | None
    active_checkpoint: Path | None


class KeysetVerbs(Protocol):
    """What keysets can be asked for; `kb.switching.keysets.Keysets` describes most of it."""

    def listed(self) -> list[tuple[KeysetRecord, GateStanding]]: ...

    def show(self, keyset_id: int) -> KeysetRecord: ...

    def check(self, keyset_id: int, limits: GateLimits, **using: Unpack[GateOptions]) -> dict[str, Any]:
        """Measures a keyset against the gate, and gives the report as it is stored."""
        ...

    def activate(self, keyset_id: int, **how: Unpack[Activating]) -> KeysetRecord: ...

    def rollback(self, *, actor: str, reason: str) -> KeysetRecord: ...

    def retirable(self, keyset_id: int) -> KeysetRecord: ...

    def retire(self, keyset_id: int, *, actor: str, reason: str) -> KeysetRecord: ...

    def set_threshold(self, keyset_id: int, threshold: float) -> KeysetRecord: ...

    def rekey(
        self, keyset_id: int, *, corpus: str | None, kinds: str, checkpoint: Path | None
    ) -> KeysetRecord:
        """Makes the keys that a keyset lacks, and those that were predicted, with the keyset's own checkpoint."""
        ...

    def adapt(
        self, keyset_id: int, *, corpus: str | None, checkpoint: Path | None, **how: Unpack[Adapting]
    ) -> dict[str, Any]:
        """Predicts the keys that a keyset lacks from another's, and gives what was done as it is printed."""
        ...


class TokenVerbs(Protocol):
    """What tokens can be asked for, as `kb.access.access.Access` describes it. A dry run is rolled back."""

    def all(self) -> list[TokenRecord]: ...

    def own(self) -> TokenRecord | None:
        """Gives the token that the base is asked with; None where its own machine's user asks."""
        ...

    def of_secret(self, secret: str) -> TokenRecord | None:
        """Gives the working token of a secret, or None. Of a server only the token that it is asked with is known."""
        ...

    def show(self, name: str) -> TokenRecord: ...

    def create(
        self, name: str, role: str, *, expires_in: timedelta | None, rate_limit: int | None, dry_run: bool
    ) -> tuple[str, TokenRecord]:
        """Creates a token. Gives its secret, which nothing gives again, and its record."""
        ...

    def rotate(
        self, name: str, *, grace: timedelta, expires_in: timedelta | None, dry_run: bool
    ) -> tuple[str, TokenRecord]: ...

    def revoke(self, name: str, *, dry_run: bool) -> TokenRecord: ...
