"""Waits for a job, on this machine or on a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from colmlm.api.nouns.running import JobVerbs
from colmlm.api.nouns.telling import Reporting

if TYPE_CHECKING:
    from colmlm.kb.jobs.records import JobRecord

POLL_SECONDS = 0.5


def awaited(jobs: JobVerbs, job_id: int, timeout: float | None, progress: Reporting) -> JobRecord:
    """Waits until the job has ended, or for `timeout` seconds (None: without limit), and gives its record."""
    deadline = None if timeout is None else time.monotonic() + timeout
    job = jobs.get(job_id)
    with progress(f"Job {job_id} ({job.kind})") as advance:
        while not job.is_over and (deadline is None or time.monotonic() < deadline):
            advance(job.done, job.total)
            time.sleep(POLL_SECONDS)
            job = jobs.get(job_id)
    return job
