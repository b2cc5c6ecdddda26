"""`colmlm backup`: writes a whole knowledge base to one file, checks such a file, and restores it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import CHECK_FAILED
from colmlm.cli.options import Actor, Yes, examples, require_somebody, some_texts, wants_json
from colmlm.cli.output import count_of, note, plain, print_json, progress, say, some_ids
from colmlm.kb.errors import refusals

if TYPE_CHECKING:
    from colmlm.kb.backup.restore import RestoreReport
    from colmlm.kb.backup.write import Backup

app = typer.Typer(
    help="Write a knowledge base to one file, check the file, restore it.",
    epilog=examples("colmlm backup create monday.backup"),
)

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The backup.")]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="FINGERPRINT", callback=some_texts, help="Who may have signed; may be repeated."
    ),
]
MIB = 2**20
KEEP_THE_LOG = (
    "What is erased from now on is still in this backup. Keep the log elsewhere, after each erasure: "
    "colmlm log export --changes --output changes.jsonl"
)


@app.command(epilog=examples("colmlm backup create monday.backup"))
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Where to write it.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file of this name.")] = False,
) -> None:
    """Write everything to one file, from one snapshot, while edits and lookups go on. Only its owner may read it.

    It holds all texts, deleted ones too, and the secret of the database. Facts that are erased later are still in it:
    keep the change log elsewhere too (`colmlm log export --changes`), since a restore repeats later erasures from it.
    """
    from colmlm.kb.backup.write import write_backup
    from colmlm.kb.log.signing import signing_key

    with Runtime.from_environment() as runtime, progress("Writing MiB") as advance:
        made = write_backup(
            runtime.kb,
            file,
            signing_key(runtime.settings.home),
            replace=replace,
            on_bytes=lambda done: advance(done // MIB, None),
        )
    print_json(made) if wants_json() else _show(made)
    note(KEEP_THE_LOG)


@app.command(epilog=examples("colmlm backup verify monday.backup"))
def verify(file: BackupFile, key: Keys = None) -> None:
    """Read a backup to its last byte and compare every checksum; needs no database.

    The exit code is 1 where a bit differs from what was written, the end is missing, or no --key signed it.
    """
    from colmlm.kb.backup.write import verify_backup

    with progress("Reading MiB") as advance:
        found = verify_backup(file, lambda done: advance(done // MIB, None), keys=key or ())
    print_json({"ok": True, **plain(found)}) if wants_json() else _show(found)


def _show(backup: Backup) -> None:
    say(
        f"ok: database {backup.database} as of change {backup.seq}, made {backup.at}, signed by key {backup.key}"
    )
    say(f"{count_of(backup.num_bytes, 'byte')}, migration {backup.migration}")
    say("rows: " + ", ".join(f"{name} {rows}" for name, rows in backup.rows.items() if rows))


@app.command(
    epilog=examples(
        "colmlm backup restore monday.backup --change-log changes.jsonl --dry-run",
        "colmlm backup restore monday.backup --change-log changes.jsonl",
    )
)
def restore(
    file: BackupFile,
    change_log: Annotated[
        Path | None,
        typer.Option(
            "--change-log",
            exists=True,
            dir_okay=False,
            help="The log of the newer life (log export --changes); what it erased is erased again. Where nothing came "
            "after the backup, the signed head alone (log export) shows that.",
        ),
    ] = None,
    without_later_erasures: Annotated[
        bool,
        typer.Option(
            "--without-later-erasures",
            help="Restore without that log: facts that were erased after the backup come back, texts and all.",
        ),
    ] = False,
    reapply_deletes: Annotated[
        bool, typer.Option("--reapply-deletes", help="Delete again, too, what that log says is deleted.")
    ] = False,
    key: Keys = None,
    trust_signer: Annotated[
        bool,
        typer.Option("--trust-signer", help="Restore whoever signed it. Its tokens let people in here."),
    ] = False,
    actor: Actor = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do all of it, then roll it back.")] = False,
    yes: Yes = False,
) -> None:
    """Fill an empty, migrated database from a backup: everything, or nothing.

    The key of this home must have signed the backup, or a --key, since a backup brings tokens. A backup still holds
    what was erased after it was made, so the newer log is needed, signed by the key that signed the backup or by a
    --key. At the end everything is checked as by `colmlm doctor --data`; the exit code is 1 where that finds
    anything.
    """
    from colmlm.kb.backup.restore import restore_backup

    _require_one(change_log, without_later_erasures, reapply_deletes)
    if without_later_erasures and not dry_run:
        _confirm_return(file, yes)
    with Runtime.from_environment() as runtime:
        with progress("Restoring MiB") as advance:
            report = restore_backup(
                runtime.kb,
                file,
                actor=runtime.actor(actor),
                log_file=change_log,
                without_later_erasures=without_later_erasures,
                keys=key or (),
                trust_signer=trust_signer,
                reapply_deletes=reapply_deletes,
                dry_run=dry_run,
                on_bytes=lambda done: advance(done // MIB, None),
            )
        is_sound = not report.needs_log if dry_run else runtime.kb.upkeep.fsck().ok
    if wants_json():
        print_json({"ok": is_sound, "dry_run": dry_run, **plain(report)})
    else:
        _show_restored(report, dry_run)
    if report.needs_log:
        raise refusals.newer_log_needed(report.backup.seq, report.backup.at)
    if not is_sound:
        note("The restored base is not sound. Run: colmlm doctor --data")
        raise typer.Exit(CHECK_FAILED)


def _require_one(change_log: Path | None, without_later_erasures: bool, reapply_deletes: bool) -> None:
    if change_log is not None and without_later_erasures:
        raise typer.BadParameter("a log was given too.", param_hint="--without-later-erasures")
    if reapply_deletes and change_log is None:
        raise typer.BadParameter("there is no log to take them from.", param_hint="--reapply-deletes")


def _confirm_return(file: Path, yes: bool) -> None:
    """Ask whether facts that were erased since may come back; where nobody can be asked, --yes is required."""
    from colmlm.kb.backup.write import open_backup

    if yes:
        return
    require_somebody(yes, "let erased facts come back")
    with open_backup(file) as archive:
        backup = archive.backup
    question = (
        f"Facts that were erased after change {backup.seq} ({backup.at}) come back. Restore all the same?"
    )
    typer.confirm(question, abort=True, err=True)


def _show_restored(report: RestoreReport, dry_run: bool) -> None:
    done = "Would restore" if dry_run else "Restored"
    say(f"{done} database {report.backup.database}, change {report.backup.seq}.")
    _show_later(report)
    for what, fact_ids in (
        ("erased again", report.erased_again),
        ("deleted since the backup", report.deleted_since),
        ("deleted again", report.deleted_again),
    ):
        if fact_ids:
            say(f"{what}: {some_ids(fact_ids)} ({len(fact_ids)})")
    if limited := [one.corpus or f"keyset {one.keyset}" for one in report.limited_again]:
        say(f"limited to accepted facts again: {', '.join(limited)}")
    for erasure in report.repeated:
        say(f"  by change {erasure.seq} of that log, {erasure.at}: {some_ids(erasure.fact_ids)}")
    if report.erased_again and not dry_run:
        note("The files of this server still hold what was erased. Run: colmlm erase --now")


def _show_later(report: RestoreReport) -> None:
    """Print up to which change erasures after the backup are known, and who signed that log."""
    if (head := report.log_head) is not None:
        say(f"Later erasures are known up to change {head.seq}, from {report.log_file}.")
        say(f"That log was signed {head.at} by key {head.key}; what was erased after it is back.")
        if report.sealed:
            say(f"Passed over, since they are sealed breaks of that log: changes {some_ids(report.sealed)}.")
    elif report.without_later_erasures:
        say(f"Without later erasures: what was erased after change {report.backup.seq} is back.")
