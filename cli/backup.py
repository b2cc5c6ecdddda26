"""`colmlm backup`: a whole knowledge base into one file, the check of such a file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CHECK_FAILED
from cli.options import Actor, AsJson, examples
from cli.output import note, plain, print_json, progress, say
from cli.runtime import Runtime
from kb.backup import Backup, verify_backup, write_backup
from kb.backup_restore import RestoreReport, restore_backup
from kb.signing import signing_key

app = typer.Typer(
    help="Write a knowledge base to one file, check the file, restore it.",
    epilog=examples("colmlm backup create monday.backup"),
)

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="The backup.")]
MIB = 2**20


@app.command(epilog=examples("colmlm backup create monday.backup"))
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Where to write it.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file of this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write everything to one file, from one moment, while edits and lookups go on. Only its owner may read it.

    It holds all texts, deleted ones too, and the secret of the database. What is erased later is still in it.
    """
    with Runtime.from_environment() as runtime, progress("Writing MiB") as advance:
        made = write_backup(
            runtime.kb,
            file,
            signing_key(runtime.settings.home),
            replace=replace,
            on_bytes=lambda done: advance(done // MIB, None),
        )
    print_json(made) if as_json else _show(made)


@app.command(epilog=examples("colmlm backup verify monday.backup"))
def verify(file: BackupFile, as_json: AsJson = False) -> None:
    """Read a backup to its last byte and compare every checksum; needs no database.

    The exit code is 1 where a bit differs from what was written, or the end is missing.
    """
    with progress("Reading MiB") as advance:
        found = verify_backup(file, lambda done: advance(done // MIB, None))
    print_json({"ok": True, **plain(found)}) if as_json else _show(found)


def _show(backup: Backup) -> None:
    say(
        f"ok: database {backup.database} as of change {backup.seq}, made {backup.at}, signed by key {backup.key}"
    )
    say(f"{backup.num_bytes} bytes, migration {backup.migration}")
    say("rows: " + ", ".join(f"{name} {rows}" for name, rows in backup.rows.items() if rows))


@app.command(
    epilog=examples(
        "colmlm backup restore monday.backup --dry-run",
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
            help="The log of the newer life (audit export --log); what it erased is erased again.",
        ),
    ] = None,
    reapply_deletes: Annotated[
        bool, typer.Option("--reapply-deletes", help="Delete again, too, what that log says is deleted.")
    ] = False,
    actor: Actor = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do all of it, then roll it back.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fill an empty, migrated database from a backup: everything, or nothing.

    Then everything is checked as `colmlm fsck` does; the exit code is 1 where that finds anything.
    """
    if reapply_deletes and change_log is None:
        raise typer.BadParameter("there is no log to take them from.", param_hint="--reapply-deletes")
    with Runtime.from_environment() as runtime:
        with progress("Restoring MiB") as advance:
            report = restore_backup(
                runtime.kb,
                file,
                actor=runtime.actor(actor),
                log_file=change_log,
                reapply_deletes=reapply_deletes,
                dry_run=dry_run,
                on_bytes=lambda done: advance(done // MIB, None),
            )
        is_sound = dry_run or runtime.kb.fsck().ok
    if as_json:
        print_json({"ok": is_sound, "dry_run": dry_run, **plain(report)})
    else:
        _show_restored(report, dry_run)
    if not is_sound:
        note("The restored base is not sound. Run: colmlm fsck")
        raise typer.Exit(CHECK_FAILED)


def _show_restored(report: RestoreReport, dry_run: bool) -> None:
    say(
        f"{'Would restore' if dry_run else 'Restored'} database {report.backup.database}, change {report.backup.seq}."
    )
    for what, fact_ids in (
        ("erased again", report.erased_again),
        ("deleted since the backup", report.deleted_since),
        ("deleted again", report.deleted_again),
    ):
        if fact_ids:
            say(
                f"{what}: {', '.join(map(str, fact_ids[:20]))}{' ...' if len(fact_ids) > 20 else ''} ({len(fact_ids)})"
            )
    if report.erased_again and not dry_run:
        note("The files of this server still hold what was erased. Run: colmlm erase --now")
