"""Records of jobs as plain data, and of their work: its arguments, the right that it needs, and its lock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from colmlm.kb.access.records import Right
from colmlm.kb.principal import Principal
from colmlm.kb.progress import Reporting

MAX_ID = 2**63 - 1

Id = Annotated[int, Meta(ge=1, le=MAX_ID)]

Name = Annotated[
    str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*[^\x00-\x20\x7f][^\x00-\x1f\x7f]*$")
]

Reason = Annotated[
    str,
    Meta(
        max_length=1000, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$", description="Why; it stays in the change log"
    ),
]

FileName = Annotated[
    str, Meta(max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$", description="A name, no path")
]

UploadId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]

Kinds = Literal["context", "context,question"]

Share = Annotated[float, Meta(ge=0, le=1)]

Rate = Annotated[float, Meta(ge=0.001, le=0.5)]


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a job. Jobs with the same `lock` run one after the other; None locks nothing."""

    kind: ClassVar[str]
    right: ClassVar[Right]

    @property
    def lock(self) -> str | None:
        return self.kind

    @property
    def uploads(self) -> tuple[str, ...]:
        """The uploaded files that this work reads, and that are removed when it is over."""
        return ()


POLL_SECONDS = 0.5
UNFINISHED = ("queued", "running")
STATES = (*UNFINISHED, "succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job. `state` is queued, running, succeeded, failed or cancelled; `error` a problem document where it failed.

    `done` of `total` (None: unknown) say how far it is, in the unit that `message` names. `attempts` counts its starts
    without those that a worker handed back. `cancelled_by` asked for its end. `principal` was authenticated when the
    job was queued; None in jobs that an older version queued.
    """

    job_id: int
    kind: str
    arguments: dict[str, Any]
    actor: str
    request_id: str | None
    state: str
    done: int
    total: int | None
    message: str | None
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempts: int
    cancelled_by: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    heartbeat_at: datetime | None
    principal: Principal | None = None

    @property
    def is_over(self) -> bool:
        return self.state not in UNFINISHED


def wait_for_job(
    read: Callable[[int], JobRecord], job_id: int, timeout: float | None, progress: Reporting
) -> JobRecord:
    """Wait until the job has ended, or for `timeout` seconds (None: without limit), and give its record."""
    deadline = None if timeout is None else time.monotonic() + timeout
    job = read(job_id)
    with progress(f"Job {job_id} ({job.kind})") as advance:
        while not job.is_over and (deadline is None or time.monotonic() < deadline):
            advance(job.done, job.total)
            time.sleep(POLL_SECONDS)
            job = read(job_id)
    return job
