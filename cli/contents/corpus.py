"""`colmlm corpus`: ingests, exports, deletes and counts annotated corpora."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.annotation import annotate, corpus_add, corpus_sync
from colmlm.cli.asking import require_reason, require_somebody
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.protocol import Base
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import (
    Actor,
    AllowErased,
    WhyUnlessDry,
    Yes,
    examples,
    some_text,
    wants_json,
    without_json,
)
from colmlm.cli.output import counted, note, print_json, print_table, say
from colmlm.kb.corpus.format import Refusal, to_record
from colmlm.kb.errors import CorpusNotFound
from colmlm.kb.facts.records import CorpusStats, Edit, IngestReport

if TYPE_CHECKING:
    from colmlm.kb.keys.records import CheckpointInfo, KeysetRecord
    from colmlm.kb.releases.releases import ImportReport


# `colmlm corpus import`: takes in stores of facts that others publish, with the keys that come with them.

IMPORT_EXAMPLES = examples(
    "colmlm corpus import release/ --format colmlm-release --corpus wiki --dry-run",
    "colmlm corpus import release/ --format colmlm-release --corpus wiki --checkpoint checkpoints/co-lmlm",
)


class ReleaseFormat(StrEnum):
    colmlm_release = "colmlm-release"


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY",
            exists=True,
            file_okay=False,
            help="The folder with entries.db, faiss.index and faiss_id_to_entry_id.txt.",
        ),
    ],
    format_: Annotated[ReleaseFormat, typer.Option("--format", help="The form that it is published in.")],
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus to put it in.")],
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            exists=True,
            file_okay=False,
            help="The checkpoint that made the keys. Default: unknown.",
        ),
    ] = None,
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=some_text, help="Why; by default the format.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check all of it, and stop.")] = False,
) -> None:
    """Import a published store of facts with its keys. If it is interrupted, run it again to continue.

    All of it is checked first, and nothing is stored of what is damaged or does not fit together. Facts have no offsets
    then, but the number that they have in a sample. Their keys are reconstructed from the codes of the index and so
    approximate, until `colmlm rekey` makes others: of facts whose documents were ingested meanwhile, into the same
    corpus and under the names of the samples, or that were given a question.
    """
    with Runtime.from_environment() as runtime:
        from colmlm.kb.releases.releases import ReleaseProgress

        made_by = _made_by(runtime, checkpoint)
        with (
            runtime.telling.progress("Checking entries") as examined,
            runtime.telling.progress("Checking keys") as read,
            runtime.telling.progress("Storing facts") as facts,
            runtime.telling.progress("Adopting keys") as keys,
        ):
            progress = ReleaseProgress(examined, read, facts, keys)
            if dry_run:
                report, keyset = runtime.kb.releases.examine(folder, corpus, made_by, progress), None
            else:
                who = {"actor": runtime.actor(actor), "reason": reason or f"import of a {format_}"}
                report = runtime.kb.releases.take(folder, corpus, made_by, **who, progress=progress)
                assert report.keyset_id is not None, "keys were adopted into a keyset"
                keyset = runtime.kb.keysets.finish(report.keyset_id)
    told = {"dry_run": dry_run, **asdict(report), "approximate": True, "keyset": keyset}
    print_json(told) if wants_json() else _show_importing(report, keyset)


def _made_by(runtime: Runtime, checkpoint: Path | None) -> CheckpointInfo | None:
    return None if checkpoint is None else runtime.encoder_at(checkpoint).checkpoint


def _show_importing(report: ImportReport, keyset: KeysetRecord | None) -> None:
    release = f"{counted(report.entries, 'fact')}, {report.kind} of width {report.dim}"
    if keyset is None:
        say(f"The release is sound: {release}. {report.there} are in {report.corpus!r} already.")
        return
    say(f"Took {counted(report.facts, 'fact')} into {report.corpus!r}; {report.there} were there already.")
    if report.suppressed:
        say(f"{report.suppressed} left out, as they were erased before.")
    say(
        f"Adopted {counted(report.adopted, 'key')} into keyset {keyset.keyset_id}, {keyset.state}: approximate ones."
    )
    say("Their facts have no text here, so each is known by its number in a sample, without offsets.")
    if keyset.state == "ready":
        note(f"Another keyset is active. To let this one answer: colmlm keysets activate {keyset.keyset_id}")


MOST_REFUSALS_SHOWN = 20

app = typer.Typer(
    help="Add, sync, annotate, ingest, import, export, delete, list and count corpora.",
    epilog=examples("colmlm corpus list"),
)
app.command("add", epilog=corpus_add.ADD_EXAMPLES)(corpus_add.add)
app.command("sync", epilog=corpus_sync.SYNC_EXAMPLES)(corpus_sync.sync)
app.command("annotate", epilog=annotate.ANNOTATE_EXAMPLES)(annotate.annotate)
app.command("import", epilog=IMPORT_EXAMPLES)(import_)


class Format(StrEnum):
    annotated = "annotated"
    parquet = "parquet"
    squad = "squad"
    rel_lmlm = "rel-lmlm"


class ExportFormat(StrEnum):
    annotated = "annotated"
    parquet = "parquet"
    dataset = "dataset"


CorpusName = Annotated[str, typer.Argument(metavar="NAME", help="The corpus.")]


@app.command(
    epilog=examples(
        "colmlm corpus ingest facts.jsonl --format annotated --corpus handbook",
        "colmlm corpus ingest facts.parquet --format parquet --corpus handbook --commit-every 50000",
        "colmlm corpus ingest dev-v2.0.json --format squad --corpus squad --dry-run",
    )
)
@anywhere
def ingest(
    base: Base,
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The file to read.")
    ],
    format_: Annotated[
        Format,
        typer.Option(
            "--format",
            help="JSON Lines of documents and facts, the same as Parquet, SQuAD, or texts with dblookup calls.",
        ),
    ],
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus to put it in.")],
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; by default the name of the file.")
    ] = None,
    commit_every: Annotated[
        int | None,
        typer.Option(
            "--commit-every", min=1, help="Documents of one transaction and change. Default: 10000."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do all of it, then roll it back.")] = False,
    allow_erased: AllowErased = False,
) -> None:
    """Ingest a file of annotated documents. If it is interrupted, run it again to continue.

    Documents and facts that fail the checks are refused with document, offset and reason, and the others are ingested;
    the exit code is then 3. A document that is there already, unchanged, is skipped. `colmlm rekey` gives the facts
    keys. With --server the file is uploaded, and a job there ingests it.
    """
    report, refused = base.corpora.ingest(
        file,
        format_.value,
        corpus,
        actor=base.actor(actor),
        reason=reason or f"ingest of a file, {format_.value}",
        commit_every=commit_every,
        dry_run=dry_run,
        allow_erased=allow_erased,
    )
    if wants_json():
        print_json({"dry_run": dry_run, "refused": refused, **_as_dict(report)})
    else:
        _show(report, refused, dry_run)
    if refused:
        raise typer.Exit(REFUSED)


def _as_dict(report: IngestReport) -> dict[str, object]:
    return {name: getattr(report, name) for name in IngestReport.__dataclass_fields__}


def _show(report: IngestReport, refused: int, dry_run: bool) -> None:
    taken = f"{counted(report.documents, 'document')} with {counted(report.facts, 'new fact')}"
    say(
        f"{'Would take' if dry_run else 'Took'} {taken} into {report.corpus!r}; {report.unchanged} were there already."
    )
    if report.replaced:
        say(f"{report.replaced} of them replace an older text.")
    if report.still_deleted:
        say(f"{report.still_deleted} facts that the file names were deleted here, and stay so.")
    if report.overlaps_resolved:
        say(f"{report.overlaps_resolved} overlapping spans left out.")
    if report.suppressed:
        say(
            f"{report.suppressed} spans left out and redacted, as they were erased before (see --allow-erased):"
        )
        shown = report.suppressed_at[:MOST_REFUSALS_SHOWN]
        print_table(("document", "start", "end"), [(s.document, s.start, s.end) for s in shown])
    if report.contradictions:
        say(f"{report.contradictions} contradictions with facts that are here: colmlm facts contradictions")
    if report.duplicates:
        say(f"{report.duplicates} duplicates of facts that are here: colmlm facts duplicates")
    _show_refusals(report.refusals, refused)
    if report.facts and not dry_run:
        note("Facts are found once they have keys. Run: colmlm rekey")


def _show_refusals(refusals: tuple[Refusal, ...], refused: int) -> None:
    if not refused:
        return
    say(f"Refused {refused}:")
    print_table(
        ("document", "offset", "reason"),
        [(r.document, r.offset, r.reason) for r in refusals[:MOST_REFUSALS_SHOWN]],
    )
    if refused > MOST_REFUSALS_SHOWN:
        say(f"... and {refused - MOST_REFUSALS_SHOWN} more; --json lists them.")


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
    """Write a corpus in a form that `colmlm corpus ingest` reads: every fact, corrected and deleted ones too.

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
        from colmlm.model.baselines.quiz import quiz as quiz_of

        documents = quiz_of(documents)
    if format_ is ExportFormat.parquet:
        from colmlm.kb.corpus.parquet import write_parquet

        assert output is not None
        write_parquet(documents, output)
        return
    if format_ is ExportFormat.dataset:
        from colmlm.kb.corpus.dataset import write_dataset

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what would be deleted and stop.")] = False,
    yes: Yes = False,
) -> None:
    """Delete every live fact of a corpus, or of some of its documents, in one change. The texts stay.

    `colmlm facts restore` brings facts back. An ingest of the same file leaves them deleted.
    """
    require_reason(reason, unless=dry_run)
    require_somebody(yes or dry_run, "delete")
    documents, facts = base.corpora.count(corpus, document)
    if not (dry_run or yes):
        typer.confirm(f"Delete {_counted(documents, facts)} of {corpus!r}?", abort=True, err=True)
    edit = None
    if not dry_run:
        assert reason is not None
        edit = base.corpora.delete(corpus, document, actor=base.actor(actor), reason=reason)
    _show_deleted(corpus, documents, edit, facts)


def _counted(documents: int, facts: int) -> str:
    return f"{counted(facts, 'live fact')} in {counted(documents, 'document')}"


def _show_deleted(corpus: str, documents: int, edit: Edit | None, facts: int) -> None:
    if wants_json():
        counts = {"dry_run": edit is None, "corpus": corpus, "documents": documents}
        done = {"facts": facts} if edit is None else {"facts": len(edit.fact_ids), **_as_edit(edit)}
        print_json({**counts, **done})
    elif edit is None:
        say(f"Would delete {_counted(documents, facts)} of {corpus!r}.")
    elif edit.fact_ids:
        say(f"Change {edit.seq}: deleted {_counted(documents, len(edit.fact_ids))} of {corpus!r}.")
    else:
        say(f"No live fact in {corpus!r} to delete; nothing was changed.")


def _as_edit(edit: Edit) -> dict[str, object]:
    return {"seq": edit.seq if edit.fact_ids else None, "fact_ids": edit.fact_ids}


@app.command(epilog=examples("colmlm corpus stats demo", "colmlm corpus stats demo --json"))
@anywhere
def stats(base: Base, corpus: CorpusName) -> None:
    """Count a corpus: documents, live facts, deleted facts, characters."""
    found = next((c for c in base.corpora.all() if c.corpus == corpus), None)
    if found is None:
        raise CorpusNotFound(corpus)
    print_json(found) if wants_json() else _show_corpora([found])


@app.command("list", epilog=examples("colmlm corpus list", "colmlm corpus list --json"))
@anywhere
def list_corpora(base: Base) -> None:
    """List the corpora."""
    corpora = base.corpora.all()
    print_json({"corpora": corpora}) if wants_json() else _show_corpora(corpora)


def _show_corpora(corpora: list[CorpusStats]) -> None:
    columns = ("corpus", "documents", "facts", "deleted", "characters")
    print_table(columns, [tuple(getattr(c, name) for name in columns) for c in corpora])
