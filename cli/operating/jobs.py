"""`colmlm jobs`: queues, lists and cancels jobs; and `colmlm worker`, which does them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition.bulk.spreading import Ray, RayWorkers
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import MAX_BIGINT, Actor, Limit, examples, require_with, wants_json, without_json
from colmlm.cli.output import (
    count_of,
    format_value,
    note,
    print_json,
    print_table,
    progress,
    say,
    say_values,
    shorten,
)
from colmlm.kb.jobs.kinds import KINDS, work_of
from colmlm.kb.jobs.records import STATES

if TYPE_CHECKING:
    from colmlm.kb.jobs.records import JobRecord


WORKER_EXAMPLES = examples(
    "colmlm worker", "colmlm worker --concurrency 2", "colmlm worker --once", "colmlm worker --ray auto"
)

app = typer.Typer(
    help="Start, list and cancel long work.",
    epilog=examples("colmlm jobs list", "colmlm jobs start rekey keyset_id=2", "colmlm jobs list 7 --wait"),
)

Kind = StrEnum("Kind", {name: name for name in KINDS})  # type: ignore[misc]
State = StrEnum("State", {name: name for name in STATES})  # type: ignore[misc]

JobId = Annotated[
    int, typer.Argument(metavar="JOB_ID", min=1, max=MAX_BIGINT, help="See `colmlm jobs list`.")
]


@app.command(
    epilog=examples(
        "colmlm jobs start fsck",
        "colmlm jobs start rekey keyset_id=2 kinds=context,question",
        "colmlm jobs start gate keyset_id=2 activate=true --json",
    )
)
@anywhere
def start(
    base: Base,
    kind: Annotated[Kind, typer.Argument(help="What to do.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="See docs/production/jobs.md.")
    ] = None,
    actor: Actor = None,
) -> None:
    """Queue a job. A worker does it: the server's own, or `colmlm worker`."""
    work = work_of(kind.value, dict(_split_argument(argument) for argument in arguments or ()), strict=False)
    base.only_here(actor=actor)
    job = base.jobs.submit(work, actor=base.actor(actor))
    if base.jobs.num_workers() == 0:
        note("No worker is running, so it waits. Start one: colmlm worker")
    print_json(job) if wants_json() else say(
        f"Job {job.job_id} is queued. Follow it: colmlm jobs list {job.job_id} --wait"
    )


def _split_argument(argument: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals:
        raise typer.BadParameter(f"{argument!r} is not NAME=VALUE, such as corpus=papers.")
    return name, value


@app.command(
    "list",
    epilog=examples(
        "colmlm jobs list",
        "colmlm jobs list --state running --json",
        "colmlm jobs list 7 --wait --timeout 600",
    ),
)
@anywhere
def list_jobs(
    base: Base,
    job_id: Annotated[
        int | None, typer.Argument(metavar="[JOB_ID]", min=1, max=MAX_BIGINT, help="Show this one.")
    ] = None,
    waits: Annotated[bool, typer.Option("--wait", help="First wait until it has ended.")] = False,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, help="With --wait: the most seconds; the job goes on."),
    ] = None,
    state: Annotated[list[State] | None, typer.Option("--state", help="Only these; may be repeated.")] = None,
    kind: Annotated[list[Kind] | None, typer.Option("--kind", help="Only these; may be repeated.")] = None,
    before: Annotated[
        int | None, typer.Option("--before", min=1, max=MAX_BIGINT, help="Only older ones than this job.")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List jobs, newest first, or show one: its arguments, how far it is, and its result.

    With --wait the exit code is 1 where it failed, was cancelled, or has not ended in time.
    """
    if not waits:
        require_with("--wait", timeout=timeout)
    if job_id is not None:
        _show_job(base, job_id, timeout, waits=waits)
        return
    if waits:
        raise typer.BadParameter("name the job.", param_hint="--wait")
    found = base.jobs.list(kinds=_values(kind), states=_values(state), before=before, limit=limit)
    more = found[-1].job_id if len(found) == limit else None
    if wants_json():
        print_json({"jobs": found, "next_before": more})
        return
    rows = [
        (j.job_id, j.kind, j.state, progress_of(j), j.actor, f"{j.created_at:%Y-%m-%d %H:%M}") for j in found
    ]
    print_table(
        ("job", "kind", "state", "done", "actor", "asked for"),
        rows,
        "No jobs found. Start one: colmlm jobs start KIND",
    )
    if more is not None:
        note(f"More jobs: --before {more}")


def _values(chosen: Sequence[Any] | None) -> list[str] | None:
    return [one.value for one in chosen] if chosen else None


def _show_job(base: Base, job_id: int, timeout: float | None, *, waits: bool) -> None:
    from colmlm.kb.jobs.records import wait_for_job

    job = wait_for_job(base.jobs.get, job_id, timeout, progress) if waits else base.jobs.get(job_id)
    print_json(job) if wants_json() else _print_job(job)
    if waits and job.state != "succeeded":
        raise typer.Exit(CHECK_FAILED)


@app.command(epilog=examples("colmlm jobs cancel 7", "colmlm jobs cancel 7 --json"))
@anywhere
def cancel(base: Base, job_id: JobId, actor: Actor = None) -> None:
    """Cancel a job: one that waits at once, one that runs before its next piece of work. What it committed stays."""
    base.only_here(actor=actor)
    job = base.jobs.cancel(job_id, actor=base.actor(actor))
    if wants_json():
        print_json(job)
    else:
        say(f"Job {job_id} is cancelled." if job.is_over else f"Job {job_id} is told to end.")


def progress_of(job: JobRecord) -> str:
    """Describe a job's progress, such as "12 of 400 facts"."""
    if not job.message:
        return ""
    return f"{job.done}{'' if job.total is None else f' of {job.total}'} {job.message}"


def _print_job(job: JobRecord) -> None:
    given = {name: value for name, value in job.arguments.items() if value is not None}
    say(
        f"job {job.job_id} ({job.kind}) {job.state}, asked for by {job.actor} at {job.created_at:%Y-%m-%d %H:%M:%S} UTC"
    )
    say(f"with: {shorten(format_value(given), 200)}")
    if job.message:
        say(f"done: {progress_of(job)}")
    if job.attempts > 1:
        say(f"attempts: {job.attempts}")
    if job.cancelled_by is not None:
        say(f"cancelled by {job.cancelled_by}")
    if job.error is not None:
        say(f"error: {job.error['detail']}")
    say_values(job.result or {})


@without_json
def worker(
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=64, help="How many jobs at once.")
    ] = 1,
    grace: Annotated[
        float,
        typer.Option("--grace", min=0, max=86_400, help="Seconds that running jobs get when told to stop."),
    ] = 20.0,
    once: Annotated[bool, typer.Option("--once", help="Do what waits, then end.")] = False,
    until_eof: Annotated[
        bool,
        typer.Option("--until-eof", help="Stop when standard input ends: for who starts this as a child."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say on stderr which job starts and ends.")
    ] = False,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Do the long work that the server, the console and `colmlm jobs start` queue.

    On SIGTERM it takes no more jobs, lets running ones finish for a while, and hands back the others, for another
    worker to continue. If it is killed, its jobs are taken up again as well. Several may run, on one machine or on
    many that share the home's folder. With --ray it has the bulk of its jobs done by the processes of a cluster.
    """
    from colmlm.api.watch import logs
    from colmlm.cli.composition.handlers import handlers, problem
    from colmlm.kb.jobs.worker import Worker
    from colmlm.kb.store.embedded_server import Keeper, require_wanted

    with Runtime.from_environment() as runtime:
        settings, serving = runtime.settings, runtime.serving
        runtime.application = "colmlm worker"
        runtime.use_ray(ray, ray_workers)
        logs.configure(serving if verbose else replace(serving, log_level="warning"))
        if until_eof:
            require_wanted(settings)
        runtime.open()
        working = Worker(runtime.kb, handlers(runtime), concurrency, grace, problem)
        if until_eof:
            threading.Thread(target=_stop_at_eof, args=(working,), daemon=True).start()
        with Keeper(settings):
            done = working.run(once=once)
    if once:
        note(f"Ran {count_of(done, 'job')}." if done else "No job was waiting.")


def _stop_at_eof(working: Any) -> None:
    while sys.stdin.buffer.read(1 << 16):
        pass
    working.stop()
