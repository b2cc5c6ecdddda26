"""The checks of `colmlm doctor` that workers do the jobs, and that receivers of webhooks take what they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from colmlm.cli.operating.findings import CheckResult
from colmlm.kb.errors import DatabaseUnavailable
from colmlm.kb.jobs import attendance
from colmlm.kb.jobs.queue import Jobs
from colmlm.kb.store import database
from colmlm.kb.store.store import Store
from colmlm.kb.webhooks.webhooks import Webhooks

if TYPE_CHECKING:
    from colmlm.kb.jobs.attendance import WorkerState
    from colmlm.kb.store.settings import Settings
    from colmlm.kb.webhooks.records import Webhook

_BY_HAND = "Its lines are in the server's log; colmlm worker --verbose runs one by hand."


def examine_worker(settings: Settings) -> Iterator[CheckResult]:
    """Checks for workers with a heartbeat, for jobs that wait, and for a server's note that its own worker fails."""
    state, heard, waiting = attendance.noted(settings.home), 0, 0
    try:
        heard, waiting = _asked(settings)
    except DatabaseUnavailable:
        yield CheckResult("worker", "warning", "not known without the database", "Mend the database first.")
        return
    if state is not None:
        yield CheckResult("worker", "warning" if heard else "failed", _said(state), _BY_HAND)
    elif heard:
        yield CheckResult("worker", "ok", f"{heard} heard of lately")
    elif waiting:
        remedy = "Run: colmlm worker"
        yield CheckResult(
            "worker", "warning", f"{waiting:,} jobs wait, and no worker was heard of lately", remedy
        )
    else:
        yield CheckResult("worker", "ok", "none was heard of lately, and no job waits for one")


def examine_webhooks(settings: Settings) -> Iterator[CheckResult]:
    """Checks for webhooks that fail or were given up; says nothing where there are none."""
    found = _subscribed(settings)
    for webhook in found:
        if webhook.last_error is not None:
            told = f"{webhook.webhook_id} is {webhook.state} at change {webhook.delivered_seq}: {webhook.last_error}"
            remedy = f"Mend its receiver; colmlm webhooks test {webhook.webhook_id}, then resume."
            yield CheckResult("webhooks", "failed" if webhook.state == "failed" else "warning", told, remedy)
    if found and all(webhook.last_error is None for webhook in found):
        yield CheckResult("webhooks", "ok", f"{len(found)}, none of which fails")


def _subscribed(settings: Settings) -> list[Webhook]:
    """Lists the webhooks; none where the database does not answer, which another check says, or is not at its head."""
    try:
        engine = database.connect(settings)
    except DatabaseUnavailable:
        return []
    try:
        return Webhooks(Store(settings, engine)).all() if database.is_at_head(engine) else []
    finally:
        engine.dispose()


def _asked(settings: Settings) -> tuple[int, int]:
    """Counts the workers and the waiting jobs; gives 0 of both where the schema is not this program's."""
    engine = database.connect(settings)
    try:
        if not database.is_at_head(engine):
            return 0, 0
        jobs = Jobs(Store(settings, engine))
        return jobs.num_workers(), jobs.num_waiting()
    finally:
        engine.dispose()


def _said(state: WorkerState) -> str:
    last = f": {state.last_error[-1]}" if state.last_error else ""
    return (
        f"the server's worker ended {state.failures} times in a row, "
        f"last with code {state.exit_code} at {state.since:%Y-%m-%d %H:%M:%S} UTC{last}"
    )
