"""Pruning: removes jobs that ended long ago. Their changes stay in the change log, with who asked for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, func, select

from colmlm.kb.errors import InvalidValue
from colmlm.kb.jobs.records import UNFINISHED
from colmlm.kb.jobs.uploads import Uploads
from colmlm.kb.service import KnowledgeBase
from colmlm.kb.tables import JobRow

LONGEST = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Pruned:
    """The number of jobs that were removed, or would be in a dry run, in all and by state. They had ended `before`."""

    dry_run: bool
    before: datetime
    num_jobs: int
    states: dict[str, int]


def prune(kb: KnowledgeBase, older_than: timedelta, *, dry_run: bool = False) -> Pruned:
    """Removes jobs that ended longer than `older_than` ago by the database's clock, with their results.

    The files that jobs read are removed when they end; where that failed, it is done now. Raises `InvalidValue`.
    """
    if not timedelta(0) <= older_than <= LONGEST:
        raise InvalidValue("age of jobs", f"{older_than} is not between nothing and {LONGEST.days} days")
    with kb.sessions.begin() as session:
        before = session.scalars(select(func.clock_timestamp() - older_than)).one()
        ended = (JobRow.state.not_in(UNFINISHED), JobRow.finished_at < before)
        columns = (JobRow.kind, JobRow.arguments, JobRow.state)
        if dry_run:
            found = session.execute(select(*columns).where(*ended)).all()
        else:
            found = session.execute(delete(JobRow).where(*ended).returning(*columns)).all()
    if not dry_run:
        uploads = Uploads.of(kb.settings)
        for job in found:
            uploads.discard(job.kind, job.arguments)
    states = Counter(job.state for job in found)
    return Pruned(dry_run, before.astimezone(UTC), len(found), dict(sorted(states.items())))
