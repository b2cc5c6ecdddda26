"""`colmlm train`: trains a checkpoint on annotated corpora (paper, section 3.2)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime, released_checkpoint
from colmlm.cli.options import MaxMinutes, above_zero, examples, wants_json
from colmlm.cli.output import count_of, note, print_json, print_table, progress, say
from colmlm.cli.start.command import RunningGroup
from colmlm.cli.training import tuning
from colmlm.cli.training.tuning import Squad, readable_documents, show_steps
from colmlm.kb.corpus.format import AnnotatedDocument, Parsed, read_annotated
from colmlm.kb.corpus.squad import read_squad
from colmlm.kb.demo import DEMO_CORPUS
from colmlm.kb.progress import Advance
from colmlm.model.lm.config import CONFIG_FILE
from colmlm.model.training import config as presets
from colmlm.model.training.config import GPUS, RANDOM, TrainConfig, TrainingRefused, with_settings
from colmlm.model.training.logs import LOSS_FILE

if TYPE_CHECKING:
    from colmlm.model.text.tokens import FactTokenizer
    from colmlm.model.training.corpora import BuiltShards, Corpus
    from colmlm.model.training.start import QuestionRatio, TrainingPlan

# The data that `colmlm train` reads: annotated files, SQuAD files, and shards made of them.

Annotations = Annotated[
    list[Path] | None,
    typer.Option(
        "--annotated", exists=True, dir_okay=False, help="An annotated JSONL file; may be repeated."
    ),
]
Shards = Annotated[
    list[Path] | None,
    typer.Option(
        "--shards", exists=True, file_okay=False, help="A folder of `train shards`; may be repeated."
    ),
]


def _path_of_released(init: str | None) -> str | None:
    """Give the path of the released checkpoint for the name `released`, and any other name as it is."""
    return str(released_checkpoint()) if init == "released" else init


_AT_ONCE = 500  # documents that are tokenised between two reports of progress

SHARDS_EXAMPLES = examples(
    "colmlm train shards --annotated wikipedia.jsonl --preset co-lmlm-360m --out shards/wikipedia",
    "colmlm train shards --squad train.jsonl --out shards/squad",
)


@dataclass(frozen=True, slots=True)
class Sources:
    """The corpora of a run. A mix has their weights in this order: shards, annotated files, SQuAD files, the demo."""

    shards: tuple[Path, ...] = ()
    annotated: tuple[Path, ...] = ()
    squad: tuple[Path, ...] = ()
    demo: bool = False
    held_out: int = 0

    def __bool__(self) -> bool:
        return bool(self.shards or self.annotated or self.squad or self.demo)

    def corpora(self, tokenizer: FactTokenizer, config: TrainConfig) -> list[Corpus]:
        """Give the corpora as tokens: map shards into memory, and read and tokenise files."""
        from colmlm.model.training.corpora import open_shards

        mapped = [open_shards(folder, tokenizer, config) for folder in self.shards]
        files = _drop_held_out([list(readable_documents(path)) for path in self._readers()], self.held_out)
        files += [list(readable_documents(read_annotated(DEMO_CORPUS)))] * self.demo
        with progress("documents tokenised") as advance:
            mapped += [_tokenise_documents(documents, tokenizer, config, advance) for documents in files]
        return mapped

    def ratios(self) -> QuestionRatio | None:
        """Compute the share of question tokens among all tokens, from the shards' manifests; None without shards."""
        from colmlm.model.training.corpora import read_manifest
        from colmlm.model.training.start import QuestionRatio

        built = [read_manifest(folder)["built"] for folder in self.shards]
        if not built:
            return None
        questions = sum(each["question_tokens"] for each in built)
        return QuestionRatio(
            questions=questions / sum(each["tokens"] for each in built), source="of these shards"
        )

    def documents(self) -> Iterator[AnnotatedDocument]:
        """Read the documents of all files, one after another."""
        return chain.from_iterable(readable_documents(path) for path in self._readers())

    def _readers(self) -> list[Iterable[Parsed]]:
        return [*map(read_annotated, self.annotated), *map(read_squad, self.squad)]


def shards(
    out: Annotated[Path, typer.Option("--out", help="The folder; a build already there goes on.")],
    squad: Squad = None,
    annotated: Annotations = None,
    preset: Preset = None,
    method: Method = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--init", callback=_path_of_released, help="What will be trained, for its tokenizer; see `train`."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as of `train`.")
    ] = None,
    per_shard: Annotated[int, typer.Option("--per-shard", min=1, help="Documents in a shard.")] = 10_000,
) -> None:
    """Tokenise files once, for runs that read them while they train. Ctrl-C or a kill loses at most one shard.

    Shards belong to a tokenizer, a method and the settings `max_question_length`, `title_fraction` and
    `paraphrase_fraction`.
    """
    from colmlm.model.training.start import tokenizer_of

    sources = Sources(annotated=tuple(annotated or ()), squad=tuple(squad or ()))
    if not sources:
        raise typer.BadParameter("nothing to make shards of: name a file with --annotated or --squad.")
    config = choose_config(None, preset, method, settings or [], init=init)
    with Runtime.from_environment() as runtime:
        tokenizer = tokenizer_of(config, runtime.settings.home / "models")
    built = _build(sources, out, tokenizer, config, per_shard)
    if wants_json():
        print_json({"shards": str(out), "built": built})
    else:
        say(
            f"{out}: {count_of(built.shards, 'shard')} ({built.kept} there already), "
            f"{count_of(built.documents, 'document')}, {count_of(built.tokens, 'token')}, "
            f"{count_of(built.questions, 'question')} of {count_of(built.question_tokens, 'token')}"
        )


def _tokenise_documents(
    documents: Sequence[AnnotatedDocument], tokenizer: FactTokenizer, config: TrainConfig, advance: Advance
) -> Corpus:
    from colmlm.model.training.corpora import merge_corpora, tokenise

    if not documents:
        raise TrainingRefused("a file holds no documents. Nothing was trained. Name files that hold some")
    parts = []
    for start in range(0, len(documents), _AT_ONCE):
        parts.append(tokenise(documents[start : start + _AT_ONCE], tokenizer, config))
        advance(min(start + _AT_ONCE, len(documents)), len(documents))
    return merge_corpora(parts)


def _build(
    sources: Sources, out: Path, tokenizer: FactTokenizer, config: TrainConfig, per_shard: int
) -> BuiltShards:
    from colmlm.model.training.corpora import build_shards

    built = None
    with progress("documents in shards") as advance:
        for built in build_shards(sources.documents(), out, tokenizer, config, per_shard=per_shard):
            advance(built.documents, None)
    assert built is not None
    return built


def _drop_held_out(files: Sequence[list[AnnotatedDocument]], held_out: int) -> list[list[AnnotatedDocument]]:
    """Give the documents of each file without the `held_out` ones, which are drawn at random from all files."""
    from colmlm.model.training.steps import hold_out

    numbered = [(number, document) for number, file in enumerate(files) for document in file]
    if held_out >= len(numbered) > 0:
        raise typer.BadParameter(
            f"cannot leave out {held_out} of {count_of(len(numbered), 'document')}; choose fewer.",
            param_hint="--hold-out",
        )
    kept = hold_out(numbered, held_out)[0]
    return [[document for number, document in kept if number == n] for n in range(len(files))]


# `colmlm train --dry-run`: shows what a run will cost.

GpuName = StrEnum("GpuName", list(GPUS))  # type: ignore[misc]
_GIB = 1 << 30


def show_plan(config: TrainConfig, plan: TrainingPlan) -> None:
    """Print the plan of a training run: parameters, tokens, arithmetic and memory, with the formulas."""
    if wants_json():
        print_json({"config": asdict(config), "plan": asdict(plan)})
        return
    p = plan.parameters
    say(f"{config.preset}: {config.method}, from {config.init}, training {config.adapt}")
    say(f"parameters: {p.total:,}, of which {p.trained:,} are trained")
    say(
        f"a step: {count_of(plan.tokens_per_step, 'token')} of documents and {plan.question_tokens_per_step:,} of "
        f"questions; the run: {count_of(config.steps, 'step')}, {count_of(plan.tokens, 'token')} of documents"
    )
    if limit := config.max_seconds:
        say(f"the run also ends after {limit / 60:g} minutes, whatever it has read by then")
    say(
        f"arithmetic: {plan.flop:.3g} FLOP; at {plan.mfu:.0%} of a {plan.gpu}'s peak {plan.gpu_hours:,.1f} GPU hours, "
        f"on {plan.gpus} of them {plan.days:,.2f} days"
    )
    say()
    say(
        f"GiB on each {plan.gpu}, with one row of {count_of(config.max_length, 'token')} and its questions in flight:"
    )
    parts = ("weights", "gradients", "optimiser", "communication", "logits", "activations", "total")
    rows = [
        (name, *(f"{getattr(memory, part) / _GIB:.1f}" for part in parts), plan.most_rows[name])
        for name, memory in plan.memory.items()
    ]
    print_table(("", *parts, "rows that fit"), rows)
    say()
    for name, formula in plan.formulas.items():
        say(f"{name}: {formula}")


_H100 = GpuName("h100")

app = typer.Typer(cls=RunningGroup, invoke_without_command=True, add_completion=False)


@app.callback(
    epilog=examples(
        "colmlm train --squad train.jsonl --out runs/first --max-minutes 90",
        "colmlm train --annotated handbook.jsonl --no-demo --steps 200 --out runs/handbook",
        "colmlm train --preset co-lmlm-360m --shards shards/wikipedia --out runs/wikipedia",
        "colmlm train --config mine.toml --annotated handbook.jsonl --out runs/mine",
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
            "--init",
            "--base",
            callback=_path_of_released,
            help="random, a base (smollm2-135m, a hub id, a path), a checkpoint, or released: the bundled one.",
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
            "--learning-rate",
            callback=lambda v: v if v is None else above_zero(v),
            help="Peak learning rate.",
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
) -> None:
    """Train a checkpoint on annotated corpora, with the joint objective. Ctrl-C or a kill loses at most five minutes.

    The run's directory is a checkpoint at any time: pass it as --checkpoint or COLMLM_CHECKPOINT. With --max-minutes a
    step takes fewer documents where this machine would make fewer than ten steps in that time.
    """
    from colmlm.model.training.start import plan_run

    if context.invoked_subcommand is not None:
        return
    asked = list(settings or [])
    asked += [f"{n}=[{text}]" for n, text in (("mix", mix), ("cooldown_mix", cooldown_mix)) if text]
    config = choose_config(
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
        show_plan(config, plan_run(config, cache, gpus=gpus, gpu=gpu, mfu=mfu, ratios=sources.ratios()))
        return
    _train(config, sources, out, cache, name)


app.command("shards", epilog=SHARDS_EXAMPLES)(shards)
app.command("spans", epilog=tuning.SPANS_EXAMPLES)(tuning.train_spans)
app.command("questions", epilog=tuning.QUESTIONS_EXAMPLES)(tuning.train_questions)
app.command("reader", epilog=tuning.READER_EXAMPLES)(tuning.train_reader)
app.command("release", epilog=tuning.RELEASE_EXAMPLES)(tuning.release)


def _train(config: TrainConfig, sources: Sources, out: Path | None, cache: Path, name: str | None) -> None:
    from colmlm.model.training.task import process_rank
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
        note if process_rank().is_first else None,
    )
    with show_steps() as show:
        for metrics in trainer.run():
            if process_rank().is_first:
                show(metrics, config.steps)
    if not process_rank().is_first:
        return
    if wants_json():
        print_json({"checkpoint": str(out), **asdict(trainer.checkpoint_config())})
    else:
        done = trainer.progress
        minutes = done.seconds / 60
        say(
            f"{out}: {count_of(done.step, 'step')}, {count_of(done.tokens, 'token')}, {minutes:.1f} minutes; "
            f"losses in {out / LOSS_FILE}"
        )


# Makes a run's config from the command line: from a preset or the run to continue, then from the options given.

Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        "--config",
        metavar="NAME|FILE",
        help=f"A TOML file of settings, or a preset: {', '.join(presets.names())}. Default: small.",
    ),
]
Method = Annotated[
    str | None, typer.Option("--method", help="co-lmlm, standard, asker or rel-lmlm. Default: the preset's.")
]


def choose_config(
    out: Path | None,
    preset: str | None,
    method: str | None,
    settings: Sequence[str],
    *,
    init: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    micro: int | None = None,
    **changes: Any,
) -> TrainConfig:
    """Give the config of a run: that of the run in `out` if there is one and no preset is named, else the preset's.

    Raises `BadParameter` for settings that are not possible.
    """
    try:
        config = presets.preset(preset) if preset else _config_of_run(out) or presets.small()
        if method is not None and method != config.method:
            config = presets.as_method(config, method)
        if init is not None:
            changes |= {"init": init}
            changes |= {} if init == RANDOM else {"architecture": None}
        if steps is not None:
            config = presets.shorten_run(config, steps)
        by_rows = config.batch_rows is not None
        changes |= {"batch_rows" if by_rows else "batch_documents": batch}
        changes |= {"micro_rows" if by_rows else "micro_documents": micro}
        asked = {
            name: value for name, value in changes.items() if value is not None or name == "architecture"
        }
        return with_settings(config, settings, **asked)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from error


def _config_of_run(out: Path | None) -> TrainConfig | None:
    """Give the config of the run in `out`; None without one. Raises `ValueError` for a checkpoint that is no run."""
    from colmlm.model.training.state import STATE_FILE

    if out is None or not (out / CONFIG_FILE).is_file():
        return None
    if not (out / STATE_FILE).is_file():
        raise ValueError(
            f"{out} holds a checkpoint and no run to go on with; to train it further name it with --init, "
            "and another --out"
        )
    return TrainConfig.from_record(json.loads((out / CONFIG_FILE).read_text())["training"]["config"])
