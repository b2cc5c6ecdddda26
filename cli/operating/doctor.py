"""`colmlm doctor`: checks what an installation needs and whether its data agree, and mends what is derived."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import examples, require_with, wants_json
from colmlm.cli.output import count_of, plain, print_json, print_table, say, some_ids

if TYPE_CHECKING:
    from colmlm.kb.upkeep.upkeep import FsckReport, RepairReport

EXAMPLES = examples(
    "colmlm doctor",
    "colmlm doctor --strict --json",
    "colmlm doctor --data",
    "colmlm doctor --data --repair --dry-run",
)


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings fail too.")] = False,
    data: Annotated[
        bool,
        typer.Option("--data", help="Compare facts, keys, indexes, documents and the change log instead."),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="With --data: mend what is derived: indexes, snapshots, files left over."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: say what it would mend and stop.")
    ] = False,
) -> None:
    """Check this installation and change nothing: packages, settings, home, disk, database, keys, index, model.

    The exit code is 1 where a check failed. The embedded database is started where it does not run.
    With --data it fails where anything is missing, left over or broken; facts without a key are no fault.
    --repair never touches texts, facts or the log: problems there are listed, with what to do.
    """
    if strict and data:
        raise typer.BadParameter("--data finds no warnings; leave it out.", param_hint="--strict")
    if repair and not data:
        raise typer.BadParameter("only what --data checks is mended; pass --data too.", param_hint="--repair")
    if not repair:
        require_with("--repair", dry_run=dry_run)
    if data:
        _check_data(repair=repair, dry_run=dry_run)
        return
    from colmlm.cli.operating.diagnosis import examine

    findings = examine()
    counts = Counter(finding.state for finding in findings)
    is_well = not counts["failed"] and not (strict and counts["warning"])
    if wants_json():
        print_json({"ok": is_well, "checks": findings})
    else:
        print_table(("check", "state", "found"), ((f.check, f.state, f.found) for f in findings))
        for finding in findings:
            if finding.remedy:
                say(f"{finding.check}: {finding.remedy}")
        say(f"{counts['ok']} ok, {count_of(counts['warning'], 'warning')}, {counts['failed']} failed")
    if not is_well:
        raise typer.Exit(CHECK_FAILED)


def _check_data(*, repair: bool, dry_run: bool) -> None:
    """Compare the stored data with the change log, and with `repair` mend indexes and files that derive from it."""
    with Runtime.from_environment() as runtime:
        if runtime.user.server is not None:
            said = "it compares the base of this machine, and COLMLM_SERVER names another."
            raise typer.BadParameter(f"{said} Run: colmlm jobs start fsck", param_hint="--data")
        if repair:
            mended = runtime.kb.upkeep.repair(dry_run=dry_run)
            print_json({**plain(mended), "ok": mended.after.ok}) if wants_json() else _show_repair(mended)
            report = mended.after
        else:
            report = runtime.kb.upkeep.fsck()
            print_json(report) if wants_json() else _show_data(report)
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
    _show_data(repaired.after)


def _show_data(report: FsckReport) -> None:
    say("ok" if report.ok else "NOT ok")
    say(f"live facts {report.live_facts}, their keys {report.live_keys}, ids in the index {report.index_ids}")
    say(
        f"facts without a key {report.unkeyed_facts}"
        + (" (run: colmlm keysets fill)" if report.unkeyed_facts else "")
    )
    say(f"changes checked {report.changes_checked}, chain {'holds' if report.chain_ok else 'BROKEN'}")
    if report.chain_first_break is not None:
        say(f"the chain breaks at change {report.chain_first_break} (see: colmlm log verify)")
    for what, ids in (
        ("sealed breaks of the chain, at changes", report.chain_sealed),
        ("live keys missing from the index", report.keys_missing_from_index),
        ("ids in the index without a live key", report.index_ids_without_live_key),
        ("facts that their document does not say", report.non_verbatim_facts),
    ):
        if ids:
            say(f"{what}: {some_ids(ids)} ({len(ids)})")
    for problem in (*report.problems, *report.quoting):
        say(problem)
    for mendable in report.mendable:
        say(f"{mendable} (run: colmlm doctor --data --repair)")
