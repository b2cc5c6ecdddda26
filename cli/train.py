"""`colmlm train`: make a checkpoint from annotated corpora (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cli.options import AsJson, examples, positive
from cli.output import note, print_json, say
from cli.runtime import Runtime
from kb.corpus import AnnotatedDocument, Parsed, read_annotated
from kb.demo import DEMO_CORPUS
from kb.squad import read_squad
from model.training.config import TrainConfig
from model.training.steps import hold_out
from model.training.trainer import Trainer

app = typer.Typer()
_DEFAULTS = TrainConfig()


@app.command(
    epilog=examples(
        "colmlm train --squad train.jsonl --out runs/first --max-minutes 90",
        "colmlm train --annotated handbook.jsonl --no-demo --steps 200 --out runs/handbook",
    )
)
def train(
    out: Annotated[Path, typer.Option("--out", help="The run's directory; a run already there is resumed.")],
    squad: Annotated[
        list[Path] | None,
        typer.Option("--squad", exists=True, dir_okay=False, help="A SQuAD file; may be repeated."),
    ] = None,
    annotated: Annotated[
        list[Path] | None,
        typer.Option(
            "--annotated", exists=True, dir_okay=False, help="An annotated JSONL file; may be repeated."
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo/--no-demo", help="Also train on the demo corpus.")] = True,
    hold_out_documents: Annotated[
        int,
        typer.Option("--hold-out", min=0, help="Leave this many documents of the files out, for evaluation."),
    ] = 0,
    base: Annotated[
        str, typer.Option("--base", help="A local path, a hub id, or smollm2-135m.")
    ] = _DEFAULTS.init,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Most optimiser steps.")] = _DEFAULTS.steps,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            "--max-minutes", callback=lambda v: v if v is None else positive(v), help="Most minutes."
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=4, help="Documents a step, a multiple of 4.")
    ] = _DEFAULTS.batch_documents,
    learning_rate: Annotated[
        float, typer.Option("--learning-rate", callback=positive, help="Peak learning rate.")
    ] = _DEFAULTS.learning_rate,
    seed: Annotated[
        int, typer.Option("--seed", help="Seeds the order of the data and the dropout.")
    ] = _DEFAULTS.seed,
    name: Annotated[
        str | None, typer.Option("--name", help="The checkpoint's name. Default: that of --out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train LoRA and the three token rows with the joint objective. Ctrl-C or a kill loses at most five minutes.

    The run's directory is a checkpoint at any time: pass it as --checkpoint or COLMLM_CHECKPOINT.
    """
    documents = _documents(squad or [], annotated or [], hold_out_documents)
    if demo:
        documents += _readable(read_annotated(DEMO_CORPUS))
    config = TrainConfig(
        init=base, steps=steps, max_seconds=max_minutes and max_minutes * 60, batch_documents=batch,
        learning_rate=learning_rate, seed=seed,
    )  # fmt: skip
    if not any(span.question for document in documents for span in document.facts):
        raise typer.BadParameter("nothing to train on: name a file with facts that have questions.")
    with Runtime.from_environment() as runtime:
        trainer = Trainer(config, documents, out, runtime.settings.home / "models", name or out.name)
    _run(trainer)
    report = {"checkpoint": str(out), **asdict(trainer.checkpoint_config())}
    if as_json:
        print_json(report)
    else:
        done = trainer.progress
        say(
            f"{out}: {done.step} steps, {done.tokens} tokens, {done.seconds / 60:.0f} minutes; losses in {out}/loss.csv"
        )


def _documents(squad: list[Path], annotated: list[Path], held_out: int) -> list[AnnotatedDocument]:
    files = chain((read_squad(path) for path in squad), (read_annotated(path) for path in annotated))
    documents = [document for parsed in files for document in _readable(parsed)]
    if held_out >= len(documents) > 0:
        raise typer.BadParameter(f"cannot leave {held_out} of {len(documents)} documents out.")
    return hold_out(documents, held_out)[0]


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


def _run(trainer: Trainer) -> None:
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=1.0, status="")
        for m in trainer.run():
            status = f"step {m.step}  loss {m.loss:.3f}  {m.tokens_per_second:.0f} tokens/s"
            bar.update(task, completed=m.done, status=status)
