"""`colmlm audit` and `colmlm impact`: list and verify the log, sign its head, and list the outputs that used a fact."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.asking import require_somebody
from colmlm.cli.auditing.changes import AfterChange, Before, LogRange, Oldest, show_log
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    DryRun,
    FactId,
    Limit,
    Output,
    Reason,
    Yes,
    each_once,
    examples,
    time,
    wants_json,
    without_json,
)  # fmt: skip
from colmlm.cli.output import note, plain, print_json, print_table, progress, say, shorten

if TYPE_CHECKING:
    from colmlm.kb.evidence.records import Impact, ImpactedOutput
    from colmlm.kb.log.audit import Fitting
    from colmlm.kb.log.chain import Break
    from colmlm.kb.log.witness import AuditReport, Head

SHOWN = 20

app = typer.Typer(help="Read, verify and witness the change log.", epilog=examples("colmlm audit verify"))

IMPACT_EXAMPLES = examples("colmlm impact 12", "colmlm impact 12 --json")

InputFile = Annotated[
    Path | None,
    typer.Option("--against", exists=True, dir_okay=False, help="A witnessed head; it must be in the log."),
]


@app.command(
    epilog=examples(
        "colmlm audit log --actor ann --kind delete", "colmlm audit log --fact 12 --since 2026-01-01"
    )
)
@anywhere
def log(
    base: Base,
    actor: Annotated[
        str | None, typer.Option("--actor", help="Only changes by this person or token.")
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            "--principal", help="Only changes this token, or user of the machine, was authenticated for."
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only this kind, such as delete.")] = None,
    fact: Annotated[int | None, typer.Option("--fact", min=1, help="Only changes of this fact.")] = None,
    since: Annotated[
        datetime | None, typer.Option("--since", parser=time, metavar="TIME", help="From this time on.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", parser=time, metavar="TIME", help="Before this time.")
    ] = None,
    before: Before = None,
    oldest: Oldest = False,
    after: AfterChange = None,
    limit: Limit = 100,
) -> None:
    """Show the changes that match every filter, newest first."""
    fitting: Fitting = {
        "actor": actor, "principal": principal, "kind": kind, "fact_id": fact, "since": since, "until": until
    }  # fmt: skip
    show_log(base, LogRange(before, after, limit, oldest=oldest), **fitting)


@app.command(
    epilog=examples(
        "colmlm audit verify",
        "colmlm audit verify --against head-2026-01.json",
        "colmlm audit verify --log changes.jsonl --key 0123456789abcdef",
    )
)
@anywhere
def verify(
    base: Base,
    against: InputFile = None,
    log_file: Annotated[
        Path | None,
        typer.Option("--log", exists=True, dir_okay=False, help="Check an exported log, not the database."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Fingerprint of the key that must have signed the files.")
    ] = None,
) -> None:
    """Check the hash of every change, and whether a head that was witnessed earlier is still in the log.

    The exit code is 1 where it is not, or where a change was altered, removed or inserted, unless `audit seal`
    acknowledged that. Every break is listed, and the changes after it are checked too. With --server the whole
    log is fetched and checked on this machine.
    """
    from colmlm.kb.log.witness import check_log

    witnessed = _read_head(against, key) if against else None
    if log_file:
        _read_head(log_file, key)
        with log_file.open(encoding="utf-8") as lines:
            report = check_log(lines, log_file.name, witnessed)
    else:
        report = base.log.verify(witnessed)
    print_json(report) if wants_json() else _show_report(report)
    if not report.ok:
        raise typer.Exit(CHECK_FAILED)


def _read_head(file: Path, key: str | None) -> Head:
    from colmlm.kb.log.signing import require_signer
    from colmlm.kb.log.witness import read_head

    with file.open(encoding="utf-8") as lines:
        head = read_head(lines.readline(), file.name)
    if key is not None:
        require_signer(head.key, (key,), file.name)
    return head


def _show_report(report: AuditReport) -> None:
    say("ok" if report.ok else "NOT ok")
    say(f"database {report.database}, {report.changes_checked} changes checked")
    if report.first_break is not None:
        say(f"the chain breaks at change {report.first_break}")
    _show_breaks(report.breaks)
    if report.sealed:
        say(f"{'ok ' if report.ok else ''}except {len(report.sealed)} sealed breaks:")
        _show_breaks(report.sealed)
    say(f"it ends with change {report.seq}, hash {report.hash}")
    if (head := report.witnessed) is not None:
        stands = "is" if report.holds_witnessed else "IS NOT"
        say(f"change {head.seq}, witnessed {head.at} by key {head.key}, {stands} in this log")


_CAUSES = {
    "gap": "should be change {0.expected_seq}",
    "prev_hash": "goes on from hash {0.prev_hash}, the change before it has {0.expected_prev_hash}",
    "hash": "has hash {0.hash}, what it says has {0.expected_hash}",
}


def _show_breaks(breaks: Sequence[Break]) -> None:
    for found in breaks[:SHOWN]:
        told = "; ".join(_CAUSES[cause].format(found) for cause in found.causes)
        say(
            f"change {found.seq}: {told}"
            + (f" (sealed by change {found.sealed_by})" if found.sealed_by else "")
        )
    if len(breaks) > SHOWN:
        say(f"and {len(breaks) - SHOWN} more, see --json")


@app.command(
    epilog=examples(
        'colmlm audit seal 13 --reason "inserted by hand" --dry-run',
        'colmlm audit seal 13 --reason "inserted by hand" --yes',
    )
)
@anywhere
def seal(
    base: Base,
    seqs: Annotated[
        list[int], typer.Argument(metavar="SEQ...", min=1, max=MAX_BIGINT, help="Changes that do not fit.")
    ],
    reason: Reason,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Acknowledge breaks of the log that are known, such as a row that somebody inserted by hand.

    Nothing is repaired: a change is appended that says what was found and what should have been there. After that
    `audit verify` and `fsck` accept these breaks, and report any other as before.
    """
    require_somebody(yes or dry_run, "seal")
    if not (dry_run or yes):
        typer.confirm(f"Seal the breaks at changes {', '.join(map(str, seqs))}?", abort=True, err=True)
    done = base.log.seal(each_once(seqs), actor=base.actor(actor), reason=reason, dry_run=dry_run)
    if wants_json():
        print_json({"dry_run": dry_run, **plain(done)})
        return
    say(f"{'Would seal' if dry_run else 'Sealed'} by change {done.seq}:")
    _show_breaks([replace(found, sealed_by=None) for found in done.breaks])


@app.command(
    epilog=examples(
        "colmlm audit export --output head.json", "colmlm audit export --log --output changes.jsonl"
    )
)
@anywhere
@without_json
def export(
    base: Base,
    output: Output = None,
    whole_log: Annotated[
        bool, typer.Option("--log", help="With every change as a line of JSON; no fact text.")
    ] = False,
) -> None:
    """Write the head of the change log, signed by the key of this installation, to be kept elsewhere.

    `colmlm audit verify --against` checks later that the log up to this head was not rewritten.
    """
    head = base.log.head()  # before the file is created, so that a base out of reach leaves none
    written = output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout)
    with progress("Exporting changes") as advance, written as target:
        if not whole_log:
            target.write(json.dumps(head, ensure_ascii=False) + "\n")
            return
        for done, line in enumerate(base.log.export()):
            target.write(line)
            advance(done, None)


@app.command("public-key", epilog=examples("colmlm audit public-key --output base.pem"))
@anywhere
@without_json
def public_key(
    base: Base,
    output: Output = None,
) -> None:
    """Write the public key for signatures of heads, logs and certificates, as PEM. Auditors need no other."""
    from colmlm.kb.log.signing import from_pem, names_of

    pem = base.log.public_key()
    if output is None:
        typer.echo(pem, nl=False)
        return
    output.write_text(pem, encoding="utf-8")
    names = names_of(from_pem(pem, output.name))
    note(f"Wrote {output}: key {names.keyid}, fingerprint {names.fingerprint}")


@app.command(epilog=examples("colmlm audit denials", "colmlm audit denials --limit 500 --json"))
@anywhere
def denials(base: Base, after: After = 0, limit: Limit = 50) -> None:
    """Show requests to the API that were refused for who made them or how often, newest first.

    With --after it shows those older than that id.
    """
    found = base.log.denials(after=after, limit=limit)
    if wants_json():
        print_json({"denials": found})
        return
    rows = [
        (
            d.denial_id,
            f"{d.at:%Y-%m-%d %H:%M:%S}",
            d.actor or "nobody",
            d.method,
            d.path,
            d.cause,
            d.request_id,
        )
        for d in found
    ]
    print_table(("id", "at", "who", "method", "path", "cause", "request"), rows)
    if unrecorded := sum(d.num_unrecorded for d in found):
        note(f"{unrecorded} more were only logged.")


@anywhere
def impact(base: Base, fact_id: FactId) -> None:
    """Show every stored output that a fact was spliced into, and whether the spliced value is still current."""
    found = base.outputs.impact(fact_id)
    print_json(found) if wants_json() else _show_impact(found)


def _show_impact(found: Impact) -> None:
    state = "live" if found.is_live else "deleted" if found.erased_seq is None else "erased"
    say(f"fact {found.fact_id}, {state}: {len(found.outputs)} uses in stored outputs")
    for used in found.outputs:
        say(f"output {used.generation_id}, {used.at:%Y-%m-%d %H:%M}, as of change {used.seq}, {_since(used)}")
        say(f"  prompt: {shorten(used.prompt)}")
        before, after = used.output[: used.output_start], used.output[used.output_end :]
        span = used.output[used.output_start : used.output_end]
        say(f"  output: {shorten(before[-40:])} [{span}] {shorten(after[:40])}")


def _since(used: ImpactedOutput) -> str:
    return {
        "current": "still so",
        "corrected": "CORRECTED since",
        "deleted": "DELETED since",
        "erased": "ERASED since",
    }[used.since]
