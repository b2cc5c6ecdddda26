"""The options and steps that the commands share which tune a small model: the annotators' and the reader's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import NewDirectory, examples, positive, wants_json
from colmlm.cli.output import note, print_json, progress, say
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed
from colmlm.model.annotate.config import TunerConfig
from colmlm.model.training.config import with_settings

if TYPE_CHECKING:
    from colmlm.model.annotate.training import TunerTask
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
        "--epochs", callback=lambda v: v if v is None else positive(v), help="Default: the preset's."
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Any setting of the preset, as batch=8; may be repeated."
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="Its name. Default: that of --out.")]


def readable(parsed: Iterable[Parsed]) -> list[AnnotatedDocument]:
    """Give the documents of a file, and note how much of it was malformed."""
    documents: list[AnnotatedDocument] = []
    refused = 0
    for item in parsed:
        refused += len(item.refusals)
        if item.document is not None:
            documents.append(item.document)
    if refused:
        note(f"{refused} malformed spans or documents left out; `colmlm corpus add --dry-run` lists them")
    return documents


def changed(
    preset: Config, settings: list[str] | None, epochs: float | None, max_minutes: float | None
) -> Config:
    """Give the preset with the settings that were asked for."""
    try:
        config = with_settings(preset, settings or [])
        return replace(
            config,
            epochs=config.epochs if epochs is None else epochs,
            max_seconds=config.max_seconds if max_minutes is None else max_minutes * 60,
        )
    except ValueError as error:
        raise typer.BadParameter(f"{error}.", param_hint="--set") from error


def tune(steps: Iterable[StepMetrics], task: TunerTask[Any]) -> None:
    """Train to the end, and show how far it is."""
    note(f"{len(task.examples)} examples, at most {task.num_steps} steps")
    with progress("training") as update:
        for m in steps:
            update(m.step, task.num_steps)


def report(directory: Path) -> None:
    """Say what model is in the directory of a run or a release."""
    from colmlm.model.annotate import checkpoint as annotators

    config = annotators.AnnotatorConfig.load(directory)
    if wants_json():
        what = "reader" if config.role == "answers" else "annotator"
        print_json({what: str(directory), **asdict(config)})
        return
    run = config.training
    say(f"{directory}: {config.name}, {config.role}, {run.get('steps')} steps, {run.get('tokens')} tokens")
    say(f"reads {', '.join(f'{name} {value}' for name, value in config.reading.items())}")


RELEASE_EXAMPLES = examples(
    "colmlm train release runs/mine released/mine", "colmlm train release runs/spans released/spans"
)


def release(
    run: Annotated[Path, typer.Argument(metavar="RUN", exists=True, file_okay=False, help="A training run.")],
    target: NewDirectory,
) -> None:
    """Write what a run trained in half precision, with its config and without optimiser state.

    Of a checkpoint that is its adapter with the loss log, of an annotator and the reader 16 MB at most.
    """
    from colmlm.model.annotate import checkpoint as annotators

    if target.is_dir() and any(target.iterdir()):
        raise typer.BadParameter(f"{target} is not empty; name a new directory.", param_hint="DIR")
    if not (run / annotators.ANNOTATOR_FILE).is_file():
        from colmlm.model.training.state import release_adapter

        config = release_adapter(run, target)
        written = {"path": str(target.absolute()), "name": config.name, "training": config.training}
        print_json(written) if wants_json() else say(f"Released {config.name} to {written['path']}")
        return
    with Runtime.from_environment() as runtime:
        annotators.release_annotator(run, target, runtime.settings.home / "models")
    report(target)
