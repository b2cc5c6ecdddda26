"""`colmlm train`: trains a checkpoint on annotated corpora (paper, section 3.2)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import AsJson, MaxMinutes, examples, positive
from colmlm.cli.output import note, print_json, say
from colmlm.cli.training.config import Method, Preset, chosen
from colmlm.cli.training.data import SHARDS_EXAMPLES, Annotations, Shards, Sources, Squad, shards
from colmlm.cli.training.plan import GpuName, show_plan
from colmlm.cli.training.show import shown
from colmlm.cli.training.unlearn import UNLEARN_EXAMPLES, unlearn
from colmlm.model.training.config import RANDOM, TrainConfig
from colmlm.model.training.logs import LOSS_FILE, PLOT_FILE, draw

_H100 = GpuName("h100")

app = typer.Typer(invoke_without_command=True, add_completion=False)


@app.callback(
    epilog=examples(
        "colmlm train --squad train.jsonl --out runs/first --max-minutes 90",
        "colmlm train --annotated handbook.jsonl --no-demo --steps 200 --out runs/handbook",
        "colmlm train --preset co-lmlm-360m --shards shards/wikipedia --out runs/wikipedia",
        "colmlm train --preset co-lmlm-360m --dry-run --gpus 8 --gpu h100",
        "colmlm train --init runs/first --annotated more.jsonl --learning-rate 2e-4 --out runs/second",
        "colmlm train --out runs/first --squad train.jsonl   # goes on with a run, under its own settings",
    )
)
def train(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's directory; a run already there is gone on with.")
    ] = None,
    squad: Squad = None,
    annotated: Annotations = None,
    shard_folders: Shards = None,
    demo: Annotated[
        bool | None,
        typer.Option(
            "--demo/--no-demo",
            help="Also train on the demo corpus. Default: yes, but not with shards or from random weights.",
        ),
    ] = None,
    hold_out_documents: Annotated[
        int,
        typer.Option("--hold-out", min=0, help="Leave this many documents of the files out, for evaluation."),
    ] = 0,
    preset: Preset = None,
    method: Method = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--init", "--base", help="random, a base (smollm2-135m, a hub id, a path), or a checkpoint."
        ),
    ] = None,
    adapt: Annotated[str | None, typer.Option("--adapt", help="full or lora.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, help="Most optimiser steps. Very few shorten warm-up and cooldown, too."
        ),
    ] = None,
    max_minutes: MaxMinutes = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Documents a step; rows, where the preset has them.")
    ] = None,
    micro: Annotated[
        int | None, typer.Option("--micro", min=1, help="Documents (or rows) a forward: less memory.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=4, help="Tokens of a row; a longer document is cut up.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            "--learning-rate", callback=lambda v: v if v is None else positive(v), help="Peak learning rate."
        ),
    ] = None,
    mix: Annotated[
        str | None, typer.Option("--mix", help="Weights of the corpora, as 3,1: shards, then files.")
    ] = None,
    cooldown_mix: Annotated[
        str | None, typer.Option("--cooldown-mix", help="Their weights while the rate falls.")
    ] = None,
    hard_negatives: Annotated[
        int | None,
        typer.Option("--hard-negatives", min=0, help="Confusable documents put beside each in its step."),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seeds weights, order and dropout.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any setting, as weight_decay=0.1; may be repeated."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The checkpoint's name. Default: that of --out.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Train nothing; say what the run will take.")
    ] = False,
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="With --dry-run: how many GPUs.")] = 1,
    gpu: Annotated[GpuName, typer.Option("--gpu", help="With --dry-run: of which kind.")] = _H100,
    mfu: Annotated[
        float, typer.Option("--mfu", min=0.01, max=1, help="With --dry-run: share of the peak reached.")
    ] = 0.35,
    as_json: AsJson = False,
) -> None:
    """Train a checkpoint on annotated corpora, with the joint objective. Ctrl-C or a kill loses at most five minutes.

    The run's directory is a checkpoint at any time: pass it as --checkpoint or COLMLM_CHECKPOINT. With --max-minutes a
    step takes fewer documents where this machine would make fewer than ten steps in that time.
    """
    from colmlm.model.training.plan import plan

    if context.invoked_subcommand is not None:
        return
    asked = list(settings or [])
    asked += [f"{n}=[{text}]" for n, text in (("mix", mix), ("cooldown_mix", cooldown_mix)) if text]
    config = chosen(
        out, preset, method, asked, init=init, steps=steps, batch=batch, micro=micro, adapt=adapt,
        max_seconds=max_minutes and max_minutes * 60, max_length=max_length, learning_rate=learning_rate,
        hard_negatives=hard_negatives, seed=seed,
    )  # fmt: skip
    folders = tuple(shard_folders or ())
    with_demo = not folders and config.init != RANDOM if demo is None else demo
    sources = Sources(folders, tuple(annotated or ()), tuple(squad or ()), with_demo, hold_out_documents)
    with Runtime.from_environment() as runtime:
        cache = runtime.settings.home / "models"
    if dry_run:
        show_plan(
            config, plan(config, cache, gpus=gpus, gpu=gpu, mfu=mfu, ratios=sources.ratios()), as_json=as_json
        )
        return
    _train(config, sources, out, cache, name, as_json=as_json)


app.command("shards", epilog=SHARDS_EXAMPLES)(shards)
app.command("unlearn", epilog=UNLEARN_EXAMPLES)(unlearn)


@app.command(
    "plot", epilog=examples("colmlm train plot runs/first", "colmlm train plot runs/first --output a.png")
)
def plot(
    run: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The run's directory.")],
    output: Annotated[Path | None, typer.Option("--output", help="A PNG file. Default: in the run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Draw a run's losses, rate, gradient norm and speed against its steps."""
    target = output or run / PLOT_FILE
    draw(run / LOSS_FILE, target)
    print_json({"plot": str(target)}) if as_json else say(str(target))


def _train(
    config: TrainConfig, sources: Sources, out: Path | None, cache: Path, name: str | None, *, as_json: bool
) -> None:
    from colmlm.model.training.gather import here
    from colmlm.model.training.trainer import Trainer

    if out is None:
        raise typer.BadParameter("name the run's directory.", param_hint="--out")
    if not sources:
        raise typer.BadParameter("nothing to train on: name files or shards.")
    trainer = Trainer(
        config,
        lambda tokenizer: sources.corpora(tokenizer, config),
        out,
        cache,
        name or out.name,
        note if here().is_first else None,
    )
    with shown() as show:
        for metrics in trainer.run():
            if here().is_first:
                show(metrics, config.steps)
    if not here().is_first:
        return
    if as_json:
        print_json({"checkpoint": str(out), **asdict(trainer.checkpoint_config())})
    else:
        done = trainer.progress
        minutes = done.seconds / 60
        say(
            f"{out}: {done.step} steps, {done.tokens} tokens, {minutes:.1f} minutes; losses in {out / LOSS_FILE}"
        )
