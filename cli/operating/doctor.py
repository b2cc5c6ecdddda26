"""`colmlm doctor`: checks everything that an installation needs, and says what is wrong, why, and what to do."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import print_json, print_table, say

EXAMPLES = examples("colmlm doctor", "colmlm doctor --json", "colmlm doctor --strict")


def doctor(
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings fail too.")] = False,
) -> None:
    """Check this installation and change nothing: packages, settings, home, disk, database, keys, index, model.

    The exit code is 1 where a check failed. The embedded database is started where it does not run.
    """
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
        say(f"{counts['ok']} ok, {counts['warning']} warnings, {counts['failed']} failed")
    if not is_well:
        raise typer.Exit(CHECK_FAILED)
