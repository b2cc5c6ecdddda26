"""`colmlm corpus add`: raw documents read, annotated, taken in and keyed, so that the model can cite them."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli import annotators
from cli.adding import Adding, Tally
from cli.annotators import (
    Encoding,
    NoQuestions,
    QuestionGeneratorPath,
    RawPaths,
    SpanAnnotatorPath,
    SpanThreshold,
)
from cli.errors import REFUSED
from cli.options import Actor, AllowErased, AsJson, CheckpointPath, examples, some_text
from cli.output import print_json, print_table, say
from cli.runtime import Runtime
from kb.raw.files import find_files
from kb.records import IngestReport, KeysetRecord
from kb.standing import Standing

ADD_EXAMPLES = examples(
    "colmlm corpus add handbook/ --corpus handbook",
    "colmlm corpus add minutes.pdf notes.md --corpus meetings --dry-run",
    "colmlm corpus add articles.jsonl.gz --corpus wiki --no-questions",
)
MOST_SHOWN = 20


def add(
    paths: RawPaths,
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus to put them in.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read everything, say what is new, and stop.")
    ] = False,
    no_questions: NoQuestions = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Annotate what is there unchanged too: after a change of annotators."),
    ] = False,
    encoding: Encoding = None,
    span_annotator: SpanAnnotatorPath = None,
    span_threshold: SpanThreshold = None,
    question_generator: QuestionGeneratorPath = None,
    checkpoint: CheckpointPath = None,
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=some_text, help="Why; by default the paths.")
    ] = None,
    allow_erased: AllowErased = False,
    as_json: AsJson = False,
) -> None:
    """Read documents, mark their facts, take them in and give the facts keys: then `colmlm generate` can cite them.

    Files that cannot be read are refused one by one, with the reason, and the rest goes on; the exit code is then 3.
    Run again, it passes over what is unchanged and replaces what has changed; if it was interrupted, it goes on.
    """
    annotators.known_encoding(encoding)
    found = find_files(paths)
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        runtime.open()
        adding = Adding(runtime, corpus, found, encoding, again)
        report, keyset = None, None
        if dry_run:
            for _ in adding.wanted():
                pass
        else:

            def load() -> Any:
                runtime.encoder  # noqa: B018  a checkpoint that is missing should be known before an hour's annotation
                return annotators.light(
                    runtime,
                    span_annotator,
                    question_generator,
                    asks=not no_questions,
                    threshold=span_threshold,
                )

            why = reason or f"corpus add {' '.join(path.name for path in paths)}"[:500]
            report = adding.ingest(load, actor=runtime.actor(actor), reason=why, allow_erased=allow_erased)
            keyset = adding.key(changed=report is not None)
    _print_json(adding, report, keyset, dry_run) if as_json else _show(adding, report, keyset, dry_run)
    if adding.tally.refusals or (report is not None and report.refusals):
        raise typer.Exit(REFUSED)


def _try(tally: Tally, corpus: str) -> str:
    """What to type next."""
    if tally.question is None:
        return f"colmlm facts list --corpus {shlex.quote(corpus)}"
    asked = shlex.quote(f"Question: {tally.question} Answer:")
    return f"colmlm generate {asked} --mode forced"


def _print_json(
    adding: Adding, report: IngestReport | None, keyset: KeysetRecord | None, dry_run: bool
) -> None:
    tally = adding.tally
    refusals = [*tally.refusals, *(report.refusals if report else ())]
    print_json(
        {
            "dry_run": dry_run, "corpus": adding.corpus, "documents": sum(tally.standings.values()),
            **{standing.value: tally.standings[standing] for standing in Standing},
            "characters": tally.characters, "facts": report.facts if report else 0,
            "seq": report.seq if report else None, "still_deleted": report.still_deleted if report else 0,
            "suppressed": report.suppressed if report else 0, "added": [asdict(one) for one in tally.added],
            "rejected": dict(tally.rejected), "refused": len(refusals), "refusals": refusals,
            "passed_over": dict(adding.found.passed_over), "keyset": keyset,
            "citable": keyset is not None and keyset.state == "active" and not dry_run,
            "try": _try(tally, adding.corpus) if tally.added else None,
        }
    )  # fmt: skip


def _show(adding: Adding, report: IngestReport | None, keyset: KeysetRecord | None, dry_run: bool) -> None:
    tally, standings = adding.tally, adding.tally.standings
    say(
        f"Read {_count(sum(standings.values()), 'document')}: {standings[Standing.new]} new, "
        f"{standings[Standing.changed]} changed, {standings[Standing.unchanged]} there already."
    )
    _show_left_out(adding, report)
    if dry_run:
        many = standings[Standing.new] + standings[Standing.changed]
        say(f"Would annotate and add {_count(many, 'document')}; nothing was done.")
        return
    if report is None:
        say(f"Nothing to add to {adding.corpus!r}.")
        return
    print_table(
        ("document", "title", "facts", "with a question", "rejected by the checks"),
        [(a.document, a.title, a.facts, a.questions, a.rejected) for a in tally.added[:MOST_SHOWN]],
    )
    if len(tally.added) > MOST_SHOWN:
        say(f"... and {len(tally.added) - MOST_SHOWN} more; --json lists them all.")
    _show_citable(adding, keyset)


def _show_citable(adding: Adding, keyset: KeysetRecord | None) -> None:
    tally = adding.tally
    facts, holding = sum(one.facts for one in tally.added), sum(1 for one in tally.added if one.facts)
    if not facts:
        say(
            "The annotators found no fact in them; the texts are kept. A lower --span-threshold with --again finds "
            "more, or mark them by hand in an annotated file."
        )
    elif keyset is not None and keyset.state == "active":
        say(
            f"{_count(facts, 'fact')} of {_count(holding, 'document')} of {adding.corpus!r} can be cited now."
        )
        say(f"Try: {_try(tally, adding.corpus)}")
    else:
        say(f"{adding.corpus!r} has {_count(facts, 'fact')} more, to be cited once their keyset is active.")


def _show_left_out(adding: Adding, report: IngestReport | None) -> None:
    if adding.found.passed_over:
        kinds = ", ".join(f"{kind} {number}" for kind, number in adding.found.passed_over.most_common(8))
        say(f"{_count(adding.found.passed_over.total(), 'file')} of other kinds passed over ({kinds}).")
    refusals = [*adding.tally.refusals, *(report.refusals if report else ())]
    if refusals:
        say(f"Refused {len(refusals)}:")
        print_table(("document", "reason"), [(r.document, r.reason) for r in refusals[:MOST_SHOWN]])
        if len(refusals) > MOST_SHOWN:
            say(f"... and {len(refusals) - MOST_SHOWN} more; --json lists them all.")
    if report is not None and report.suppressed:
        say(
            f"{report.suppressed} spans left out and redacted, as they were erased before (see --allow-erased)."
        )
    if report is not None and report.still_deleted:
        say(f"{report.still_deleted} facts that the documents name were deleted here, and stay so.")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
