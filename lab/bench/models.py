"""`colmlm-lab bench encode`, `decode` and `train`: measure speed beside transformers with the same weights."""

from __future__ import annotations

import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from colmlm.cli.composition.runtime import Runtime
from colmlm.cli.options import CheckpointPath, examples, wants_json
from colmlm.cli.output import note, print_json, print_table, say
from colmlm.kb.lookup.options import RANKINGS
from colmlm.lab.bench.machine import machine, own_folder

if TYPE_CHECKING:
    from colmlm.kb.corpus.format import AnnotatedDocument
    from colmlm.model.lm.checkpoint import Checkpoint

ENCODE_EXAMPLES = examples(
    "colmlm-lab bench encode --json", "colmlm-lab bench encode --squad dev.jsonl --documents 60"
)
DECODE_EXAMPLES = examples(
    "colmlm-lab bench decode --json",
    "colmlm-lab bench decode --tokens 128 --rounds 5 --precision fp32",
    "colmlm-lab bench decode --ranking key,words,reader --json",
)
TRAIN_EXAMPLES = examples(
    "colmlm-lab bench train --json", "colmlm-lab bench train --squad train.jsonl --batch 8 --rounds 3"
)


class Precision(StrEnum):
    auto = "auto"
    bf16 = "bf16"
    fp32 = "fp32"


Rounds = Annotated[
    int,
    typer.Option("--rounds", min=1, max=1000, help="How often each way is timed, in turns; medians count."),
]


def encode(
    squad: Annotated[
        Path | None,
        typer.Option("--squad", exists=True, dir_okay=False, help="A SQuAD file. Default: the demo corpus."),
    ] = None,
    documents: Annotated[int, typer.Option("--documents", min=1, help="At most so many of them.")] = 8,
    rounds: Rounds = 3,
    checkpoint: CheckpointPath = None,
) -> None:
    """Time the keys of a corpus beside the bare forward pass of the same tokens in the same batches."""
    some = _documents(squad)[:documents]
    if not any(document.facts for document in some):
        raise typer.BadParameter("these documents have no facts to make keys of.")
    with Runtime.from_environment(checkpoint=checkpoint) as runtime:
        from colmlm.lab.bench.encode import bench_encode

        note(f"keys of {len(some)} documents, {rounds} rounds")
        figures = bench_encode(runtime.checkpoint, some, rounds=rounds)
        report = _report(runtime, figures)
    if wants_json():
        print_json(report)
        return
    print_table(
        ("what", "seconds", "beside"),
        [
            (
                "keys",
                f"{figures.encode.median:.2f}",
                f"{figures.facts} keys, {figures.tokens_per_s:.0f} tokens/s",
            ),
            ("forward of transformers", f"{figures.forward.median:.2f}", f"{figures.vs_forward:.2f} of ours"),
            ("own forward", f"{figures.own_forward.median:.2f}", f"{figures.vs_own_forward:.2f} of ours"),
        ],
    )
    say(
        f"{figures.tokens} tokens in {figures.padded_tokens} padded ones; least cosine {figures.least_cosine:.5f}"
    )


def decode(
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=2000, help="Tokens a row.")] = 64,
    ranking: Annotated[
        str,
        typer.Option("--ranking", help="Also time lookups by these, with commas: of key, words and reader."),
    ] = "",
    precision: Annotated[
        Precision, typer.Option("--precision", help="Of the weights. Default: as lookups are served.")
    ] = Precision.auto,
    rounds: Rounds = 3,
    checkpoint: CheckpointPath = None,
) -> None:
    """Time greedy decoding beside `transformers.generate`, one prompt and eight at once, and what lookups cost.

    Lookups use a temporary knowledge base that holds a part of the demo corpus, and with --ranking one that holds all
    of it.
    """
    rankings = [name for name in ranking.split(",") if name]
    if set(rankings) - set(RANKINGS):
        raise typer.BadParameter(f"it is none of {', '.join(RANKINGS)}.", param_hint="--ranking")
    with (
        own_folder() as home,
        Runtime.from_environment(checkpoint=checkpoint) as runtime,
    ):
        from colmlm.lab.bench.decode import bench_decode

        note(f"{tokens} tokens a row, {rounds} rounds")
        figures = bench_decode(
            _in_precision(runtime, precision),
            home,
            tokens=tokens,
            rounds=rounds,
            rankings=rankings,
            reader=lambda: runtime.reader,
        )
        report = _report(runtime, figures)
    if wants_json():
        print_json(report)
        return
    print_table(
        ("rows", "tokens/s", "transformers", "ratio", "tokens that agree"),
        [
            (f.prompts, f"{f.tokens_per_s:.1f}", f"{f.generate_tokens_per_s:.1f}", f"{f.vs_generate:.2f}",
             f"{f.agreement:.1%}")
            for f in (figures.batch1, figures.batch8)
        ],
    )  # fmt: skip
    cost = figures.lookups
    say(f"{cost.lookups} lookups of {cost.lookup_ms:.1f} ms make answers {cost.lookup_cost:+.1%} slower")
    say(", ".join(f"{name} {share:.0%}" for name, share in figures.shares.items()))
    if figures.rankings:
        print_table(
            ("ranking", "tokens/s", "of eight rows", "lookups", "hits", "ms a lookup"),
            [
                (name, f"{f.tokens_per_s:.1f}", f"{f.tokens_per_s_together:.1f}", f.lookups, f.hits,
                 f"{f.lookup_ms:.1f}")
                for name, f in figures.rankings.items()
            ],
        )  # fmt: skip


def _in_precision(runtime: Runtime, precision: Precision) -> Checkpoint:
    """Gives the runtime's checkpoint with its weights in another precision, loaded again for it."""
    checkpoint = runtime.checkpoint
    if precision is Precision.auto or checkpoint.path is None:
        return checkpoint
    from colmlm.model.lm.checkpoint import load

    return load(checkpoint.path, runtime.settings.home / "models", precision=precision.value)


def train(
    squad: Annotated[
        Path | None,
        typer.Option("--squad", exists=True, dir_okay=False, help="A SQuAD file. Default: the demo corpus."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=4, help="Documents a step, a multiple of 4.")] = 16,
    base: Annotated[
        str, typer.Option("--base", help="A local path, a hub id, or smollm2-135m.")
    ] = "smollm2-135m",
    rounds: Rounds = 3,
) -> None:
    """Time an optimiser step with the joint loss beside transformers' Trainer with plain next-token loss.

    Both train the same adapter on the same base over the same sequences; nothing is saved.
    """
    documents = _documents(squad)
    with (
        own_folder() as home,
        Runtime.from_environment() as runtime,
    ):
        from colmlm.lab.bench.train import bench_train
        from colmlm.model.training.config import TrainConfig

        note(f"steps of {batch} documents, {rounds} rounds of four ways")
        try:
            config = TrainConfig(init=base, batch_documents=batch)
        except ValueError as error:
            raise typer.BadParameter(f"{error}.") from error
        figures = bench_train(config, documents, home, runtime.settings.home / "models", rounds=rounds)
    if wants_json():
        print_json({**asdict(figures), **_surroundings()})
        return
    ways = [
        ("joint loss", figures.joint, figures.vs_trainer),
        ("next-token loss", figures.next_token, figures.vs_trainer_next_token),
        ("joint loss as the preset samples it", figures.as_trained, figures.vs_trainer_as_trained),
        ("transformers' Trainer, next-token loss", figures.trainer, 1.0),
    ]
    print_table(
        ("a step", "seconds", "as fast as Trainer"),
        [(name, f"{seconds.median:.2f}", f"{ratio:.2f}") for name, seconds, ratio in ways],
    )
    say(f"{figures.tokens_per_step:.0f} tokens a step, {figures.padded_tokens_per_step:.0f} with padding")


def _documents(squad: Path | None) -> list[AnnotatedDocument]:
    from colmlm.kb.corpus.format import read_annotated
    from colmlm.kb.corpus.squad import read_squad
    from colmlm.kb.demo import DEMO_CORPUS

    parsed = read_squad(squad) if squad else read_annotated(DEMO_CORPUS)
    return [item.document for item in parsed if item.document is not None]


def _report(runtime: Runtime, figures: Any) -> dict[str, Any]:
    return {**asdict(figures), "checkpoint": runtime.checkpoint.config.name, **_surroundings()}


def _surroundings() -> dict[str, Any]:
    import torch

    return {
        "threads": torch.get_num_threads(),
        "allocator": "jemalloc" if "jemalloc" in os.environ.get("LD_PRELOAD", "") else "glibc",
        "machine": machine(),
    }
