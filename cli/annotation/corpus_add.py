"""`colmlm corpus add`: reads, annotates, ingests and keys raw documents, so that the model can cite them."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from colmlm.cli.annotation.ingesting import Format, import_release, ingest_annotated, recognise_annotated
from colmlm.cli.annotation.inputs import AllowPrivate, SkipUnknown, Urls, found_in, show_passed_over
from colmlm.cli.bases.anywhere import anywhere
from colmlm.cli.bases.local_base import Base
from colmlm.cli.composition import annotators
from colmlm.cli.composition.annotators import (
    AnyRawPaths,
    Encoding,
    IdField,
    QuestionGeneratorPath,
    Questions,
    SpanAnnotatorPath,
    SpanThreshold,
    TextField,
    TitleField,
    Verify,
)
from colmlm.cli.composition.bulk.spreading import Ray, RayWorkers
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import Actor, AllowErased, CheckpointPath, examples, some_text, wants_json
from colmlm.cli.output import counted, print_json, print_table, say
from colmlm.kb.corpus.raw.blocks import Fields, RawAddition
from colmlm.kb.facts.records import Ingesting

ADD_EXAMPLES = examples(
    "colmlm corpus add handbook/ --corpus handbook",
    "colmlm corpus add minutes.pdf notes.md --corpus meetings --dry-run",
    "colmlm corpus add articles.jsonl.gz --corpus wiki --questions",
    "colmlm corpus add --urls sitemap.xml --corpus site",
    "colmlm corpus add products.csv --corpus products --id-field sku --text-field description",
    "colmlm corpus add articles.jsonl.gz --corpus wiki --ray auto",
    "colmlm corpus add marked.jsonl --corpus handbook --commit-every 50000",
    "colmlm corpus add release/ --format colmlm-release --corpus wiki --checkpoint checkpoints/co-lmlm",
    "colmlm corpus add dev-v2.0.json --format squad --corpus squad --dry-run",
)
MOST_SHOWN = 20


@anywhere
def add(
    base: Base,
    corpus: Annotated[str, typer.Option("--corpus", callback=some_text, help="The corpus to put them in.")],
    paths: AnyRawPaths = None,
    urls: Urls = None,
    allow_private: AllowPrivate = False,
    skip_unknown: SkipUnknown = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read everything, say what is new, and stop.")
    ] = False,
    questions: Questions = False,
    verify: Verify = True,
    again: Annotated[
        bool,
        typer.Option("--again", help="Annotate what is there unchanged too: after a change of annotators."),
    ] = False,
    encoding: Encoding = None,
    id_field: IdField = None,
    title_field: TitleField = None,
    text_field: TextField = None,
    span_annotator: SpanAnnotatorPath = None,
    span_threshold: SpanThreshold = None,
    question_generator: QuestionGeneratorPath = None,
    checkpoint: CheckpointPath = None,
    actor: Actor = None,
    reason: Annotated[
        str | None, typer.Option("--reason", callback=some_text, help="Why; by default what was added.")
    ] = None,
    allow_erased: AllowErased = False,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Of what has facts: JSON Lines (recognised), Parquet, SQuAD, dblookup calls, a published store.",
        ),
    ] = None,
    commit_every: Annotated[
        int | None,
        typer.Option(
            "--commit-every", min=1, help="With marked facts: documents of one change. Default: 10000."
        ),
    ] = None,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Read documents, annotate their facts, ingest them and give the facts keys: then `colmlm ask` answers from them.

    Files that cannot be read are refused, each with the reason, and those of other kinds in folders are counted; the
    others are added, and the exit code is then 3.
    A second run skips what is unchanged and replaces what has changed; after an interruption it continues.
    With --server the files are uploaded and a job there does it; a document is then known by its file's name alone.

    A file whose facts are marked already is ingested as it is: documents and facts that fail the checks are
    refused with document, offset and reason. `colmlm keysets fill` gives its facts keys. A folder that is published
    as a store of facts is taken in with its keys: --checkpoint names what made those.
    """
    annotators.known_encoding(encoding)
    if (marked := format_ or recognise_annotated(paths or ())) is not None:
        _refuse_annotating(urls=urls, questions=questions, again=again, ray=ray)
        if marked is Format.colmlm_release:
            base.only_here(format_=marked)
            import_release(paths or (), corpus, checkpoint, actor, reason, dry_run=dry_run)
            return
        ingesting: Ingesting = {
            "actor": base.actor(actor),
            "reason": reason or f"ingest of a file, {marked.value}",
            "commit_every": commit_every,
            "dry_run": dry_run,
            "allow_erased": allow_erased,
        }
        ingest_annotated(base, paths or (), marked, corpus, ingesting)
        return
    if commit_every is not None:
        raise typer.BadParameter("it is for files with marked facts.", param_hint="--commit-every")
    base.only_here(urls=urls)
    base.use_checkpoint(checkpoint)
    base.use_ray(ray, ray_workers)
    how = RawAddition(
        encoding=encoding,
        fields=Fields(id_field, title_field, text_field),
        questions=questions,
        verify=verify,
        span_threshold=span_threshold,
        span_annotator=span_annotator,
        question_generator=question_generator,
        again=again,
        allow_erased=allow_erased,
        dry_run=dry_run,
    )
    with found_in(paths or (), urls, allow_private=allow_private) as found:
        done = base.corpora.add(found, corpus, how, actor=base.actor(actor), reason=reason or "corpus add")
    is_new = bool(done["added"] or done["facts"])
    done["try"] = _try(base, done) if is_new and done["citable"] else None
    print_json(done) if wants_json() else _show(done, skip_unknown=skip_unknown)
    if done["refused"] or (done["passed_over"] and not skip_unknown):
        raise typer.Exit(REFUSED)


def _refuse_annotating(**given: object) -> None:
    """Refuse options that say how to read and annotate, for a file whose facts are marked."""
    if idle := [f"--{name}" for name, value in given.items() if value]:
        raise typer.BadParameter("the facts of this file are marked already.", param_hint=", ".join(idle))


def _try(base: Base, done: dict[str, Any]) -> str | None:
    """Spell the command that asks a question which was tried and is answered; None where there is none."""
    if done["suggested"] is None or (question := base.facts.show(done["suggested"]).question) is None:
        return None
    there = [] if base.server is None else ["--server", base.server]
    return shlex.join(["colmlm", "ask", question, *there])


def _show(done: dict[str, Any], *, skip_unknown: bool) -> None:
    say(
        f"Read {counted(done['documents'], 'document')}: {done['new']} new, {done['changed']} changed, "
        f"{done['unchanged']} there already."
    )
    if not skip_unknown:
        show_passed_over(done["passed_over"])
    _show_left_out(done)
    if done["dry_run"]:
        many = done["new"] + done["changed"]
        say(f"Would annotate and add {counted(many, 'document')}; nothing was done.")
        return
    if done["seq"] is None and not done["added"]:
        say(f"Nothing to add to {done['corpus']!r}.")
        return
    added = done["added"]
    if added:
        print_table(
            ("document", "title", "facts", "with a question", "rejected by the checks"),
            [tuple(one.values()) for one in added[:MOST_SHOWN]],
        )
    if len(added) > MOST_SHOWN:
        say(f"... and {len(added) - MOST_SHOWN} more; --json lists them all.")
    _show_citable(done)


def _show_citable(done: dict[str, Any]) -> None:
    added, corpus = done["added"], done["corpus"]
    facts = sum(one["facts"] for one in added) if added else done["facts"]
    if not facts:
        say(
            "The annotators found no fact in them; the texts are kept. A lower --span-threshold with --again finds "
            "more, or mark them by hand in an annotated file."
        )
    elif done["citable"]:
        holding = sum(1 for one in added if one["facts"])
        of = f" of {counted(holding, 'document')}" if holding else ""
        say(f"{counted(facts, 'fact')}{of} of {corpus!r} can be cited now.")
        if done["threshold"]:
            say(done["threshold"])
        if done["try"]:
            say(f"Try: {done['try']}")
    else:
        say(f"{corpus!r} has {counted(facts, 'fact')} more, to be cited once their keyset is active.")
    if facts and added:
        say(f"Nobody has reviewed them yet: colmlm review list --corpus {shlex.quote(corpus)}")


def _show_left_out(done: dict[str, Any]) -> None:
    if refused := done["refused"]:
        say(f"Refused {refused}:")
        shown = done["refusals"][:MOST_SHOWN]
        print_table(("document", "reason"), [(one["document"], one["reason"]) for one in shown])
        if refused > len(shown):
            say(f"... and {refused - len(shown)} more; --json lists them.")
    if done["suppressed"]:
        say(
            f"{done['suppressed']} spans left out and redacted, as they were erased before (see --allow-erased)."
        )
    if done["still_deleted"]:
        say(f"{done['still_deleted']} facts that the documents name were deleted here, and stay so.")
    if done["contradictions"]:
        say(
            f"{done['contradictions']} contradictions with facts that are here: colmlm facts compare contradictions"
        )
