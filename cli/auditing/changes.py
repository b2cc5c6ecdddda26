"""`colmlm changes` and `colmlm fsck`: show the log of all edits, and check that what is stored agrees with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.anywhere import anywhere
from colmlm.cli.auditing.trace import show_changes
from colmlm.cli.base import Base
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import MAX_BIGINT, After, AsJson, Limit, examples
from colmlm.cli.output import note, plain, print_json, print_table, say, shorten

if TYPE_CHECKING:
    from colmlm.kb.evidence.records import FactDifference
    from colmlm.kb.upkeep.records import FsckReport
    from colmlm.kb.upkeep.repair import RepairReport

app = typer.Typer(
    invoke_without_command=True,
    epilog=examples("colmlm changes", "colmlm changes --after 100 --json", "colmlm changes diff 12 40"),
)
FSCK_EXAMPLES = examples("colmlm fsck", "colmlm fsck --json", "colmlm fsck --repair --dry-run")


@app.callback()
@anywhere
def changes(
    base: Base, context: typer.Context, after: After = 0, limit: Limit = 100, as_json: AsJson = False
) -> None:
    """Show the change log: who changed what, when and why, oldest first. It holds no fact text."""
    if context.invoked_subcommand is not None:
        if context.params["server"]:  # the verb would not see it, and use this machine's base
            raise typer.BadParameter("name it after the verb.", param_hint="--server")
        return
    found = base.log.changes(after, limit)
    more = found[-1].seq if len(found) == limit else None
    if as_json:
        print_json({"changes": found, "next_after": more})
        return
    show_changes(found)
    if more is not None:
        note(f"More changes: --after {more}")


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
    as_json: AsJson = False,
) -> None:
    """Compare the facts as of two changes: show those that differ, with both values, by their ids.

    An edit in between that was undone again is no difference. An erased fact is listed without its values.
    """
    found = base.log.diff(first, last, corpus=corpus, after=after, limit=limit)
    more = found.facts[-1].fact_id if len(found.facts) == limit else None
    if as_json:
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


def fsck(
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what is derived: indexes, snapshots, files left over.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: say what it would mend and stop.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare facts, keys, indexes, documents and the change log; change nothing unless told to.

    The exit code is 1 where anything is missing, left over or broken. Facts without a key are no fault.
    --repair never touches texts, facts or the log: problems there are listed, with what to do.
    """
    if dry_run and not repair:
        raise typer.BadParameter("fsck changes nothing without --repair.", param_hint="--dry-run")
    with Runtime.from_environment() as runtime:
        if repair:
            mended = runtime.kb.upkeep.repair(dry_run=dry_run)
            print_json({**plain(mended), "ok": mended.after.ok}) if as_json else _show_repair(mended)
            report = mended.after
        else:
            report = runtime.kb.upkeep.fsck()
            print_json(report) if as_json else _show(report)
    if not report.ok:
        raise typer.Exit(CHECK_FAILED)


def _show_repair(repaired: RepairReport) -> None:
    for line in repaired.mended:
        say(f"{'would mend' if repaired.dry_run else 'mended'}: {line}")
    if not repaired.mended:
        say("nothing to mend")
    for left in repaired.left:
        say(f"NOT mended: {left.problem}")
        say(f"  {left.remedy}")
    _show(repaired.after)


def _show(report: FsckReport) -> None:
    say("ok" if report.ok else "NOT ok")
    say(f"live facts {report.live_facts}, their keys {report.live_keys}, ids in the index {report.index_ids}")
    say(
        f"facts without a key {report.unkeyed_facts}"
        + (" (run: colmlm rekey)" if report.unkeyed_facts else "")
    )
    say(f"changes checked {report.changes_checked}, chain {'holds' if report.chain_ok else 'BROKEN'}")
    if report.chain_first_break is not None:
        say(f"the chain breaks at change {report.chain_first_break} (see: colmlm audit verify)")
    for what, ids in (
        ("sealed breaks of the chain, at changes", report.chain_sealed),
        ("live keys missing from the index", report.keys_missing_from_index),
        ("ids in the index without a live key", report.index_ids_without_live_key),
        ("facts that their document does not say", report.non_verbatim_facts),
    ):
        if ids:
            say(f"{what}: {', '.join(map(str, ids[:20]))}{' ...' if len(ids) > 20 else ''} ({len(ids)})")
    for problem in (*report.problems, *report.quoting):
        say(problem)
    for mendable in report.mendable:
        say(f"{mendable} (run: colmlm fsck --repair)")
