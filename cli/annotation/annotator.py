"""`colmlm annotator`: train, release and measure the two annotators (paper, section 3.3)."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.annotation.tuning import (
    Epochs,
    Name,
    Out,
    Settings,
    Squad,
    changed,
    readable,
    released,
    report,
    tune,
)
from colmlm.cli.composition.annotators import (
    QuestionGeneratorPath,
    SpanAnnotatorPath,
    questions_at,
    spans_at,
)
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, MaxMinutes, NewDirectory, examples, positive, wants_json
from colmlm.cli.output import print_json, print_table, progress, say
from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.model.annotate.config import QUESTION_PRESETS, SPAN_PRESETS

if TYPE_CHECKING:
    from colmlm.model.annotate.evaluate import AnnotatorMeasures

DENSITY = 20.0  # facts per 100 words, which overlap nearly all that people ask for

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
) -> None:
    """Train the span annotator. Words outside the spans of a SQuAD file weigh less, since they may be facts too.

    With --hold-out the threshold is set to --per-100-words facts in those documents.
    """
    from colmlm.model.annotate.evaluate import calibrate
    from colmlm.model.annotate.tasks import Annotated as Corpus
    from colmlm.model.annotate.tasks import SpanTask

    sparse, kept_back = _split(squad or [], held_out if squad else 0)
    dense = _dense(annotated or [], demo)
    if not squad:
        dense, kept_back = _held_out(dense, held_out)
    config = changed(SPAN_PRESETS[preset](), settings, epochs, max_minutes)
    _require([*sparse, *dense], "facts")
    corpora = [Corpus(sparse, dense=False), Corpus(dense, dense=True)]
    with Runtime.from_environment() as runtime:
        cache = runtime.settings.home / "models"
        task = SpanTask(config, corpora, cache, name or out.name)
        tune(task.run(out), task)
        if kept_back:
            calibrate(out, cache, kept_back, per_100_words)
    report(out)


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
) -> None:
    """Train the question generator on the questions of annotated documents."""
    from colmlm.model.annotate.tasks import QuestionTask

    documents = _split(squad or [], held_out)[0] + _dense(annotated or [], demo)
    _require(documents, "facts with questions")
    config = changed(QUESTION_PRESETS[preset](), settings, epochs, max_minutes)
    with Runtime.from_environment() as runtime:
        task = QuestionTask(config, documents, runtime.settings.home / "models", name or out.name)
        tune(task.run(out), task)
    report(out)


@app.command(epilog=examples("colmlm annotator release runs/spans released/spans"))
def release(
    run: Annotated[Path, typer.Argument(metavar="RUN", exists=True, file_okay=False, help="A training run.")],
    target: NewDirectory,
) -> None:
    """Write a run's adapter in half precision, with its config and without optimiser state: at most 16 MB."""
    released(run, target)


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
) -> None:
    """Measure the annotators against marked documents: agreement of spans, round trip of questions, speed.

    A question passes the round trip where its hidden state at <FACT-q> finds its own fact's key among those of all
    facts of the documents.
    """
    from colmlm.model.annotate.evaluate import measure
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
    print_json(measured) if wants_json() else _show(measured)


def _split(squad: list[Path], held_out: int) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Splits the documents of SQuAD files into those to use, and `held_out` ones that are drawn at random."""
    return _held_out([document for path in squad for document in readable(read_squad(path))], held_out)


def _held_out(
    documents: list[AnnotatedDocument], count: int
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    from colmlm.model.training.steps import hold_out

    if count and count >= len(documents):
        raise typer.BadParameter(f"cannot leave {count} of {len(documents)} documents out.")
    return hold_out(documents, count)


def _dense(annotated: list[Path], demo: bool) -> list[AnnotatedDocument]:
    files = [*annotated, *([DEMO_CORPUS] if demo else [])]
    return [document for path in files for document in readable(read_annotated(path))]


def _require(documents: list[AnnotatedDocument], what: str) -> None:
    facts = (span for document in documents for span in document.facts)
    if not any(span.question or what == "facts" for span in facts):
        raise typer.BadParameter(f"nothing to train on: name a file with {what}.")


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
