"""`colmlm annotator`: train, release and measure the two annotators (paper, section 3.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from colmlm.cli.composition.annotators import (
    QuestionGeneratorPath,
    SpanAnnotatorPath,
    questions_at,
    spans_at,
)
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, CheckpointPath, MaxMinutes, NewDirectory, examples, positive
from colmlm.cli.output import note, print_json, print_table, progress, say
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.model.annotate.config import QuestionConfig, SpanConfig
from colmlm.model.annotate.presets import QUESTION_PRESETS, SPAN_PRESETS
from colmlm.model.training.settings import with_settings

if TYPE_CHECKING:
    from colmlm.model.annotate.report import AnnotatorMeasures
    from colmlm.model.annotate.tasks import QuestionTask, SpanTask

Config = TypeVar("Config", SpanConfig, QuestionConfig)
DENSITY = 16.0  # facts per 100 words: denser ones are rarely asked for

app = typer.Typer(
    help="Train, release and measure the annotators that mark facts and ask about them.",
    epilog=examples("colmlm annotator evaluate --squad dev.jsonl"),
)
training = typer.Typer(
    help="Train an annotator on annotated documents.",
    epilog=examples("colmlm annotator train spans --squad train.jsonl --out runs/spans"),
)
app.add_typer(training, name="train")


class SpanPreset(StrEnum):
    minilm = "minilm"
    modernbert_large = "modernbert-large"


class QuestionPreset(StrEnum):
    smollm2_135m = "smollm2-135m"
    qwen2_5_1_5b = "qwen2.5-1.5b"


class AnnotatorPart(StrEnum):
    spans = "spans"
    questions = "questions"


Out = Annotated[Path, typer.Option("--out", help="The run's directory; a run already there is resumed.")]
Squad = Annotated[
    list[Path] | None,
    typer.Option(
        "--squad", exists=True, dir_okay=False, help="A SQuAD file, sparsely marked; may be repeated."
    ),
]
Dense = Annotated[
    list[Path] | None,
    typer.Option(
        "--annotated",
        exists=True,
        dir_okay=False,
        help="An annotated JSONL file, every fact marked; may be repeated.",
    ),
]
Demo = Annotated[bool, typer.Option("--demo/--no-demo", help="Also train on the demo corpus.")]
HoldOut = Annotated[
    int,
    typer.Option(
        "--hold-out", min=0, help="Leave this many documents out: of the SQuAD files, or else of the others."
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        "--epochs", callback=lambda v: v if v is None else positive(v), help="Default: the preset's."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any setting of the preset, as batch=8; may be repeated."
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="The annotator's name. Default: that of --out.")]


@training.command(
    "spans",
    epilog=examples(
        "colmlm annotator train spans --squad train.jsonl --hold-out 300 --max-minutes 15 --out runs/spans",
        "colmlm annotator train spans --annotated seed.jsonl --preset modernbert-large --out runs/large",
    ),
)
def train_spans(
    out: Out,
    squad: Squad = None,
    annotated: Dense = None,
    demo: Demo = True,
    preset: Annotated[
        SpanPreset, typer.Option("--preset", help="The base and its settings.")
    ] = SpanPreset.minilm,
    held_out: HoldOut = 0,
    epochs: Epochs = None,
    max_minutes: MaxMinutes = None,
    per_100_words: Annotated[
        float,
        typer.Option(
            "--per-100-words", callback=positive, help="How many facts the threshold lets 100 words have."
        ),
    ] = DENSITY,
    settings: Settings = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Train the span annotator. Words outside the spans of a SQuAD file weigh less, since they may be facts too.

    With --hold-out the threshold is set to --per-100-words facts in those documents.
    """
    from colmlm.model.annotate.report import calibrate
    from colmlm.model.annotate.span_training import Annotated as Corpus
    from colmlm.model.annotate.tasks import SpanTask

    sparse, kept_back = _split(squad or [], held_out if squad else 0)
    dense = _dense(annotated or [], demo)
    if not squad:
        dense, kept_back = _held_out(dense, held_out)
    config = _changed(SPAN_PRESETS[preset](), settings, epochs, max_minutes)
    _require([*sparse, *dense], "facts")
    corpora = [Corpus(sparse, dense=False), Corpus(dense, dense=True)]
    with Runtime.from_environment() as runtime:
        cache = runtime.settings.home / "models"
        task = SpanTask(config, corpora, cache, name or out.name)
        _run(task, out)
        if kept_back:
            calibrate(out, cache, kept_back, per_100_words)
    _report(out, as_json)


@training.command(
    "questions",
    epilog=examples(
        "colmlm annotator train questions --squad train.jsonl --max-minutes 45 --out runs/questions",
        "colmlm annotator train questions --annotated seed.jsonl --preset qwen2.5-1.5b --out runs/qwen",
    ),
)
def train_questions(
    out: Out,
    squad: Squad = None,
    annotated: Dense = None,
    demo: Demo = True,
    preset: Annotated[
        QuestionPreset, typer.Option("--preset", help="The base and its settings.")
    ] = QuestionPreset.smollm2_135m,
    held_out: HoldOut = 0,
    epochs: Epochs = None,
    max_minutes: MaxMinutes = None,
    settings: Settings = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Train the question generator on the questions of annotated documents."""
    from colmlm.model.annotate.tasks import QuestionTask

    documents = _split(squad or [], held_out)[0] + _dense(annotated or [], demo)
    _require(documents, "facts with questions")
    config = _changed(QUESTION_PRESETS[preset](), settings, epochs, max_minutes)
    with Runtime.from_environment() as runtime:
        task = QuestionTask(config, documents, runtime.settings.home / "models", name or out.name)
        _run(task, out)
    _report(out, as_json)


@app.command(epilog=examples("colmlm annotator release runs/spans released/spans"))
def release(
    run: Annotated[Path, typer.Argument(metavar="RUN", exists=True, file_okay=False, help="A training run.")],
    target: NewDirectory,
    as_json: AsJson = False,
) -> None:
    """Write a run's adapter in half precision, with its config and without optimiser state: at most 16 MB."""
    from colmlm.model.annotate import checkpoint as annotators

    if target.is_dir() and any(target.iterdir()):
        raise typer.BadParameter(f"{target} is not empty; name a new directory.", param_hint="DIR")
    annotators.release(run, target)
    _report(target, as_json)


@app.command(
    epilog=examples(
        "colmlm annotator evaluate --squad dev.jsonl --documents 200 --json",
        "colmlm annotator evaluate --squad dev.jsonl --span-annotator runs/spans --skip questions",
    )
)
def evaluate(
    squad: Squad = None,
    annotated: Dense = None,
    documents: Annotated[
        int | None, typer.Option("--documents", min=1, help="Draw this many documents. Default: all.")
    ] = None,
    span_annotator: SpanAnnotatorPath = None,
    question_generator: QuestionGeneratorPath = None,
    skip: Annotated[
        AnnotatorPart | None, typer.Option("--skip", help="Do not measure this annotator.")
    ] = None,
    checkpoint: CheckpointPath = None,
    as_json: AsJson = False,
) -> None:
    """Measure the annotators against marked documents: agreement of spans, round trip of questions, speed.

    A question passes the round trip where its hidden state at <FACT-q> finds its own fact's key among those of all
    facts of the documents.
    """
    from colmlm.model.annotate.report import measure
    from colmlm.model.training.steps import hold_out

    chosen = _split(squad or [], 0)[0] + _dense(annotated or [], demo=False)
    if documents is not None and documents < len(chosen):
        chosen = hold_out(chosen, documents)[1]
    chosen = [document for document in chosen if document.facts]
    if not chosen:
        raise typer.BadParameter("no documents with marked facts; name a file with --squad or --annotated.")
    with Runtime.from_environment(checkpoint=checkpoint) as runtime, progress("documents") as update:
        measured = measure(
            chosen,
            runtime.checkpoint,
            runtime.settings.home / "models",
            span_annotator=None if skip is AnnotatorPart.spans else spans_at(runtime, span_annotator),
            question_generator=None
            if skip is AnnotatorPart.questions
            else questions_at(runtime, question_generator),
            on_documents=update,
        )
    print_json(measured) if as_json else _show(measured)


def _split(squad: list[Path], held_out: int) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Splits the documents of SQuAD files into those to use, and `held_out` ones that are drawn at random."""
    return _held_out([document for path in squad for document in _readable(read_squad(path))], held_out)


def _held_out(
    documents: list[AnnotatedDocument], count: int
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    from colmlm.model.training.steps import hold_out

    if count and count >= len(documents):
        raise typer.BadParameter(f"cannot leave {count} of {len(documents)} documents out.")
    return hold_out(documents, count)


def _dense(annotated: list[Path], demo: bool) -> list[AnnotatedDocument]:
    files = [*annotated, *([DEMO_CORPUS] if demo else [])]
    return [document for path in files for document in _readable(read_annotated(path))]


def _require(documents: list[AnnotatedDocument], what: str) -> None:
    facts = (span for document in documents for span in document.facts)
    if not any(span.question or what == "facts" for span in facts):
        raise typer.BadParameter(f"nothing to train on: name a file with {what}.")


def _readable(parsed: Iterable[Parsed]) -> list[AnnotatedDocument]:
    documents: list[AnnotatedDocument] = []
    refused = 0
    for item in parsed:
        refused += len(item.refusals)
        if item.document is not None:
            documents.append(item.document)
    if refused:
        note(f"{refused} malformed spans or documents left out; `colmlm corpus ingest --dry-run` lists them")
    return documents


def _changed(
    preset: Config, settings: list[str] | None, epochs: float | None, max_minutes: float | None
) -> Config:
    """Gives the preset with the settings that were asked for."""
    try:
        config = with_settings(preset, settings or [])
        return replace(
            config,
            epochs=config.epochs if epochs is None else epochs,
            max_seconds=config.max_seconds if max_minutes is None else max_minutes * 60,
        )
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--set") from error


def _run(task: SpanTask | QuestionTask, out: Path) -> None:
    note(f"{len(task.examples)} examples, at most {task.num_steps} steps")
    with progress("training") as update:
        for m in task.run(out):
            update(m.step, task.num_steps)


def _report(directory: Path, as_json: bool) -> None:
    from colmlm.model.annotate import checkpoint as annotators

    config = annotators.AnnotatorConfig.load(directory)
    if as_json:
        print_json({"annotator": str(directory), **asdict(config)})
        return
    run = config.training
    say(f"{directory}: {config.name}, {config.role}, {run.get('steps')} steps, {run.get('tokens')} tokens")
    say(f"reads {', '.join(f'{name} {value}' for name, value in config.reading.items())}")


def _show(measured: AnnotatorMeasures) -> None:
    say(f"{measured.documents} documents, {measured.facts} marked facts, {measured.tokens} tokens")
    if measured.spans is not None:
        quality = measured.spans.quality
        rows = [
            [how, *asdict(part).values()]
            for how, part in (("exact", quality.exact), ("overlap", quality.overlap))
        ]
        print_table(["spans", "precision", "recall", "F1"], rows)
        columns = [
            "facts per 100 words",
            "threshold",
            "marked",
            "a fact",
            "verbatim",
            "overlap one",
            "in one",
        ]
        print_table(columns, [list(asdict(each).values()) for each in measured.spans.coverage])
        say(
            f"{quality.found} found, {quality.verbatim:.1%} verbatim, "
            f"{measured.spans.seconds_per_1000_tokens} s per 1,000 tokens"
        )
    if measured.questions is not None:
        asked = measured.questions
        rows = [[who, part.questions, part.recall_at_1, part.recall_at_10] for who, part in
                (("generated", asked.round_trip), ("of the documents", asked.of_the_documents)) if part]  # fmt: skip
        print_table(["questions", "asked", "recall@1", "recall@10"], rows)
        say(
            f"{asked.written} of {measured.facts} written, {asked.seconds_per_1000_tokens} s per 1,000 tokens"
        )
        say(f"reading a document once: {asked.prefix.gain} times as fast, {asked.prefix.same:.1%} the same")
