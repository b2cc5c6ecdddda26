"""`colmlm corpus sync`: makes a corpus say what the files of a folder say now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from colmlm.cli.annotation.inputs import SkipUnknown, show_passed_over
from colmlm.cli.composition import annotators
from colmlm.cli.composition.annotators import (
    Encoding,
    IdField,
    Questions,
    SpanThreshold,
    TextField,
    TitleField,
    Verify,
)
from colmlm.cli.composition.bulk.spreading import Ray, RayWorkers
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import Actor, Yes, examples, require_somebody, some_text, wants_json
from colmlm.cli.output import counted, plain, print_json, print_table, say
from colmlm.kb.corpus.raw.blocks import Fields, RawAddition
from colmlm.kb.corpus.raw.files import find_files

SYNC_EXAMPLES = examples(
    "colmlm corpus sync handbook/ --corpus handbook --dry-run",
    "colmlm corpus sync /srv/handbook --corpus handbook --yes --skip-unknown",
    "colmlm jobs start sync folder=handbook corpus=handbook",
)
MOST_SHOWN = 20


def sync(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="The folder to follow.")
    ],
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus that follows it.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is new, changed and gone, and stop.")
    ] = False,
    yes: Yes = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Also where none of the files of the last sync is left.")
    ] = False,
    move: Annotated[
        bool,
        typer.Option(
            "--move", help="Also where the corpus followed another folder: follow this one instead."
        ),
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Read and annotate unchanged files too.")] = False,
    skip_unknown: SkipUnknown = False,
    questions: Questions = False,
    verify: Verify = True,
    encoding: Encoding = None,
    id_field: IdField = None,
    title_field: TitleField = None,
    text_field: TextField = None,
    span_threshold: SpanThreshold = None,
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=some_text, help="Why; by default the command.")
    ] = None,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Follow a folder: add its new and changed files to a corpus, and take out the documents of files that are gone.

    Files that did not change since the last sync are not read, but for a digest. What is taken out is deleted in one
    change, which `colmlm facts undo` takes back; it comes back by itself once its file does. Documents that came into
    the corpus otherwise are left alone. After an interruption, run it again: nothing is done twice.
    """
    from colmlm.cli.composition.adding import Adding
    from colmlm.cli.composition.syncing import Syncing, places_of

    annotators.known_encoding(encoding)
    found = find_files([folder.resolve()])
    fields = Fields(id_field, title_field, text_field)
    with Runtime.from_environment() as runtime:
        runtime.use_ray(ray, ray_workers)
        adding = Adding(
            runtime, corpus, found, encoding, fields, again=again, asks=questions, verifies=verify,
            telling=runtime.telling,
        )  # fmt: skip
        syncing = Syncing(
            runtime.kb, corpus, places_of(folder), found, adding, runtime.telling, allow_empty, move
        )
        plan = syncing.plan()
        if dry_run:
            done = syncing.look(plan)
        else:
            _agree(len(plan.gone), corpus, yes=yes)
            how = RawAddition(questions=questions, verify=verify, span_threshold=span_threshold)
            who = {"actor": runtime.actor(actor), "reason": reason or "corpus sync"}
            done = syncing.run(plan, annotators.ready(runtime, how), **who)
    named = {"new": plan.new, "changed": plan.changed, "gone": plan.gone, "refusals": done.refusals}
    told = {"dry_run": dry_run, **done.summary(), **plain(named)}
    print_json(told) if wants_json() else _show(told, skip_unknown=skip_unknown)
    if told["refused"] or (told["passed_over"] and not skip_unknown):
        raise typer.Exit(REFUSED)


def _agree(gone: int, corpus: str, *, yes: bool) -> None:
    if gone and not yes:
        require_somebody(yes, f"take the documents of {counted(gone, 'file')} out")
        typer.confirm(
            f"Take the documents of {counted(gone, 'file')} that are gone out of {corpus!r}?",
            abort=True,
            err=True,
        )


def _show(told: dict[str, Any], *, skip_unknown: bool) -> None:
    files, documents = told["files"], told["documents"]
    say(
        ", ".join(f"{number} {what}" for what, number in files.items())
        + f" of {counted(sum(files.values()), 'file')}."
    )
    moved = [(what, path) for what in ("new", "changed", "gone") for path in told[what]]
    if moved:
        print_table(("", "file"), moved[:MOST_SHOWN])
    if len(moved) > MOST_SHOWN:
        say(f"... and {len(moved) - MOST_SHOWN} more; --json lists them.")
    if not skip_unknown:
        show_passed_over(told["passed_over"])
    if told["refused"]:
        say(f"Refused {told['refused']}:")
        shown = told["refusals"][:MOST_SHOWN]
        print_table(("document", "reason"), [(one["document"], one["reason"]) for one in shown])
    would = "Would add" if told["dry_run"] else "Added"
    took = "take out" if told["dry_run"] else "took out"
    say(
        f"{would} {counted(documents['new'], 'new document')} and {documents['changed']} changed, "
        f"and {took} {documents['gone']}."
    )
    if told["dry_run"]:
        say("Nothing was done.")
        return
    if told["seq"] is not None:
        say(f"{counted(told['facts'], 'fact')} added, up to change {told['seq']}.")
    if told["removed_seq"] is not None:
        say(f"Change {told['removed_seq']} deleted {counted(told['deleted_facts'], 'fact')} of what is gone.")
    if told["threshold"]:
        say(told["threshold"])
