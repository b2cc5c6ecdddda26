"""Jobs of a remote knowledge base, and work that is run there as a job."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from colmlm.api.client.api import Api
from colmlm.api.client.errors import JobNotDone, error_of
from colmlm.api.nouns.awaiting import awaited
from colmlm.api.wire.answers import Problem
from colmlm.kb.jobs.records import JobRecord

if TYPE_CHECKING:
    from colmlm.kb.jobs.work import Work


@dataclass(frozen=True, slots=True)
class RemoteJobs:
    """The verbs of `api.nouns.running.JobVerbs` over the API."""

    api: Api

    def submit(self, work: Work, *, actor: str) -> JobRecord:
        """Queues the work. The job's actor is the token's name, whatever `actor` says."""
        return self.api.edit(f"/jobs/{work.kind}", JobRecord, work)

    def get(self, job_id: int) -> JobRecord:
        return self.api.get(f"/jobs/{job_id}", JobRecord)

    def cancel(self, job_id: int, *, actor: str) -> JobRecord:
        return self.api.edit(f"/jobs/{job_id}/cancel", JobRecord)

    def num_workers(self) -> int | None:
        return None

    def list(
        self,
        *,
        kinds: Collection[str] | None = None,
        states: Collection[str] | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[JobRecord]:
        """Lists the jobs of kinds that the token may start. The API cannot filter by kind: its pages are filtered."""
        found: list[JobRecord] = []
        at = before or 0
        while len(found) < limit:
            page = self.api.listed("/jobs", JobRecord, "jobs", after=at, limit=limit, state=states)
            found += [job for job in page if kinds is None or job.kind in kinds]
            if len(page) < limit:
                break
            at = page[-1].job_id
        return found[:limit]

    def done(self, work: Work) -> dict[str, Any]:
        """Queues the work, waits for a remote worker to do it, and gives the result.

        Raises its error, or `JobNotDone`.
        """
        job_id = self.submit(work, actor="").job_id
        self.api.telling.note(
            f"Job {job_id} does it there, also if this command ends. See: colmlm jobs wait {job_id}"
        )
        job = awaited(self, job_id, None, self.api.telling.progress)
        if job.state == "succeeded":
            return job.result or {}
        if job.error is None:
            raise JobNotDone(job_id, job.state)
        raise error_of(msgspec.convert({"status": 500, **job.error}, Problem))
