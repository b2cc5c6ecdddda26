"""`colmlm-lab unlearn`: trains a checkpoint until it no longer says some answers, which deletion is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import examples, wants_json
from colmlm.cli.output import count_of, print_json, say
from colmlm.cli.training.tuning import show_steps
from colmlm.model.training.config import OBJECTIVES

UNLEARN_EXAMPLES = examples(
    "colmlm-lab unlearn --init runs/full --forget forget05.jsonl --retain retain95.jsonl --out runs/npo",
    "colmlm-lab unlearn --init runs/full --forget forget05.jsonl --retain retain95.jsonl --objective grad-ascent "
    "--out runs/graddiff",
)


def unlearn(
    init: Annotated[Path, typer.Option("--init", exists=True, file_okay=False, help="The checkpoint.")],
    forget: Annotated[
        Path,
        typer.Option("--forget", exists=True, dir_okay=False, help="What is to be forgotten: rows of TOFU."),
    ],
    retain: Annotated[
        Path, typer.Option("--retain", exists=True, dir_okay=False, help="What is to be kept: rows of TOFU.")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="The run's directory; a run already there is gone on with.")
    ],
    objective: Annotated[str, typer.Option("--objective", help=f"One of {', '.join(OBJECTIVES)}.")] = "npo",
    beta: Annotated[float, typer.Option("--beta", help="Of NPO: how soon it comes to rest.")] = 0.1,
    retain_weight: Annotated[
        float, typer.Option("--retain-weight", help="Of the loss of what is kept. 0: it is not looked at.")
    ] = 1.0,
    epochs: Annotated[int, typer.Option("--epochs", help="Over what is to be forgotten.")] = 5,
    batch: Annotated[int, typer.Option("--batch", help="Answers to forget a step, and as many to keep.")] = 8,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")] = 1e-5,
    seed: Annotated[int, typer.Option("--seed", help="Seeds order and dropout.")] = 17,
    keep_epochs: Annotated[
        bool,
        typer.Option("--keep-epochs", help="Also keep what each epoch leaves, as epoch-1, ... in --out."),
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="Default: that of --out.")] = None,
) -> None:
    """Train a checkpoint until it no longer says some answers: NPO, gradient ascent or gradient difference.

    It uses no knowledge base, from which a fact is deleted in one commit and without training. A checkpoint that is an
    adapter is trained further as an adapter, another one with all its weights.
    """
    from colmlm.model.evaluate.tofu import read_rows
    from colmlm.model.training.task import process_rank
    from colmlm.model.training.unlearning import UnlearnConfig, Unlearning, continue_config

    try:
        config = UnlearnConfig(
            objective=objective, beta=beta, retain_weight=retain_weight, epochs=epochs, batch=batch,
            learning_rate=learning_rate, seed=seed,
        )  # fmt: skip
        forgotten, kept = (
            [(row.question, row.answer) for row in read_rows(file)] for file in (forget, retain)
        )
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error
    with Runtime.from_environment() as runtime:
        cache = runtime.settings.home / "models"
    task = Unlearning(
        config, continue_config(init), forgotten, kept, out, cache, name or out.name, keep_epochs=keep_epochs
    )
    with show_steps() as show:
        for metrics in task.run():
            if process_rank().is_first:
                show(metrics, config.epochs * task.steps_per_epoch)
    if not process_rank().is_first:
        return
    done = task.progress
    report = {
        "checkpoint": str(out),
        "steps": done.step,
        "tokens": done.tokens,
        "seconds": round(done.seconds),
    }
    print_json(report) if wants_json() else say(
        f"{out}: {count_of(done.step, 'step')}, {done.seconds / 60:.0f} minutes"
    )
