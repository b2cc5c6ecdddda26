"""Takes in what has facts already, for `colmlm corpus add`: annotated files, and stores that others publish."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import wants_json
from colmlm.cli.output import counted, note, print_json, print_table, say
from colmlm.kb.corpus.format import Refusal
from colmlm.kb.facts.records import Ingesting, IngestReport

if TYPE_CHECKING:
    from colmlm.kb.keys.records import CheckpointInfo, KeysetRecord
    from colmlm.kb.releases.releases import ImportReport

MOST_REFUSALS_SHOWN = 20
_LONGEST_LINE = 4_000_000  # of a file that is recognised by its first line


class Format(StrEnum):
    annotated = "annotated"
    parquet = "parquet"
    squad = "squad"
    rel_lmlm = "rel-lmlm"
    colmlm_release = "colmlm-release"


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
        say(
            f"{report.contradictions} contradictions with facts that are here: colmlm facts compare contradictions"
        )
    if report.duplicates:
        say(f"{report.duplicates} duplicates of facts that are here: colmlm facts compare duplicates")
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


def import_release(
    paths: Sequence[Path],
    corpus: str,
    checkpoint: Path | None,
    actor: str | None,
    reason: str | None,
    *,
    dry_run: bool,
) -> None:
    """Import a published store of facts with its keys. If it is interrupted, run it again to continue.

    All of it is checked first, and nothing is stored of what is damaged or does not fit together. Facts have no offsets
    then, but the number that they have in a sample. Their keys are reconstructed from the codes of the index and so
    approximate, until others are made: of facts whose documents were ingested meanwhile, into the same corpus and under
    the names of the samples, or that were given a question.
    """
    if len(paths) != 1 or not paths[0].is_dir():
        raise typer.BadParameter("a release is one folder; name that alone.", param_hint="PATH")
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
                report, keyset = runtime.kb.releases.examine(paths[0], corpus, made_by, progress), None
            else:
                who = {"actor": runtime.actor(actor), "reason": reason or "import of a colmlm-release"}
                report = runtime.kb.releases.take(paths[0], corpus, made_by, **who, progress=progress)
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
