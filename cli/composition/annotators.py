"""Loads the annotators for commands, and has the options that choose them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from colmlm.cli.composition.bulk.errands import (
    AnnotatingBy,
    AnnotatorElsewhere,
    DocumentAnnotator,
    locate_model,
)
from colmlm.cli.composition.bulk.spreading import spreading_of
from colmlm.cli.composition.readers import reader, verifying_reader_at
from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import no_nan

if TYPE_CHECKING:
    from colmlm.kb.corpus.raw.blocks import RawAddition

SpanAnnotatorPath = Annotated[
    Path | None,
    typer.Option(
        "--span-annotator",
        exists=True,
        file_okay=False,
        help="Default: COLMLM_SPAN_ANNOTATOR or the released one.",
    ),
]
SpanThreshold = Annotated[
    float | None,
    typer.Option(
        "--span-threshold",
        min=0.001,
        max=0.999,
        callback=no_nan,
        help="The lower, the more facts. Default: the annotator's own.",
    ),
]
QuestionGeneratorPath = Annotated[
    Path | None,
    typer.Option(
        "--question-generator",
        exists=True,
        file_okay=False,
        help="Default: COLMLM_QUESTION_GENERATOR or the released one.",
    ),
]
Questions = Annotated[
    bool,
    typer.Option(
        "--questions/--no-questions",
        help="Write a question for each fact too: many times slower than finding it.",
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Drop questions by which the reader does not find the fact again in its document.",
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", help="Of files that do not state theirs, as windows-1252. Default: UTF-8."),
]
IdField = Annotated[
    str | None,
    typer.Option(
        "--id-field", help="The field of records with the id. Default: id, or a digest of the text."
    ),
]
TitleField = Annotated[
    str | None, typer.Option("--title-field", help="The field of records with the title. Default: title.")
]
TextField = Annotated[
    str | None,
    typer.Option("--text-field", help="The field of records with the text. Default: text, content or body."),
]
_RAW = typer.Argument(
    metavar="PATH...",
    exists=True,
    help="Files or directories: txt, md, html, pdf, docx, epub, csv, tsv, jsonl, parquet, wiki dumps.",
)
RawPaths = Annotated[list[Path], _RAW]
AnyRawPaths = Annotated[list[Path] | None, _RAW]


def known_encoding(name: str | None) -> str | None:
    """Give the name of an encoding. Raises `BadParameter` if Python does not know it."""
    if name is not None:
        try:
            "x".encode(name)
        except LookupError:
            raise typer.BadParameter(
                f"there is no encoding {name!r}. Name one such as utf-8 or latin-1.", param_hint="--encoding"
            ) from None
    return name


def light_annotators(
    runtime: Runtime,
    spans: Path | None,
    questions: Path | None,
    *,
    asks: bool,
    verifies: bool = True,
    threshold: float | None = None,
    drop_unquestioned: bool = False,
    on_wait: Callable[[], None] = lambda: None,
) -> DocumentAnnotator:
    """Load the span annotator and, with `asks`, the question generator, which takes seconds.

    If it asks and `verifies`, the settings' reader verifies the questions. If the settings name Ray for bulk work, its
    workers load and run the annotators, and `on_wait` is called while they do.
    """
    finding, asking = spans_at(runtime, spans), questions_at(runtime, questions) if asks else None
    if (spreading := spreading_of(runtime)) is not None:
        reading = verifying_reader_at(runtime.user) if asks and verifies else None
        by = AnnotatingBy(
            locate_model(finding),
            None if asking is None else locate_model(asking),
            None if reading is None else locate_model(reading),
            threshold,
            drop_unquestioned,
        )
        return AnnotatorElsewhere(spreading, by, on_wait)
    from colmlm.model.annotate.annotators import QuestionGenerator, SpanAnnotator, documents_together
    from colmlm.model.annotate.pipeline import Annotator
    from colmlm.model.reader.reader import Verifier

    bases = runtime.settings.home / "models"
    finder = SpanAnnotator.load(finding, bases, threshold=threshold)
    writer = QuestionGenerator.load(asking, bases) if asking else None
    verifier = Verifier(reader(verifying_reader_at(runtime.user), bases)) if asks and verifies else None
    return Annotator(finder, writer, drop_unquestioned, verifier, documents_together(finder.device))


def annotator_loader(runtime: Runtime, how: RawAddition) -> Callable[[Callable[[], None]], DocumentAnnotator]:
    """Give a function that loads the encoder and then the annotators; its argument is called while they work.

    The encoder comes first, so that a missing checkpoint is reported before an hour's annotation.
    """

    def load(on_wait: Callable[[], None]) -> DocumentAnnotator:
        runtime.encoder  # noqa: B018
        return light_annotators(
            runtime,
            how.span_annotator,
            how.question_generator,
            asks=how.questions,
            verifies=how.verify,
            threshold=how.span_threshold,
            on_wait=on_wait,
        )

    return load


def spans_at(runtime: Runtime, named: Path | None) -> Path:
    """Give the directory of the span annotator: what was named, that of the settings, or the released one."""
    from colmlm.model.annotate.checkpoint import RELEASED_SPANS

    return named or runtime.user.span_annotator or RELEASED_SPANS


def questions_at(runtime: Runtime, named: Path | None) -> Path:
    """Give the directory of the question generator, as `spans_at` does."""
    from colmlm.model.annotate.checkpoint import RELEASED_QUESTIONS

    return named or runtime.user.question_generator or RELEASED_QUESTIONS
