"""`colmlm changes` and `colmlm fsck`: the record of every edit, and whether everything still agrees with it."""

from __future__ import annotations

import typer

from cli.errors import CHECK_FAILED
from cli.options import After, AsJson, Limit, examples
from cli.output import note, print_json, say
from cli.runtime import Runtime
from cli.trace import show_changes
from kb.records import FsckReport

CHANGES_EXAMPLES = examples("colmlm changes", "colmlm changes --after 100 --json")
FSCK_EXAMPLES = examples("colmlm fsck", "colmlm fsck --json")


def changes(after: After = 0, limit: Limit = 100, as_json: AsJson = False) -> None:
    """Show the change log: who changed what, when and why, oldest first. It holds no fact text."""
    with Runtime.from_environment() as runtime:
        found = runtime.kb.changes(after, limit)
    more = found[-1].seq if len(found) == limit else None
    if as_json:
        print_json({"changes": found, "next_after": more})
        return
    show_changes(found)
    if more is not None:
        note(f"More changes: --after {more}")


def fsck(as_json: AsJson = False) -> None:
    """Compare facts, keys, index, documents and the change log with one another; change nothing.

    The exit code is 1 where anything is missing, left over or broken. Facts without a key are work, not damage.
    """
    with Runtime.from_environment() as runtime:
        report = runtime.kb.fsck()
    print_json(report) if as_json else _show(report)
    if not report.ok:
        raise typer.Exit(CHECK_FAILED)


def _show(report: FsckReport) -> None:
    say("ok" if report.ok else "NOT ok")
    say(f"live facts {report.live_facts}, their keys {report.live_keys}, ids in the index {report.index_ids}")
    say(
        f"facts without a key {report.unkeyed_facts}"
        + (" (run: colmlm rekey)" if report.unkeyed_facts else "")
    )
    say(f"changes checked {report.changes_checked}, chain {'holds' if report.chain_ok else 'BROKEN'}")
    if report.chain_first_break is not None:
        say(f"the chain breaks at change {report.chain_first_break}")
    for what, ids in (
        ("live keys missing from the index", report.keys_missing_from_index),
        ("ids in the index without a live key", report.index_ids_without_live_key),
        ("facts that their document does not say", report.non_verbatim_facts),
    ):
        if ids:
            say(f"{what}: {', '.join(map(str, ids[:20]))}{' ...' if len(ids) > 20 else ''} ({len(ids)})")
    for problem in report.problems:
        say(problem)
