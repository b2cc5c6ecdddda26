"""`colmlm jobs prune`: remove jobs that ended long ago."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, DryRun, Yes, examples, span
from colmlm.cli.output import counted, print_json, say

if TYPE_CHECKING:
    from colmlm.kb.jobs.pruning import Pruned

EXAMPLES = examples(
    "colmlm jobs prune --older-than 30d --dry-run",
    "colmlm jobs prune --older-than 30d --yes",
    "colmlm jobs prune --older-than 12h --yes --json",
)


def prune(
    older_than: Annotated[
        timedelta,
        typer.Option(
            "--older-than", parser=span, metavar="SPAN", help="Only what ended so long ago: 90d, 12h or 30m."
        ),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove jobs that ended long ago. What they changed stays in the change log.

    Workers do it by themselves, after COLMLM_JOB_RETENTION_DAYS.
    """
    require_somebody(yes or dry_run, as_json, "prune")
    with Runtime.from_environment() as runtime:
        from colmlm.kb.jobs.pruning import prune

        if not (yes or dry_run):
            count = _counted(prune(runtime.kb, older_than, dry_run=True))
            typer.confirm(f"Remove {count}?", abort=True, err=True)
        pruned = prune(runtime.kb, older_than, dry_run=dry_run)
    if as_json:
        print_json(pruned)
        return
    ended = ", ".join(f"{number} {state}" for state, number in pruned.states.items())
    say(f"{'Would remove' if dry_run else 'Removed'} {_counted(pruned)}{f': {ended}' if ended else ''}.")


def _counted(pruned: Pruned) -> str:
    ended = f"that ended before {pruned.before:%Y-%m-%d %H:%M} UTC"
    return f"{counted(pruned.num_jobs, 'job')} {ended}"
