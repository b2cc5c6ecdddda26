"""`colmlm backup`: writes a whole knowledge base to one file, checks such a file, and restores it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
Identity = Annotated[
    Path | None,
    typer.Option(
        "--identity",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="The private key of an encrypted backup.",
    ),
]
MIB = 2**20
ANY_SIGNER = "any"
KEEP_THE_LOG = (
    "What is erased from now on can be read in this backup with the key file of then, and not with that of today. "
    "Keep the log elsewhere, after each erasure: colmlm log export --changes --output changes.jsonl"
)


def _keys_option(what: str, *, exists: bool) -> Any:
    """Give the option `--keys`: the file of the keys that seal and open the texts of a backup."""
    said = f"{what} Default: sealing.keys in the home."
    return typer.Option("--keys", metavar="FILE", exists=exists, dir_okay=False, help=said)


@app.command(
    epilog=examples(
        "colmlm backup create monday.backup", "colmlm backup create monday.backup --recipient age1..."
    )
)
def create(
    file: Annotated[Path, typer.Argument(metavar="FILE", dir_okay=False, help="Where to write it.")],
    recipient: Annotated[
        list[str] | None,
        typer.Option(
            "--recipient",
            metavar="KEY",
            callback=some_texts,
            help="Encrypt to this public key (age1...), or to those in this file; may be repeated. "
            "Default: COLMLM_BACKUP_RECIPIENTS.",
        ),
    ] = None,
    keys: Annotated[Path | None, _keys_option("Where to write the keys.", exists=False)] = None,
) -> None:
    """Write everything to one file, from one snapshot, while edits and lookups go on. Only its owner may read it.

    It holds all texts, deleted ones too, sealed with keys that are written to a file of their own. An erasure destroys
    the keys of what it erases, so keep the key file of today only, and apart from the backups. Keep the change log
    elsewhere too (`colmlm log export --changes`), since a restore repeats later erasures from it.
    """
    from colmlm.kb.backup.write import write_backup
    from colmlm.kb.log.signing import signing_key
    from colmlm.kb.removal.sealing import default_key_file

    with Runtime.from_environment() as runtime, progress("Writing MiB") as advance:
        made = write_backup(
            runtime.kb,
            file,
            signing_key(runtime.settings.home),
            recipients=recipient or (),
            key_file=keys,
            on_bytes=lambda done: advance(done // MIB, None),
        )
        key_file = keys or default_key_file(runtime.settings)
    print_json({**plain(made), "key_file": str(key_file)}) if wants_json() else _show(made)
    note(f"The keys that open its texts are in {key_file}. Keep them apart from the backup.")
    note(KEEP_THE_LOG)


@app.command(epilog=examples("colmlm backup verify monday.backup"))
def verify(file: BackupFile, key: Keys = None, identity: Identity = None) -> None:
    """Read a backup to its last byte and compare every checksum; needs no database and no sealing keys.

    The exit code is 1 where a bit differs from what was written, the end is missing, or no --key signed it.
    """
    from colmlm.kb.backup.write import verify_backup

    with progress("Reading MiB") as advance:
        found = verify_backup(
            file, lambda done: advance(done // MIB, None), keys=key or (), identities=identity
        )
    print_json({"ok": True, **plain(found)}) if wants_json() else _show(found)


def _show(backup: Backup) -> None:
    say(
        f"ok: database {backup.database} as of change {backup.seq}, made {backup.at}, signed by key {backup.key}"
    )
    kept = (
        "encrypted, texts sealed"
        if backup.is_encrypted
        else "texts sealed"
        if backup.is_sealed
        else "texts open"
    )
    say(f"{count_of(backup.num_bytes, 'byte')}, migration {backup.migration}, {kept}")
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
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="FINGERPRINT",
            callback=some_texts,
            help="Who may have signed; may be repeated. `any`: whoever did. Its tokens let people in here.",
        ),
    ] = None,
    keys: Annotated[Path | None, _keys_option("The keys that open its texts.", exists=True)] = None,
    identity: Identity = None,
    actor: Actor = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do all of it, then roll it back.")] = False,
    yes: Yes = False,
) -> None:
    """Fill an empty, migrated database from a backup: everything, or nothing.

    The key of this home must have signed the backup, or a --key, since a backup brings tokens. A backup may still hold
    what was erased after it was made, so the newer log is needed, signed by the key that signed the backup or by a
    --key. Texts whose sealing key was destroyed since are restored as marks, like erased ones. At the end everything is
    checked as by `colmlm doctor --data`; the exit code is 1 where that finds anything.
    """
    from colmlm.kb.backup.restore import restore_backup

    _require_one(change_log, without_later_erasures, reapply_deletes)
    signers = [one for one in key or () if one != ANY_SIGNER]
    if without_later_erasures and not dry_run:
        _confirm_return(file, identity, yes)
    with Runtime.from_environment() as runtime:
        with progress("Restoring MiB") as advance:
            report = restore_backup(
                runtime.kb,
                file,
                actor=runtime.actor(actor),
                log_file=change_log,
                without_later_erasures=without_later_erasures,
                keys=signers,
                trust_signer=ANY_SIGNER in (key or ()),
                key_file=keys,
                identities=identity,
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
        raise typer.BadParameter("leave it or --change-log out.", param_hint="--without-later-erasures")
    if reapply_deletes and change_log is None:
        raise typer.BadParameter("name the log with --change-log.", param_hint="--reapply-deletes")


def _confirm_return(file: Path, identity: Path | None, yes: bool) -> None:
    """Ask if facts that were erased after the backup may come back. Raises `BadParameter` if it can't ask."""
    from colmlm.kb.backup.write import open_backup

    if yes:
        return
    require_somebody(yes, "let erased facts come back")
    with open_backup(file, identities=identity) as archive:
        backup = archive.backup
    question = (
        f"Facts that were erased after change {backup.seq} ({backup.at}) come back. Restore all the same?"
    )
    typer.confirm(question, abort=True, err=True)


def _show_restored(report: RestoreReport, dry_run: bool) -> None:
    done = "Would restore" if dry_run else "Restored"
    say(f"{done} database {report.backup.database}, change {report.backup.seq}.")
    _show_later_erasures(report)
    for what, fact_ids in (
        ("erased again", report.erased_again),
        ("deleted since the backup", report.deleted_since),
        ("deleted again", report.deleted_again),
    ):
        if fact_ids:
            say(f"{what}: {some_ids(fact_ids)} ({len(fact_ids)})")
    for table, ids in report.lost.items():
        say(f"sealed, its key was destroyed: {table.replace('_', ' ')} {some_ids(ids)} ({len(ids)})")
    if limited := [one.corpus or f"keyset {one.keyset}" for one in report.limited_again]:
        say(f"limited to accepted facts again: {', '.join(limited)}")
    for erasure in report.repeated:
        say(f"  by change {erasure.seq} of that log, {erasure.at}: {some_ids(erasure.fact_ids)}")
    if report.erased_again and not dry_run:
        note("The files of this server still hold what was erased. Run: colmlm erase --now")


def _show_later_erasures(report: RestoreReport) -> None:
    """Print up to which change erasures after the backup are known, and who signed that log."""
    if (head := report.log_head) is not None:
        say(f"Later erasures are known up to change {head.seq}, from {report.log_file}.")
        say(f"That log was signed {head.at} by key {head.key}; what was erased after it is back.")
        if report.sealed:
            say(f"Passed over, since they are sealed breaks of that log: changes {some_ids(report.sealed)}.")
    elif report.without_later_erasures:
        say(f"Without later erasures: what was erased after change {report.backup.seq} is back.")
