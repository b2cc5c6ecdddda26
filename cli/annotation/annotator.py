"""`colmlm train spans` and `questions`: train the two annotators (paper, section 3.3)."""

from __future__ import annotations

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
    report,
    tune,
)
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import MaxMinutes, examples, positive
from colmlm.kb.corpus.format import AnnotatedDocument, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.model.annotate.config import QUESTION_PRESETS, SPAN_PRESETS

if TYPE_CHECKING:
    pass

DENSITY = 20.0  # facts per 100 words, which overlap nearly all that people ask for


class SpanPreset(StrEnum):
    minilm = "minilm"
    modernbert_large = "modernbert-large"


class QuestionPreset(StrEnum):
    smollm2_135m = "smollm2-135m"
    qwen2_5_1_5b = "qwen2.5-1.5b"


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


SPANS_EXAMPLES = examples(
    "colmlm train spans --squad train.jsonl --hold-out 300 --max-minutes 15 --out runs/spans",
    "colmlm train spans --annotated seed.jsonl --preset modernbert-large --out runs/large",
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
    from colmlm.model.annotate.training import Annotated as Corpus
    from colmlm.model.annotate.training import SpanTask
    from colmlm.model.evaluate.annotators import calibrate_threshold

    sparse, kept_back = split_squad(squad or [], held_out if squad else 0)
    dense = read_dense(annotated or [], demo)
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
            calibrate_threshold(out, cache, kept_back, per_100_words)
    report(out)


QUESTIONS_EXAMPLES = examples(
    "colmlm train questions --squad train.jsonl --max-minutes 45 --out runs/questions",
    "colmlm train questions --annotated seed.jsonl --preset qwen2.5-1.5b --out runs/qwen",
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
    from colmlm.model.annotate.training import QuestionTask

    documents = split_squad(squad or [], held_out)[0] + read_dense(annotated or [], demo)
    _require(documents, "facts with questions")
    config = changed(QUESTION_PRESETS[preset](), settings, epochs, max_minutes)
    with Runtime.from_environment() as runtime:
        task = QuestionTask(config, documents, runtime.settings.home / "models", name or out.name)
        tune(task.run(out), task)
    report(out)


def split_squad(squad: list[Path], held_out: int) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Split the documents of SQuAD files into those to use, and `held_out` ones that are drawn at random."""
    return _held_out([document for path in squad for document in readable(read_squad(path))], held_out)


def _held_out(
    documents: list[AnnotatedDocument], count: int
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    from colmlm.model.training.steps import hold_out

    if count and count >= len(documents):
        raise typer.BadParameter(f"cannot leave {count} of {len(documents)} documents out.")
    return hold_out(documents, count)


def read_dense(annotated: list[Path], demo: bool) -> list[AnnotatedDocument]:
    files = [*annotated, *([DEMO_CORPUS] if demo else [])]
    return [document for path in files for document in readable(read_annotated(path))]


def _require(documents: list[AnnotatedDocument], what: str) -> None:
    facts = (span for document in documents for span in document.facts)
    if not any(span.question or what == "facts" for span in facts):
        raise typer.BadParameter(f"nothing to train on: name a file with {what}.")
