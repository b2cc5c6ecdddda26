"""Ingests a file of documents whose facts are marked already, for `colmlm corpus add`, and says what was taken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

import typer

from colmlm.cli.bases.protocol import Base
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import wants_json
from colmlm.cli.output import counted, note, print_json, print_table, say
from colmlm.kb.corpus.format import Refusal
from colmlm.kb.facts.records import Ingesting, IngestReport

MOST_REFUSALS_SHOWN = 20
_LONGEST_LINE = 4_000_000  # of a file that is recognised by its first line


class Format(StrEnum):
    annotated = "annotated"
    parquet = "parquet"
    squad = "squad"
    rel_lmlm = "rel-lmlm"


def recognise_annotated(paths: Sequence[Path]) -> Format | None:
    """Give the form of a file whose first line is a document with its facts; None of other files."""
    found = [path for path in paths if path.suffix == ".jsonl" and path.is_file() and _begins_annotated(path)]
    if found and len(paths) > 1:
        raise typer.BadParameter(f"{found[0].name} is an annotated file; add it alone.", param_hint="PATH")
    return Format.annotated if found else None


def _begins_annotated(path: Path) -> bool:
    with path.open("rb") as file:
        line = file.readline(_LONGEST_LINE)
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and isinstance(record.get("facts"), list) and "text" in record


def ingest_annotated(base: Base, paths: Sequence[Path], format_: Format, corpus: str, how: Ingesting) -> None:
    """Ingest an annotated file and report it, with a failing exit code where something was refused."""
    if len(paths) != 1 or not paths[0].is_file():
        raise typer.BadParameter("it is the form of one file; name that alone.", param_hint="--format")
    report, refused = base.corpora.ingest(paths[0], format_.value, corpus, **how)
    dry_run = how.get("dry_run", False)
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
        note("Facts are found once they have keys. Run: colmlm keysets fill")


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
