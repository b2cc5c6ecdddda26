"""`colmlm fsck`: checks that what is stored agrees with the change log, and mends what is derived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import plain, print_json, say

if TYPE_CHECKING:
    from colmlm.kb.upkeep.upkeep import FsckReport, RepairReport

FSCK_EXAMPLES = examples("colmlm fsck", "colmlm fsck --json", "colmlm fsck --repair --dry-run")


def fsck(
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend what is derived: indexes, snapshots, files left over.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: say what it would mend and stop.")
    ] = False,
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
            print_json({**plain(mended), "ok": mended.after.ok}) if wants_json() else _show_repair(mended)
            report = mended.after
        else:
            report = runtime.kb.upkeep.fsck()
            print_json(report) if wants_json() else _show(report)
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
