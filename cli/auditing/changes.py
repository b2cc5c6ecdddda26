"""`colmlm changes`: shows the log of all edits, and how facts differ between two changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from colmlm.cli.auditing.trace import show_changes
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.options import MAX_BIGINT, After, Limit, examples, wants_json
from colmlm.cli.output import note, plain, print_json, print_table, say, shorten
from colmlm.cli.start.command import RunningGroup

if TYPE_CHECKING:
    from colmlm.kb.evidence.records import FactDifference
    from colmlm.kb.log.audit import Fitting

app = typer.Typer(
    cls=RunningGroup,
    invoke_without_command=True,
    epilog=examples("colmlm changes", "colmlm changes --after 100 --json", "colmlm changes diff 12 40"),
)


Oldest = Annotated[bool, typer.Option("--oldest", help="Begin with the oldest change.")]
Before = Annotated[
    int | None,
    typer.Option("--before", min=1, max=MAX_BIGINT, help="Only changes before this one, newest first."),
]
AfterChange = Annotated[
    int | None,
    typer.Option("--after", min=0, max=MAX_BIGINT, help="Only changes after this one, oldest first."),
]


@dataclass(frozen=True, slots=True)
class LogRange:
    """At most `limit` changes of the log: the newest before one, or the oldest after one."""

    before: int | None
    after: int | None
    limit: int
    oldest: bool

    def __post_init__(self) -> None:
        if self.before is not None and (self.oldest or self.after is not None):
            raise typer.BadParameter(
                "it lists the newest first, --oldest and --after the oldest.", param_hint="--before"
            )

    @property
    def is_ascending(self) -> bool:
        return self.oldest or self.after is not None


@app.callback()
@anywhere
def changes(
    base: Base,
    context: typer.Context,
    before: Before = None,
    oldest: Oldest = False,
    after: AfterChange = None,
    limit: Limit = 100,
) -> None:
    """Show the change log: who changed what, when and why, newest first. It holds no fact text."""
    if context.invoked_subcommand is not None:
        return
    show_log(base, LogRange(before, after, limit, oldest=oldest))


def show_log(base: Base, stretch: LogRange, **fitting: Unpack[Fitting]) -> None:
    """Print a stretch of the log, and how to go on if there may be more."""
    if stretch.is_ascending:
        way, found = "after", base.log.changes(stretch.after or 0, stretch.limit, **fitting)
    else:
        before = MAX_BIGINT if stretch.before is None else stretch.before
        way, found = "before", base.log.changes_before(before, stretch.limit, **fitting)
    more = found[-1].seq if len(found) == stretch.limit else None
    if wants_json():
        print_json({"changes": found, "next_after": None, "next_before": None, f"next_{way}": more})
        return
    show_changes(found)
    if more is not None:
        note(f"More changes: --{way} {more}")


@app.command(
    "diff", epilog=examples("colmlm changes diff 12 40", "colmlm changes diff 12 40 --corpus demo --json")
)
@anywhere
def show_diff(
    base: Base,
    first: Annotated[int, typer.Argument(metavar="A", min=0, max=MAX_BIGINT, help="The earlier change.")],
    last: Annotated[int, typer.Argument(metavar="B", min=0, max=MAX_BIGINT, help="The later change.")],
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only facts of this corpus.")] = None,
    after: After = 0,
    limit: Limit = 100,
) -> None:
    """Compare the facts as of two changes: show those that differ, with both values, by their ids.

    An edit in between that was undone again is no difference. An erased fact is listed without its values.
    """
    found = base.log.diff(first, last, corpus=corpus, after=after, limit=limit)
    more = found.facts[-1].fact_id if len(found.facts) == limit else None
    if wants_json():
        print_json({**plain(found), "next_after": more})
        return
    say(f"From change {first} to {last}: " + ", ".join(f"{n} {kind}" for kind, n in found.counts.items()))
    columns = ("fact", "what", "corpus", f"at {first}", f"at {last}")
    print_table(columns, [_diff_row(difference) for difference in found.facts])
    if more is not None:
        note(f"More facts: --after {more}")


def _diff_row(d: FactDifference) -> tuple[object, ...]:
    if d.is_redacted:
        return d.fact_id, d.kind, d.corpus, "(erased)", "(erased)"
    return d.fact_id, d.kind, d.corpus, shorten(d.old), shorten(d.new)
