"""`colmlm corpus`: syncs, exports, retains, deletes and lists annotated corpora and their documents."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
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
from colmlm.cli.contents import annotate, corpus_add
from colmlm.cli.contents.corpus_add import MOST_SHOWN, SkipUnknown, show_passed_over, show_refusals
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import (
    MAX_BIGINT,
    Actor,
    After,
    DryRun,
    Limit,
    WhyUnlessDry,
    Yes,
    examples,
    require_reason,
    require_somebody,
    some_text,
    wants_json,
    without_json,
)
from colmlm.cli.output import count_of, note, plain, print_json, print_table, say, shorten
from colmlm.kb.corpus.format import to_record
from colmlm.kb.corpus.raw.blocks import FieldNames, RawAddition
from colmlm.kb.corpus.raw.files import find_files
from colmlm.kb.errors import refusals
from colmlm.kb.facts.records import CorpusStats, Edit
from colmlm.kb.texts.characters import number_pages

if TYPE_CHECKING:
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.removal.records import RetentionPlan, RetentionTerms

app = typer.Typer(
    help="Add, sync, annotate, export, retain, delete and list corpora.",
    epilog=examples("colmlm corpus list"),
)
app.command("add", epilog=corpus_add.ADD_EXAMPLES)(corpus_add.add)
app.command("annotate", epilog=annotate.ANNOTATE_EXAMPLES)(annotate.annotate)


class ExportFormat(StrEnum):
    annotated = "annotated"
    parquet = "parquet"
    dataset = "dataset"


CorpusName = Annotated[str, typer.Argument(metavar="NAME", help="The corpus.")]


@app.command(
    epilog=examples(
        "colmlm corpus sync handbook/ --corpus handbook --dry-run",
        "colmlm corpus sync /srv/handbook --corpus handbook --yes --skip-unknown",
        "colmlm jobs start sync folder=handbook corpus=handbook",
    )
)
def sync(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="The folder to follow.")
    ],
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus that follows it.")],
    dry_run: DryRun = False,
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
    fields = FieldNames(id_field, title_field, text_field)
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
            done = syncing.preview_sync(plan)
        else:
            _confirm_removal(len(plan.gone), corpus, yes=yes)
            how = RawAddition(questions=questions, verify=verify, span_threshold=span_threshold)
            who = {"actor": runtime.actor(actor), "reason": reason or "corpus sync"}
            done = syncing.run(plan, annotators.annotator_loader(runtime, how), **who)
    named = {"new": plan.new, "changed": plan.changed, "gone": plan.gone, "refusals": done.refusals}
    told = {"dry_run": dry_run, **done.summary(), **plain(named)}
    print_json(told) if wants_json() else _show_synced(told, skip_unknown=skip_unknown)
    if told["refused"] or (told["passed_over"] and not skip_unknown):
        raise typer.Exit(REFUSED)


def _confirm_removal(gone: int, corpus: str, *, yes: bool) -> None:
    if gone and not yes:
        require_somebody(yes, f"take the documents of {count_of(gone, 'file')} out")
        typer.confirm(
            f"Take the documents of {count_of(gone, 'file')} that are gone out of {corpus!r}?",
            abort=True,
            err=True,
        )


def _show_synced(told: dict[str, Any], *, skip_unknown: bool) -> None:
    files, documents = told["files"], told["documents"]
    say(
        ", ".join(f"{number} {what}" for what, number in files.items())
        + f" of {count_of(sum(files.values()), 'file')}."
    )
    moved = [(what, path) for what in ("new", "changed", "gone") for path in told[what]]
    if moved:
        print_table(("", "file"), moved[:MOST_SHOWN])
    if len(moved) > MOST_SHOWN:
        say(f"... and {len(moved) - MOST_SHOWN} more; --json lists them.")
    if not skip_unknown:
        show_passed_over(told["passed_over"])
    show_refusals(told["refused"], told["refusals"])
    would = "Would add" if told["dry_run"] else "Added"
    took = "take out" if told["dry_run"] else "took out"
    say(
        f"{would} {count_of(documents['new'], 'new document')} and {documents['changed']} changed, "
        f"and {took} {documents['gone']}."
    )
    if told["dry_run"]:
        say("Nothing was done.")
        return
    if told["seq"] is not None:
        say(f"{count_of(told['facts'], 'fact')} added, up to change {told['seq']}.")
    if told["removed_seq"] is not None:
        say(
            f"Change {told['removed_seq']} deleted {count_of(told['deleted_facts'], 'fact')} of what is gone."
        )
    if told["threshold"]:
        say(told["threshold"])


@app.command(
    epilog=examples(
        "colmlm corpus export demo > demo.jsonl",
        "colmlm corpus export demo --live-only --output train.jsonl",
        "colmlm corpus export demo --live-only --quiz --output quiz.jsonl",
        "colmlm corpus export demo --output demo.parquet",
        "colmlm corpus export demo --format dataset --output demo/",
    )
)
@anywhere
@without_json
def export(
    base: Base,
    corpus: CorpusName,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write here, a dataset into a new folder. Default: stdout."),
    ] = None,
    format_: Annotated[
        ExportFormat | None,
        typer.Option(
            "--format",
            help="JSON Lines, Parquet, or a folder for the hub that `datasets` loads. Default: by the output's name.",
        ),
    ] = None,
    live_only: Annotated[
        bool, typer.Option("--live-only", help="Only live facts that the text still says, to train on.")
    ] = False,
    quiz: Annotated[
        bool,
        typer.Option(
            "--quiz", help="With --live-only: each fact as a document that asks its question and answers it."
        ),
    ] = False,
) -> None:
    """Write a corpus in a form that `colmlm corpus add` reads: every fact, corrected and deleted ones too.

    Erased facts are left out, and facts without a document belong to no corpus.
    """
    is_parquet = output is not None and output.suffix == ".parquet"
    format_ = format_ or (ExportFormat.parquet if is_parquet else ExportFormat.annotated)
    if format_ is not ExportFormat.annotated and output is None:
        raise typer.BadParameter(
            f"{format_.value} goes into a file or folder; name it.", param_hint="--output"
        )
    if quiz and not live_only:
        raise typer.BadParameter(
            "only live facts are asked for; pass --live-only as well.", param_hint="--quiz"
        )
    documents = base.corpora.export(corpus, live_only=live_only)  # raises before a file is created
    if quiz:
        from colmlm.model.training.steps import quiz_documents

        documents = quiz_documents(documents)
    if format_ is ExportFormat.parquet:
        from colmlm.kb.corpus.parquet import write_parquet

        assert output is not None
        write_parquet(documents, output)
        return
    if format_ is ExportFormat.dataset:
        from colmlm.kb.corpus.parquet import write_dataset

        assert output is not None
        write_dataset(documents, output, corpus)
        return
    with output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as target:
        for document in documents:
            target.write(json.dumps(to_record(document), ensure_ascii=False) + "\n")


@app.command(
    epilog=examples(
        "colmlm corpus delete handbook --document peru --document chile --dry-run",
        'colmlm corpus delete handbook --reason "licence withdrawn" --yes',
    )
)
@anywhere
def delete(
    base: Base,
    corpus: CorpusName,
    document: Annotated[
        list[str] | None,
        typer.Option("--document", metavar="ID", help="Only this document; may be given several times."),
    ] = None,
    reason: WhyUnlessDry = None,
    actor: Actor = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete every live fact of a corpus, or of some of its documents, in one change. The texts stay.

    `colmlm facts restore` brings facts back. An ingest of the same file leaves them deleted.
    """
    require_reason(reason, unless=dry_run)
    require_somebody(yes or dry_run, "delete")
    documents, facts = base.corpora.count(corpus, document)
    if not (dry_run or yes):
        typer.confirm(f"Delete {_content_counts(documents, facts)} of {corpus!r}?", abort=True, err=True)
    edit = None
    if not dry_run:
        assert reason is not None
        edit = base.corpora.delete(corpus, document, actor=base.actor(actor), reason=reason)
    _show_deleted(corpus, documents, edit, facts)


def _content_counts(documents: int, facts: int) -> str:
    return f"{count_of(facts, 'live fact')} in {count_of(documents, 'document')}"


def _show_deleted(corpus: str, documents: int, edit: Edit | None, facts: int) -> None:
    if wants_json():
        counts = {"dry_run": edit is None, "corpus": corpus, "documents": documents}
        done = {"facts": facts} if edit is None else {"facts": len(edit.fact_ids), **_as_edit(edit)}
        print_json({**counts, **done})
    elif edit is None:
        say(f"Would delete {_content_counts(documents, facts)} of {corpus!r}.")
    elif edit.fact_ids:
        say(f"Change {edit.seq}: deleted {_content_counts(documents, len(edit.fact_ids))} of {corpus!r}.")
    else:
        say(f"No live fact in {corpus!r} to delete; nothing was changed.")


def _as_edit(edit: Edit) -> dict[str, object]:
    return {"seq": edit.seq if edit.fact_ids else None, "fact_ids": edit.fact_ids}


class RetentionAction(StrEnum):
    """The actions of a retention rule."""

    delete = "delete"
    erase = "erase"


class RetentionStart(StrEnum):
    """The times from which a retention rule counts its days."""

    seen = "seen"
    date = "date"


@app.command(
    epilog=examples(
        "colmlm corpus retain handbook",
        'colmlm corpus retain handbook --days 365 --action erase --counts-from date --reason "policy 7"',
        "colmlm corpus retain handbook --days 30 --dry-run",
        'colmlm corpus retain handbook --days 0 --reason "kept for ever"',
    )
)
@anywhere
def retain(
    base: Base,
    corpus: CorpusName,
    days: Annotated[
        int | None,
        typer.Option("--days", min=0, max=36_500, help="Set a rule: documents go after so many. 0 ends it."),
    ] = None,
    action: Annotated[
        RetentionAction,
        typer.Option("--action", help="delete hides a document with its facts; erase destroys its text."),
    ] = RetentionAction.delete,
    counts_from: Annotated[
        RetentionStart,
        typer.Option(
            "--counts-from",
            help="seen: since it was added or last found unchanged. date: since the date its revision begins with.",
        ),
    ] = RetentionStart.seen,
    reason: WhyUnlessDry = None,
    actor: Actor = None,
    limit: Limit = 50,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Show or set after how many days the documents of a corpus go, what would go now, and when the next goes.

    A worker carries a rule out within an hour. What a hold keeps stays. Without --days nothing is changed.
    """
    off = days == 0
    terms: RetentionTerms | None = None
    if days:
        terms = {"days": days, "action": action.value, "counts_from": counts_from.value}
    plan = base.retention.plan(corpus, terms=terms, limit=limit)
    changes = days is not None and not dry_run
    if changes:
        require_reason(reason)
        require_somebody(yes, "change the rule")
        if not yes:
            _show_retention(plan)
            typer.confirm("End the rule?" if off else "Set this rule?", abort=True, err=True)
        who: OnRecord = {"actor": base.actor(actor), "reason": reason or ""}
        rule = (
            base.retention.end_rule(corpus, **who)
            if terms is None
            else base.retention.set_rule(corpus, **terms, **who)
        )
        plan = replace(plan, rule=None if off else rule)
    if wants_json():
        print_json({"dry_run": not changes, **plain(asdict(plan))})
    elif off and changes:
        say(f"The documents of {corpus!r} stay from now on.")
    else:
        _show_retention(plan)


def _show_retention(plan: RetentionPlan) -> None:
    if (rule := plan.rule) is None:
        say(f"The corpus {plan.corpus!r} has no retention rule: its documents stay.")
        return
    since = "its own date" if rule.counts_from == "date" else "it was added or last found unchanged"
    by = f", by change {rule.seq}" if rule.seq else ""
    say(f"{rule.action} a document of {plan.corpus!r} {count_of(rule.days, 'day')} after {since}{by}")
    held = f", and {plan.num_held} more are held" if plan.num_held else ""
    say(f"due now: {count_of(plan.num_due, 'document')}{held}")
    rows = [
        (d.document_id, d.external_id, f"{d.due_at:%Y-%m-%d}", ", ".join(map(str, d.hold_ids)))
        for d in plan.documents
    ]
    if rows:
        print_table(("id", "document", "due", "held by"), rows)
    if plan.next_at is not None:
        say(f"next: {plan.next_at:%Y-%m-%d %H:%M} UTC")


@app.command(
    "list",
    epilog=examples("colmlm corpus list", "colmlm corpus list demo --json", "colmlm corpus list --stats"),
)
@anywhere
def list_corpora(
    base: Base,
    corpus: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this corpus. Default: all.")
    ] = None,
    counts_everything: Annotated[
        bool,
        typer.Option(
            "--stats", help="Count instead all there is: documents, facts, outputs, keysets, forget runs."
        ),
    ] = False,
) -> None:
    """List the corpora, or one: documents, live facts, deleted facts, characters.

    What --stats counts is as of one change.
    """
    if counts_everything:
        if corpus is not None:
            raise typer.BadParameter("it counts all corpora; leave the corpus out.", param_hint="--stats")
        counts = base.upkeep.statistics()
        if wants_json():
            print_json(counts)
        else:
            print_table(
                ("what", "number"), [(name.replace("_", " "), n) for name, n in asdict(counts).items()]
            )
        return
    corpora = base.corpora.all()
    if corpus is None:
        print_json({"corpora": corpora}) if wants_json() else _show_corpora(corpora)
        return
    found = next((one for one in corpora if one.corpus == corpus), None)
    if found is None:
        raise refusals.corpus_not_found(corpus)
    print_json(found) if wants_json() else _show_corpora([found])


def _show_corpora(corpora: list[CorpusStats]) -> None:
    columns = ("corpus", "documents", "facts", "deleted", "characters")
    none = "No corpora. Add the first: colmlm corpus add PATH --corpus NAME"
    print_table(columns, [tuple(getattr(c, name) for name in columns) for c in corpora], none)


@app.command(
    "documents",
    epilog=examples(
        "colmlm corpus documents --corpus demo",
        "colmlm corpus documents --replaced --json",
        "colmlm corpus documents 3",
    ),
)
@anywhere
def list_documents(
    base: Base,
    document_id: Annotated[
        int | None,
        typer.Argument(metavar="[DOCUMENT_ID]", min=1, max=MAX_BIGINT, help="Show this one with its text."),
    ] = None,
    corpus: Annotated[str | None, typer.Option("--corpus", help="Only documents of this corpus.")] = None,
    replaced: Annotated[
        bool, typer.Option("--replaced", help="Those that a newer text replaced, not the current ones.")
    ] = False,
    after: After = 0,
    limit: Limit = 50,
) -> None:
    """List documents in the order of their ids, or show one: its text as it was ingested, and where it came from.

    The one may have been replaced by a newer text.
    """
    if document_id is not None:
        _show_document(base, document_id)
        return
    found = base.documents.find(corpus=corpus, replaced=replaced, after=after, limit=limit)
    more = found[-1].document_id if len(found) == limit else None
    if wants_json():
        print_json({"documents": found, "next_after": more})
        return
    rows = [
        (d.document_id, f"{d.corpus}/{d.external_id}", shorten(d.title), d.live_facts, d.characters)
        for d in found
    ]
    print_table(("id", "document", "title", "live facts", "characters"), rows, "No documents found.")
    if more is not None:
        note(f"More documents: --after {more}")


def _show_document(base: Base, document_id: int) -> None:
    document, text = base.documents.read(document_id)
    if wants_json():
        print_json({"document": document, "text": text})
        return
    say(f"document {document.document_id}: {document.corpus}/{document.external_id}")
    about = {"title": document.title, "uri": document.uri, "licence": document.licence}
    for name, value in {**about, "revision": document.revision}.items():
        if value:
            say(f"{name}: {value}")
    if document.replaced_seq is not None:
        say(f"replaced by change {document.replaced_seq}")
    say(f"live facts: {document.live_facts}")
    say()
    say(number_pages(text))
