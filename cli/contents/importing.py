"""`colmlm corpus import`: takes in stores of facts that others publish, with the keys that come with them."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import Actor, AsJson, examples, some_text
from colmlm.cli.output import counted, note, print_json, say

if TYPE_CHECKING:
    from colmlm.kb.keys.records import CheckpointInfo, KeysetRecord
    from colmlm.kb.releases.records import ImportReport

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
    as_json: AsJson = False,
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
    print_json(told) if as_json else _show(report, keyset)


def _made_by(runtime: Runtime, checkpoint: Path | None) -> CheckpointInfo | None:
    return None if checkpoint is None else runtime.encoder_at(checkpoint).checkpoint


def _show(report: ImportReport, keyset: KeysetRecord | None) -> None:
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
