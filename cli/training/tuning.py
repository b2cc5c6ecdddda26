"""`colmlm train spans`, `questions`, `reader` and `release`, `colmlm reader evaluate`: the small models.

These are the two annotators (paper, section 3.3) and the reader, which finds answers in passages.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import (
    DryRun,
    MaxMinutes,
    NewDirectory,
    above_zero,
    examples,
    no_nan,
    require_empty,
    wants_json,
)
from colmlm.cli.output import count_of, format_value, note, print_json, print_table, progress, say
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, Refusal, read_annotated
from colmlm.kb.corpus.squad import read_questions, read_squad
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.model.annotate.config import (
    QUESTION_PRESETS,
    READER_PRESETS,
    SPAN_PRESETS,
    ReaderConfig,
    TunerConfig,
    named_preset,
)
from colmlm.model.training.config import with_settings

if TYPE_CHECKING:
    from colmlm.model.annotate.training import FineTuningTask
    from colmlm.model.reader.training import ReaderExample, ReaderExamples, ReaderTask
    from colmlm.model.training.task import StepMetrics

Config = TypeVar("Config", bound=TunerConfig)

Out = Annotated[Path, typer.Option("--out", help="The run's directory; a run already there is resumed.")]
Squad = Annotated[
    list[Path] | None,
    typer.Option(
        "--squad", exists=True, dir_okay=False, help="A SQuAD file, sparsely marked; may be repeated."
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        "--epochs", callback=lambda v: v if v is None else above_zero(v), help="Default: the preset's."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any setting of the preset, as batch=8; may be repeated."
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Its name. Default: that of --out.")]


def readable_documents(parsed: Iterable[Parsed]) -> Iterator[AnnotatedDocument]:
    """Yield the documents of a file, and note at the end how many spans and documents were malformed, and the first."""
    refused: list[Refusal] = []
    for item in parsed:
        refused += item.refusals
        if item.document is not None:
            yield item.document
    if refused:
        note(f"Malformed, left out: {len(refused)}, first {refused[0].document}: {refused[0].reason}.")
        note("`colmlm corpus add --dry-run` lists them all.")


def change_preset(
    preset: Config, settings: list[str] | None, epochs: float | None, max_minutes: float | None
) -> Config:
    """Give the preset with the values of --set, --epochs and --max-minutes. Raises `BadParameter` if one is bad."""
    try:
        config = with_settings(preset, settings or [])
        return replace(
            config,
            epochs=config.epochs if epochs is None else epochs,
            max_seconds=config.max_seconds if max_minutes is None else max_minutes * 60,
        )
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--set") from error


def _chosen_preset(name: str, presets: Mapping[str, Callable[[], Config]]) -> Config:
    try:
        return named_preset(name, presets)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--preset") from error


def tune(steps: Iterable[StepMetrics], task: FineTuningTask[Any]) -> None:
    """Run the steps of a training task to the end, and show the progress."""
    note(f"{count_of(len(task.examples), 'example')}, at most {count_of(task.num_steps, 'step')}")
    with progress("training") as update:
        for m in steps:
            update(m.step, task.num_steps)


def report(directory: Path) -> None:
    """Print the name, role and training of the model in the directory of a run or a release."""
    from colmlm.model.annotate import checkpoint as annotators

    config = annotators.AnnotatorConfig.load(directory)
    if wants_json():
        what = "reader" if config.role == "answers" else "annotator"
        print_json({what: str(directory), **asdict(config)})
        return
    run = config.training
    ran = ", ".join(count_of(run[f"{noun}s"], noun) for noun in ("step", "token") if f"{noun}s" in run)
    say(", ".join(filter(None, (f"{directory}: {config.name}", config.role, ran))))
    say(f"reads {format_value(config.reading)}")


RELEASE_EXAMPLES = examples(
    "colmlm train release runs/mine released/mine", "colmlm train release runs/spans released/spans"
)


def release(
    run: Annotated[Path, typer.Argument(metavar="RUN", exists=True, file_okay=False, help="A training run.")],
    target: NewDirectory,
) -> None:
    """Write a run's trained weights in half precision, with the config and without optimiser state.

    Of a checkpoint that is its adapter with the loss log, of an annotator and the reader 16 MB at most.
    """
    from colmlm.model.annotate import checkpoint as annotators

    require_empty(target)
    if not (run / annotators.ANNOTATOR_FILE).is_file():
        from colmlm.model.training.state import release_adapter

        config = release_adapter(run, target)
        written = {"path": str(target.absolute()), "name": config.name, "training": config.training}
        print_json(written) if wants_json() else say(f"Released {config.name} to {written['path']}")
        return
    with Runtime.from_environment() as runtime:
        annotators.release_annotator(run, target, runtime.settings.home / "models")
    report(target)


DENSITY = 20.0  # facts per 100 words, which overlap nearly all that people ask for


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
        str,
        typer.Option("--preset", "--config", help="minilm, modernbert-large, or a TOML file of settings."),
    ] = "minilm",
    held_out: HoldOut = 0,
    epochs: Epochs = None,
    max_minutes: MaxMinutes = None,
    per_100_words: Annotated[
        float,
        typer.Option(
            "--per-100-words", callback=above_zero, help="How many facts the threshold lets 100 words have."
        ),
    ] = DENSITY,
    settings: Settings = None,
    name: Name = None,
) -> None:
    """Train the span annotator. Words outside the spans of a SQuAD file weigh less, since they may be facts too.

    With --hold-out the threshold is set to --per-100-words facts in those documents.
    """
    from colmlm.model.annotate.training import SpanTask, TrainingDocuments
    from colmlm.model.evaluate.annotators import calibrate_threshold

    sparse, kept_back = split_squad(squad or [], held_out if squad else 0)
    dense = read_dense(annotated or [], demo)
    if not squad:
        dense, kept_back = _split_held_out(dense, held_out)
    config = change_preset(_chosen_preset(preset, SPAN_PRESETS), settings, epochs, max_minutes)
    _require_facts([*sparse, *dense], "facts")
    corpora = [TrainingDocuments(sparse, dense=False), TrainingDocuments(dense, dense=True)]
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
        str,
        typer.Option("--preset", "--config", help="smollm2-135m, qwen2.5-1.5b, or a TOML file of settings."),
    ] = "smollm2-135m",
    held_out: HoldOut = 0,
    epochs: Epochs = None,
    max_minutes: MaxMinutes = None,
    settings: Settings = None,
    name: Name = None,
) -> None:
    """Train the question generator on the questions of annotated documents."""
    from colmlm.model.annotate.training import QuestionTask

    documents = split_squad(squad or [], held_out)[0] + read_dense(annotated or [], demo)
    _require_facts(documents, "facts with questions")
    config = change_preset(_chosen_preset(preset, QUESTION_PRESETS), settings, epochs, max_minutes)
    with Runtime.from_environment() as runtime:
        task = QuestionTask(config, documents, runtime.settings.home / "models", name or out.name)
        tune(task.run(out), task)
    report(out)


def split_squad(squad: list[Path], held_out: int) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    """Split the documents of SQuAD files into those to use, and `held_out` ones that are drawn at random."""
    return _split_held_out(squad_documents(squad), held_out)


def _split_held_out(
    documents: list[AnnotatedDocument], count: int
) -> tuple[list[AnnotatedDocument], list[AnnotatedDocument]]:
    from colmlm.model.training.steps import hold_out

    if count and count >= len(documents):
        raise typer.BadParameter(
            f"cannot leave out {count} of {count_of(len(documents), 'document')}; choose fewer.",
            param_hint="--hold-out",
        )
    return hold_out(documents, count)


def read_dense(annotated: list[Path], demo: bool) -> list[AnnotatedDocument]:
    files = [*annotated, *([DEMO_CORPUS] if demo else [])]
    return [document for path in files for document in readable_documents(read_annotated(path))]


def _require_facts(documents: list[AnnotatedDocument], what: str) -> None:
    facts = (span for document in documents for span in document.facts)
    if not any(span.question or what == "facts" for span in facts):
        raise typer.BadParameter(f"nothing to train on: name a file with {what}.")


class ReaderPreset(StrEnum):
    minilm = "minilm"
    mpnet = "mpnet"
    smollm2_135m = "smollm2-135m"


HoldOutShare = Annotated[
    float,
    typer.Option(
        "--hold-out",
        min=0,
        max=0.5,
        callback=no_nan,
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
    held_out: HoldOutShare = 0.0,
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

    config = change_preset(READER_PRESETS[preset](), settings, epochs, max_minutes)
    learnt, kept_back = split_by_title(squad_documents(squad or []), held_out)
    with Runtime.from_environment() as runtime:
        cache = runtime.settings.home / "models"
        examples = reader_examples(squad or [], learnt, config, cache)
        unlearnt_examples = reader_examples(squad or [], kept_back, config, cache) if kept_back else None
        measured = [] if unlearnt_examples is None else list(unlearnt_examples.evaluation_examples())
        task = ReaderTask(config, examples, cache, name or out.name, start)
        if dry_run:
            _print_forecast(task)
            return
        tune(train_with_curve(task, out, draw_examples(measured), every), task)
    report(out)


def squad_documents(squad: list[Path]) -> list[AnnotatedDocument]:
    return [document for path in squad for document in readable_documents(read_squad(path))]


def _print_forecast(task: ReaderTask) -> None:
    """Print the numbers of examples, tokens and steps of a training run, without training."""
    tokens = sum(len(example.ids) for example in task.examples)
    found = Counter("none" if example.is_none else "answered" for example in task.examples)
    foretold = {
        "examples": len(task.examples), **found, "tokens": tokens, "steps": task.num_steps, "batch": task.config.batch
    }  # fmt: skip
    print_json(foretold) if wants_json() else say(", ".join(f"{n} {what}" for what, n in foretold.items()))


# What SQuAD files ask about their documents, as a reader learns it. It needs no database, and no runtime.

CURVE_QUESTIONS = 300


def split_by_title(
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


def reader_examples(
    squad: list[Path], documents: list[AnnotatedDocument], config: ReaderConfig, cache: Path
) -> ReaderExamples:
    """Make the reader's examples from the questions that SQuAD files ask about these documents.

    `cache` is the folder that keeps the passages nearest to each question.
    """
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
    return ReaderExamples(documents, asked, config, cache)


def draw_examples(
    examples: Sequence[ReaderExample], questions: int | None = CURVE_QUESTIONS
) -> list[ReaderExample]:
    """Choose the examples of `questions` questions at random (None: of all), keeping their order."""
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
    with Runtime.from_environment() as runtime, progress("passages") as update:
        cache = runtime.settings.home / "models"
        found = reader_examples(squad or [], squad_documents(squad or []), config, cache)
        asked = draw_examples(list(found.evaluation_examples()), questions)
        is_told = any(one.answer is None for one in found.asked)
        whole = draw_examples(list(found.whole()), questions) if is_told else []
        model = load_reader(reader_at(runtime.user, directory), cache)
        asked_in = forms_of_asking(asked) | ({"whole documents": whole} if whole else {})
        measured = {
            how: without_nan(asdict(measure_reader(model, those, update))) for how, those in asked_in.items()
        }
    print_json(measured) if wants_json() else _show_reader(measured)


def without_nan(figures: dict[str, Any]) -> dict[str, Any]:
    """Replace NaN, the figure of a measurement on nothing, by None."""
    return {
        name: without_nan(value) if isinstance(value, dict) else None if value != value else value
        for name, value in figures.items()
    }


def _show_reader(measured: dict[str, dict[str, Any]]) -> None:
    print_table(
        ["asked", "questions", "exact", "F1", "AUC of none"],
        [
            [how, *map(format_value, (*figures["answered"].values(), figures["none_auc"]))]
            for how, figures in measured.items()
        ],
    )
    print_table(
        ["asked for", "questions", "exact", "F1"],
        [[name, *map(format_value, one.values())] for name, one in measured["questions"]["by_kind"].items()],
    )


# Shows a run's progress while it trains.

_EVERY_SECONDS = 10.0


class ShowStep(Protocol):
    def __call__(self, metrics: StepMetrics, steps: int) -> None: ...


@contextmanager
def show_steps() -> Iterator[ShowStep]:
    """Show each step on stderr: as a progress bar on a terminal, else as a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("training"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=1.0, status="")
        yield lambda m, steps: bar.update(task, completed=m.done, status=_status(m, steps))


class _Lines:
    def __init__(self) -> None:
        self._last = -_EVERY_SECONDS  # the first step is shown at once

    def __call__(self, metrics: StepMetrics, steps: int) -> None:
        if time.monotonic() - self._last >= _EVERY_SECONDS:
            self._last = time.monotonic()
            note(_status(metrics, steps))


def _status(metrics: StepMetrics, steps: int) -> str:
    """Describe a run's state: its losses, its speed, and how long it will take at the speed so far."""
    parts = "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in metrics.parts.items())
    left = metrics.seconds_left / 60
    return (
        f"step {metrics.step} of {steps}  loss {metrics.loss:.3f}  {parts}  "
        f"{metrics.tokens_per_second:.0f} tokens/s  {left:.0f} min left"
    )
