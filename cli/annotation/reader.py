"""`colmlm train reader` and `colmlm reader evaluate`: train and measure the model that reads answers in passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
    report,
    tune,
)
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import DryRun, MaxMinutes, examples, finite, wants_json
from colmlm.cli.output import print_json, print_table, progress, say
from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.kb.corpus.squad import read_questions, read_squad
from colmlm.model.annotate.config import READER_PRESETS, ReaderConfig

if TYPE_CHECKING:
    from colmlm.model.reader.training import ReaderExample, ReaderExamples, ReaderMeasures, ReaderTask


class ReaderPreset(StrEnum):
    minilm = "minilm"
    mpnet = "mpnet"


HoldOut = Annotated[
    float,
    typer.Option(
        "--hold-out",
        min=0,
        max=0.5,
        callback=finite,
        help="Leave this share of the titles out, to measure with.",
    ),
]


READER_EXAMPLES = examples(
    "colmlm train reader --squad train.jsonl --hold-out 0.05 --max-minutes 60 --out runs/reader",
    "colmlm train reader --squad train.jsonl --set rounds=2 --out runs/reader --dry-run",
)


def train_reader(
    out: Out,
    squad: Squad = None,
    preset: Annotated[
        ReaderPreset, typer.Option("--preset", help="The base and its settings.")
    ] = ReaderPreset.minilm,
    held_out: HoldOut = 0.0,
    epochs: Epochs = None,
    max_minutes: MaxMinutes = None,
    settings: Settings = None,
    every: Annotated[
        int,
        typer.Option("--measure-every", min=1, help="Measure on what is held out after so many examples."),
    ] = 2500,
    start: Annotated[
        Path | None,
        typer.Option("--init", exists=True, file_okay=False, help="Go on from the weights of another run."),
    ] = None,
    name: Name = None,
    dry_run: DryRun = False,
) -> None:
    """Train the reader on the questions of SQuAD files, with passages that answer them and passages that do not."""
    from colmlm.model.reader.training import ReaderTask, train_with_curve

    config = changed(READER_PRESETS[preset](), settings, epochs, max_minutes)
    learnt, kept_back = split(squad_documents(squad or []), held_out)
    examples = drawn(squad or [], learnt, config)
    measured = list(drawn(squad or [], kept_back, config).plain()) if kept_back else []
    with Runtime.from_environment() as runtime:
        task = ReaderTask(config, examples, runtime.settings.home / "models", name or out.name, start)
        if dry_run:
            _foretell(task)
            return
        tune(train_with_curve(task, out, some(measured), every), task)
    report(out)


def squad_documents(squad: list[Path]) -> list[AnnotatedDocument]:
    return [document for path in squad for document in readable(read_squad(path))]


def _foretell(task: ReaderTask) -> None:
    """Say what a run will be, and trains nothing."""
    tokens = sum(len(example.ids) for example in task.examples)
    found = Counter("none" if example.is_none else "answered" for example in task.examples)
    foretold = {
        "examples": len(task.examples), **found, "tokens": tokens, "steps": task.num_steps, "batch": task.config.batch
    }  # fmt: skip
    print_json(foretold) if wants_json() else say(", ".join(f"{n} {what}" for what, n in foretold.items()))


# What SQuAD files ask about their documents, as a reader learns it. It needs no database, and no runtime.

CURVE_QUESTIONS = 300


def split(
    documents: list[AnnotatedDocument], share: float
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Split the documents into those to train on and those of a share of the titles, drawn at random.

    A document without a title counts as one by itself.
    """
    from colmlm.model.training.steps import hold_out

    titles = sorted({_title(document) for document in documents})
    kept_back = set(hold_out(titles, round(share * len(titles)))[1])
    return (
        [document for document in documents if _title(document) not in kept_back],
        [document for document in documents if _title(document) in kept_back],
    )


def _title(document: AnnotatedDocument) -> str:
    return document.title or document.external_id


def drawn(squad: list[Path], documents: list[AnnotatedDocument], config: ReaderConfig) -> ReaderExamples:
    """Make examples of what the files ask about these documents."""
    from colmlm.model.reader.training import ReaderExamples, ReaderQuestion

    numbers = {document.external_id: number for number, document in enumerate(documents)}
    asked = [
        ReaderQuestion(numbers[one.document], one.question, one.place)
        for path in squad
        for one in read_questions(path, unanswered=True)
        if one.document in numbers and (one.place is not None or not one.answers)
    ]
    if all(one.answer is None for one in asked):
        raise typer.BadParameter("no questions with answers; name a file with --squad.")
    return ReaderExamples(documents, asked, config)


def some(examples: Sequence[ReaderExample], questions: int | None = CURVE_QUESTIONS) -> list[ReaderExample]:
    """Draw the examples of so many questions, in their order."""
    from colmlm.model.training.steps import hold_out

    asked = list(dict.fromkeys(example.question for example in examples))
    if questions is None or questions >= len(asked):
        return list(examples)
    chosen = set(hold_out(asked, questions)[1])
    return [example for example in examples if example.question in chosen]


EVALUATE_EXAMPLES = examples(
    "colmlm reader evaluate --squad dev.jsonl --questions 500 --json",
    "colmlm reader evaluate --squad dev.jsonl --reader runs/reader",
)


app = typer.Typer(
    help="Measure the reader, which finds the answer to a question in passages.",
    epilog=examples("colmlm reader evaluate --squad dev.jsonl"),
)


@app.callback()
def reader_commands() -> None:
    """Measure the reader, which finds the answer to a question in passages."""


@app.command(epilog=EVALUATE_EXAMPLES)
def evaluate(
    squad: Squad = None,
    questions: Annotated[
        int | None, typer.Option("--questions", min=1, help="Draw this many questions. Default: all.")
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--reader", exists=True, file_okay=False, help="Default: COLMLM_READER or the released one."
        ),
    ] = None,
) -> None:
    """Measure the reader: answers in passages that hold them, and how well it tells others.

    Each question is read as it is, without titles, as keywords and as a sentence to be completed. Where the files have
    questions without an answer, as SQuAD 2.0 does, all are also read in the whole text of their document.
    """
    from colmlm.cli.composition.readers import reader_at
    from colmlm.model.reader.reader import load_reader
    from colmlm.model.reader.training import forms_of_asking, measure_reader

    config = READER_PRESETS[ReaderPreset.minilm]()
    found = drawn(squad or [], squad_documents(squad or []), config)
    asked = some(list(found.plain()), questions)
    is_told = any(one.answer is None for one in found.asked)
    whole = some(list(found.whole()), questions) if is_told else []
    with Runtime.from_environment() as runtime, progress("passages") as update:
        model = load_reader(reader_at(runtime.user, directory), runtime.settings.home / "models")
        asked_in = forms_of_asking(asked) | ({"whole documents": whole} if whole else {})
        measured = {how: measure_reader(model, those, update) for how, those in asked_in.items()}
    if wants_json():
        print_json({how: asdict(figures) for how, figures in measured.items()})
    else:
        _show_reader(measured)


def _show_reader(measured: dict[str, ReaderMeasures]) -> None:
    print_table(
        ["asked", "questions", "exact", "F1", "AUC of none"],
        [
            [how, figures.answered.questions, figures.answered.exact, figures.answered.f1, figures.none_auc]
            for how, figures in measured.items()
        ],
    )
    by_kind = measured["questions"].by_kind
    print_table(
        ["asked for", "questions", "exact", "F1"],
        [[name, *asdict(one).values()] for name, one in by_kind.items()],
    )
