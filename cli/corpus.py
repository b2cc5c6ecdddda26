"""`colmlm corpus`: take annotated corpora in, give them back, count them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import REFUSED
from cli.options import Actor, AllowErased, AsJson, examples, some_text
from cli.output import note, print_json, print_table, progress, say
from cli.runtime import Runtime
from kb.corpus import Parsed, Refusal, read_annotated, to_record
from kb.errors import CorpusNotFound
from kb.ingest import COMMIT_EVERY
from kb.records import CorpusStats, IngestReport
from kb.squad import read_squad

MOST_REFUSALS_SHOWN = 20

app = typer.Typer(help="Ingest, export, list and count corpora.", epilog=examples("colmlm corpus list"))


class Format(StrEnum):
    annotated = "annotated"
    squad = "squad"


_READERS: dict[Format, Callable[[Path], Iterator[Parsed]]] = {
    Format.annotated: read_annotated,
    Format.squad: read_squad,
}

CorpusName = Annotated[str, typer.Argument(metavar="NAME", help="The corpus.")]


@app.command(
    epilog=examples(
        "colmlm corpus ingest facts.jsonl --format annotated --corpus handbook",
        "colmlm corpus ingest dev-v2.0.json --format squad --corpus squad --dry-run",
    )
)
def ingest(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The file to read.")
    ],
    format_: Annotated[Format, typer.Option("--format", help="JSON Lines of documents and facts, or SQuAD.")],
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus to put it in.")],
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Why; by default the name of the file.")
    ] = None,
    commit_every: Annotated[
        int, typer.Option("--commit-every", min=1, help="Documents of one transaction and change.")
    ] = COMMIT_EVERY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do all of it, then roll it back.")] = False,
    allow_erased: AllowErased = False,
    as_json: AsJson = False,
) -> None:
    """Take a file of annotated documents in: every sound document. If it is interrupted, run it again to go on.

    What does not check out is refused with document, offset and reason, and the rest is taken; the exit
    code is then 3. A document that is there already, unchanged, is passed over. Facts are keyed by `colmlm rekey`.
    """
    with Runtime.from_environment() as runtime:
        because = reason or f"ingest of {file.name}"
        report = _ingest(
            runtime,
            _READERS[format_](file),
            corpus,
            actor=runtime.actor(actor),
            reason=because,
            commit_every=commit_every,
            dry_run=dry_run,
            allow_erased=allow_erased,
        )
    if as_json:
        print_json({"dry_run": dry_run, "refused": len(report.refusals), **_as_dict(report)})
    else:
        _show(report, dry_run)
    if report.refusals:
        raise typer.Exit(REFUSED)


def _ingest(runtime: Runtime, parsed: Iterator[Parsed], corpus: str, **how: Any) -> IngestReport:
    with progress("Reading documents") as advance:

        def on_document(done: int) -> None:
            advance(done, None)

        return runtime.kb.ingest(parsed, corpus, on_document=on_document, **how)


def _as_dict(report: IngestReport) -> dict[str, object]:
    return {name: getattr(report, name) for name in IngestReport.__dataclass_fields__}


def _show(report: IngestReport, dry_run: bool) -> None:
    taken = f"{report.documents} documents with {report.facts} new facts"
    say(
        f"{'Would take' if dry_run else 'Took'} {taken} into {report.corpus!r}; {report.unchanged} were there already."
    )
    if report.replaced:
        say(f"{report.replaced} of them replace an older text.")
    if report.overlaps_resolved:
        say(f"{report.overlaps_resolved} overlapping spans left out.")
    if report.suppressed:
        say(
            f"{report.suppressed} spans left out and redacted, as they were erased before (see --allow-erased):"
        )
        shown = report.suppressed_at[:MOST_REFUSALS_SHOWN]
        print_table(("document", "start", "end"), [(s.document, s.start, s.end) for s in shown])
    _show_refusals(report.refusals)
    if report.facts and not dry_run:
        note("Facts are found once they have keys. Run: colmlm rekey")


def _show_refusals(refusals: tuple[Refusal, ...]) -> None:
    if not refusals:
        return
    say(f"Refused {len(refusals)}:")
    print_table(
        ("document", "offset", "reason"),
        [(r.document, r.offset, r.reason) for r in refusals[:MOST_REFUSALS_SHOWN]],
    )
    if len(refusals) > MOST_REFUSALS_SHOWN:
        say(f"... and {len(refusals) - MOST_REFUSALS_SHOWN} more; --json lists them all.")


@app.command(
    epilog=examples("colmlm corpus export demo > demo.jsonl", "colmlm corpus export demo --output demo.jsonl")
)
def export(
    corpus: CorpusName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", dir_okay=False, help="Write here; default: stdout.")
    ] = None,
) -> None:
    """Write a corpus as annotated JSON Lines, which `colmlm corpus ingest` takes back.

    A fact whose value was corrected is left out: the text no longer says it.
    """
    with Runtime.from_environment() as runtime:
        documents = runtime.kb.export(corpus)  # an unknown corpus ends here and leaves no empty file behind
        with output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as target:
            for document in documents:
                target.write(json.dumps(to_record(document), ensure_ascii=False) + "\n")


@app.command(epilog=examples("colmlm corpus stats demo", "colmlm corpus stats demo --json"))
def stats(corpus: CorpusName, as_json: AsJson = False) -> None:
    """Count a corpus: documents, live facts, deleted facts, characters."""
    with Runtime.from_environment() as runtime:
        found = next((c for c in runtime.kb.corpora() if c.corpus == corpus), None)
    if found is None:
        raise CorpusNotFound(corpus)
    print_json(found) if as_json else _show_corpora([found])


@app.command("list", epilog=examples("colmlm corpus list", "colmlm corpus list --json"))
def list_corpora(as_json: AsJson = False) -> None:
    """List the corpora."""
    with Runtime.from_environment() as runtime:
        corpora = runtime.kb.corpora()
    print_json({"corpora": corpora}) if as_json else _show_corpora(corpora)


def _show_corpora(corpora: list[CorpusStats]) -> None:
    columns = ("corpus", "documents", "facts", "deleted", "characters")
    print_table(columns, [tuple(getattr(c, name) for name in columns) for c in corpora])
