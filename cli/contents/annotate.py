"""`colmlm corpus annotate`: makes an annotated corpus of raw documents, by the light annotators or a large model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition import annotators
from colmlm.cli.composition.annotators import (
    Encoding,
    IdField,
    QuestionGeneratorPath,
    Questions,
    RawPaths,
    SpanAnnotatorPath,
    SpanThreshold,
    TextField,
    TitleField,
    Verify,
)
from colmlm.cli.composition.bulk.spreading import Ray, RayWorkers
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.contents.corpus_add import SkipUnknown, show_passed_over, show_refusals
from colmlm.cli.errors import REFUSED
from colmlm.cli.options import examples, require_somebody, wants_json
from colmlm.cli.output import count_of, note, print_json, progress, say
from colmlm.kb.corpus.raw.blocks import FieldNames
from colmlm.kb.corpus.raw.files import FoundFiles, find_files
from colmlm.kb.corpus.raw.reading import read_raw

if TYPE_CHECKING:
    from colmlm.cli.composition.bulk.errands import DocumentAnnotator
    from colmlm.kb.corpus.format import AnnotatedDocument, Refusal
    from colmlm.kb.texts.characters import DocumentLimits
    from colmlm.model.annotate.checks import ReviewedDocument
    from colmlm.model.annotate.pipeline import Estimate, Results

ANNOTATE_EXAMPLES = examples(
    "colmlm corpus annotate handbook/ --output handbook.jsonl",
    "colmlm corpus annotate articles.jsonl.gz --output seed.jsonl --annotator seed --model M --url U --dry-run",
)


class AnnotatorChoice(StrEnum):
    light = "light"
    seed = "seed"


@dataclass(frozen=True, slots=True)
class SeedOptions:
    """The chat endpoint of the seed annotator, how it is asked, and its prices for a million tokens."""

    url: str | None
    model: str | None
    concurrency: int
    temperature: float | None
    chunk_tokens: int
    price_in: float | None
    price_out: float | None


@dataclass(slots=True)
class AnnotationRun:
    """The documents to annotate, the file to write, and counts of what was written, refused and rejected."""

    out: Path
    found: FoundFiles
    encoding: str | None
    fields: FieldNames
    limits: DocumentLimits
    drop_unquestioned: bool
    refusals: list[Refusal] = field(default_factory=list)
    documents: int = 0
    facts: int = 0
    questions: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def reading(self) -> Iterator[AnnotatedDocument]:
        """Read the documents of the files; each call collects the refusals anew."""
        self.refusals = list(self.found.refusals)
        total = sum(file.size for file in self.found.files) // 1000
        with progress("Annotating (KB read)") as advance:
            reading = read_raw(
                self.found.files,
                encoding=self.encoding,
                fields=self.fields,
                limits=self.limits,
                on_bytes=lambda reached: advance(reached // 1000, total),
            )
            for parsed in reading:
                self.refusals += parsed.refusals
                if parsed.document is not None:
                    yield parsed.document

    def count(self, reviewed: ReviewedDocument) -> None:
        self.documents += 1
        self.facts += len(reviewed.document.facts)
        self.questions += sum(1 for fact in reviewed.document.facts if fact.question)
        self.rejected.update(one.code for one in reviewed.rejected)


def annotate(
    paths: RawPaths,
    out: Annotated[
        Path,
        typer.Option(
            "--output", "-o", dir_okay=False, help="The corpus file; one that is there is gone on with."
        ),
    ],
    annotator: Annotated[
        AnnotatorChoice, typer.Option("--annotator", help="The two small models, or a chat endpoint.")
    ] = AnnotatorChoice.light,
    questions: Questions = True,
    verify: Verify = True,
    drop_unquestioned: Annotated[
        bool,
        typer.Option(
            "--drop-unquestioned", help="Leave facts out whose question was rejected: for training."
        ),
    ] = False,
    encoding: Encoding = None,
    id_field: IdField = None,
    title_field: TitleField = None,
    text_field: TextField = None,
    skip_unknown: SkipUnknown = False,
    span_annotator: SpanAnnotatorPath = None,
    span_threshold: SpanThreshold = None,
    question_generator: QuestionGeneratorPath = None,
    url: Annotated[
        str | None,
        typer.Option("--url", help="seed: an endpoint that speaks OpenAI's chat protocol, to /v1."),
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="seed: the model's name there.")] = None,
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", min=1, max=256, help="seed: documents that are asked about at once."),
    ] = 4,
    temperature: Annotated[
        float | None, typer.Option("--temperature", min=0, max=2, help="seed. Default: the endpoint's own.")
    ] = None,
    chunk_tokens: Annotated[
        int, typer.Option("--chunk-tokens", min=32, max=100_000, help="seed: tokens of a chunk, about.")
    ] = 512,
    price_in: Annotated[
        float | None, typer.Option("--price-in", min=0, help="seed: the price of a million tokens sent.")
    ] = None,
    price_out: Annotated[
        float | None, typer.Option("--price-out", min=0, help="seed: the price of a million tokens received.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how much there is to do, and what it costs, and stop.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="seed: do not ask whether it may cost that.")
    ] = False,
    ray: Ray = None,
    ray_workers: RayWorkers = None,
) -> None:
    """Mark the facts of raw documents, with a question for each, and write an annotated corpus to train on or ingest.

    What the checks reject goes to FILE.rejects.jsonl with the reason. After an interruption, run it again to continue.
    The seed annotator's key comes from COLMLM_ANNOTATOR_API_KEY, and its cost is estimated before it begins.
    """
    annotators.known_encoding(encoding)
    options = SeedOptions(url, model, concurrency, temperature, chunk_tokens, price_in, price_out)
    if annotator is AnnotatorChoice.seed and not dry_run and not (url and model):
        raise typer.BadParameter("name the endpoint and its model.", param_hint="--url and --model")
    if annotator is AnnotatorChoice.seed and (ray or ray_workers):
        raise typer.BadParameter(
            "the seed annotator waits for its endpoint; leave --ray out, and say with --concurrency how often at once.",
            param_hint="--ray",
        )
    with Runtime.from_environment() as runtime:
        runtime.use_ray(ray, ray_workers)
        fields = FieldNames(id_field, title_field, text_field)
        found, limits = find_files(paths), runtime.settings.document
        job = AnnotationRun(out, found, encoding, fields, limits, drop_unquestioned)
        cost = _estimate(job, options) if annotator is AnnotatorChoice.seed or dry_run else None
        usage: Any = None
        if not dry_run:
            if cost is not None and not _confirm_cost(cost, options, yes=yes):
                raise typer.Abort
            if annotator is AnnotatorChoice.seed:
                usage = _run_seed_annotator(runtime, job, options)
            else:
                chosen = annotators.light_annotators(
                    runtime, span_annotator, question_generator, asks=questions, verifies=verify,
                    threshold=span_threshold, drop_unquestioned=drop_unquestioned,
                )  # fmt: skip
                _run_light_annotator(chosen, job)
    _report(job, cost, options, usage, dry_run=dry_run, skip_unknown=skip_unknown)
    if job.refusals or (job.found.passed_over and not skip_unknown):
        raise typer.Exit(REFUSED)


def _run_light_annotator(chosen: DocumentAnnotator, job: AnnotationRun) -> None:
    from colmlm.model.annotate.pipeline import Results

    with Results(job.out) as results:
        _greet(results)
        for reviewed in chosen.annotate(job.reading(), skip=results.has):
            results.append(reviewed)
            job.count(reviewed)


def _run_seed_annotator(runtime: Runtime, job: AnnotationRun, options: SeedOptions) -> Any:
    from colmlm.model.annotate.pipeline import Results, SeedRun
    from colmlm.model.lm.chat_endpoint import Chat, Endpoint

    assert options.url is not None and options.model is not None
    endpoint = Endpoint(
        base_url=options.url, model=options.model, api_key=runtime.user.annotator_api_key,
        temperature=options.temperature,
    )  # fmt: skip
    with Results(job.out) as results, Chat(endpoint) as chat:
        _greet(results)
        run = SeedRun(
            chat,
            results,
            options.concurrency,
            options.chunk_tokens,
            job.drop_unquestioned,
            on_document=job.count,
        )
        try:
            return run.run(job.reading())
        except BaseException:  # also where it is interrupted: what is written by then stays
            note(
                f"{count_of(results.num_done, 'document', 'are')} in {job.out}. "
                "Run the same command again to go on from there."
            )
            raise


def _greet(results: Results) -> None:
    if results.num_done:
        note(f"{results.path} has {count_of(results.num_done, 'document')}; going on from there.")


def _estimate(job: AnnotationRun, options: SeedOptions) -> Estimate:
    """Estimate the tokens for the documents that are still to be annotated. Reads all files, and writes nothing."""
    from colmlm.model.annotate.pipeline import Results, estimate_cost

    with Results(job.out) if job.out.exists() else nullcontext() as results:
        return estimate_cost(
            (document for document in job.reading() if results is None or not results.has(document)),
            chunk_tokens=options.chunk_tokens,
        )


def _confirm_cost(cost: Estimate, options: SeedOptions, *, yes: bool) -> bool:
    """Print the estimated cost, and tell whether --yes, or somebody at the terminal, agrees to it."""
    for line in _cost_lines(cost, options):
        note(line)
    if yes or cost.documents == 0:
        return True
    require_somebody(yes, "let it cost that")
    return typer.confirm(f"Send {count_of(cost.documents, 'document')} to {options.url}?", err=True)


def _cost_lines(cost: Estimate, options: SeedOptions) -> Iterable[str]:
    yield (
        f"{count_of(cost.documents, 'document')} of {count_of(cost.characters, 'character')}, "
        f"{count_of(cost.chunks, 'request')}: about {count_of(cost.tokens_in, 'token')} sent and "
        f"{cost.tokens_out:,} received; repairs come on top."
    )
    if (price := _price(cost, options)) is not None:
        yield f"About {price:.2f} at {options.price_in:g} and {options.price_out:g} a million tokens."


def _price(cost: Estimate, options: SeedOptions) -> float | None:
    if options.price_in is None or options.price_out is None:
        return None
    return cost.price(options.price_in, options.price_out)


def _report(
    job: AnnotationRun,
    cost: Estimate | None,
    options: SeedOptions,
    usage: Any,
    *,
    dry_run: bool,
    skip_unknown: bool,
) -> None:
    from colmlm.model.annotate.pipeline import rejects_beside

    if wants_json():
        estimated = None if cost is None else {**asdict(cost), "price": _price(cost, options)}
        print_json(
            {
                "dry_run": dry_run, "out": str(job.out), "rejects": str(rejects_beside(job.out)),
                "documents": job.documents, "facts": job.facts, "questions": job.questions,
                "rejected": dict(job.rejected), "refused": len(job.refusals), "refusals": job.refusals,
                "passed_over": dict(job.found.passed_over), "estimate": estimated,
                "usage": None if usage is None else asdict(usage),
            }
        )  # fmt: skip
        return
    if dry_run and cost is not None:
        for line in _cost_lines(cost, options):
            say(line)
    else:
        say(
            f"{job.out}: {count_of(job.documents, 'more document')} with {count_of(job.facts, 'fact')}, "
            f"{job.questions} with a question."
        )
        if job.rejected:
            codes = ", ".join(f"{code} {number}" for code, number in job.rejected.most_common())
            say(f"The checks rejected {job.rejected.total()} ({codes}); see {rejects_beside(job.out)}.")
        if usage is not None:
            sent = f"{count_of(usage.requests, 'request')}, {count_of(usage.tokens_in, 'token')} sent"
            say(f"{sent}, {usage.tokens_out:,} received.")
    if not skip_unknown:
        show_passed_over(job.found.passed_over)
    show_refusals(len(job.refusals), job.refusals)
