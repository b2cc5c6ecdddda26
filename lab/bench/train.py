"""Measures a training step beside `transformers.Trainer` on the same model and tokens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.lab.bench.machine import Seconds, measured_in_turns
from colmlm.model.lm.checkpoint import compute_dtype
from colmlm.model.text.tokens import padded_batches
from colmlm.model.training.config import TrainConfig
from colmlm.model.training.start import start
from colmlm.model.training.trainer import Trainer

Batch = dict[str, Tensor]
_NEVER = 1e9  # seconds until a run saves


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFigures:
    """Seconds of an optimiser step over the same sequences in the same padded batches, in four ways.

    `trainer` is transformers' Trainer with plain next-token loss of every token, one optimiser step per batch. The
    others are this program's: `joint` with the contrastive loss and the next-token loss of all positions that have one,
    `next_token` without the contrastive loss, `as_trained` with the share of positions that the preset samples. Each
    ratio is Trainer's seconds to ours. Ours include making the batches, which Trainer is given ready-made.
    """

    documents: int
    sequences: int
    tokens_per_step: float
    padded_tokens_per_step: float
    batches_per_step: float
    rounds: int
    precision: str
    trainer: Seconds
    joint: Seconds
    next_token: Seconds
    as_trained: Seconds
    vs_trainer: float
    vs_trainer_next_token: float
    vs_trainer_as_trained: float
    tokens_per_s: float


def bench_train(
    config: TrainConfig,
    documents: Sequence[AnnotatedDocument],
    home: Path,
    cache: Path,
    *,
    rounds: int,
) -> TrainFigures:
    """Times steps of each way in turns, without the first. In each round every way sees the same sequences."""
    config = replace(config, steps=rounds + 2, max_seconds=None, save_seconds=_NEVER)
    whole = replace(config, ntp_fraction=1.0)
    configs = {
        "joint": whole,
        "next_token": replace(whole, contrastive_weight=0.0),
        "as_trained": config,
    }
    runs = {name: Trainer(one, documents, home / name, cache, name) for name, one in configs.items()}
    steps = [_batches(runs["joint"], number) for number in range(rounds + 1)]
    ways: dict[str, Callable[[int], float]] = {name: _stepper(run) for name, run in runs.items()}
    baseline = Baseline(config, cache, home / "trainer")
    ways["trainer"] = lambda number: baseline.seconds(steps[number][1])
    medians = measured_in_turns(ways, rounds)
    counted = steps[1:]
    trainer = medians["trainer"].median
    tokens = sum(count for count, _ in counted) / rounds
    return TrainFigures(
        documents=config.batch_documents,
        sequences=sum(len(batch["input_ids"]) for _, batches in counted for batch in batches),
        tokens_per_step=tokens,
        padded_tokens_per_step=sum(b["input_ids"].numel() for _, batches in counted for b in batches)
        / rounds,
        batches_per_step=sum(len(batches) for _, batches in counted) / rounds,
        rounds=rounds,
        precision=str(compute_dtype(config.precision)).removeprefix("torch."),
        trainer=medians["trainer"],
        joint=medians["joint"],
        next_token=medians["next_token"],
        as_trained=medians["as_trained"],
        vs_trainer=trainer / medians["joint"].median,
        vs_trainer_next_token=trainer / medians["next_token"].median,
        vs_trainer_as_trained=trainer / medians["as_trained"].median,
        tokens_per_s=tokens / medians["joint"].median,
    )


def _batches(run: Trainer, number: int) -> tuple[int, list[Batch]]:
    """Gives the number of tokens of a step, and the batches that this program makes of it in Trainer's format."""
    sequences = run.source.build(run.source.drawn(number)).sequences
    batches: list[Batch] = []
    for group, ids_BT in padded_batches(sequences):
        lengths_B = torch.tensor([len(sequences[i]) for i in group])
        is_real_BT = torch.arange(ids_BT.shape[1]) < lengths_B[:, None]
        labels_BT = torch.where(is_real_BT, ids_BT, -100)
        batches.append({"input_ids": ids_BT, "attention_mask": is_real_BT.long(), "labels": labels_BT})
    return sum(map(len, sequences)), batches


def _stepper(run: Trainer) -> Callable[[int], float]:
    """Gives a function that takes the run's next step and gives its seconds, as the run counts them."""
    steps = run.run()
    before = 0.0

    def step(number: int) -> float:
        nonlocal before
        metrics = next(steps)
        taken, before = metrics.seconds - before, metrics.seconds
        return taken

    return step


class Baseline:
    """transformers' Trainer over the same base under an adapter of the same shape."""

    def __init__(self, config: TrainConfig, cache: Path, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.model: Any = start(config, cache).lm.model

    def seconds(self, batches: Sequence[Batch]) -> float:
        """Trains on these batches and gives the seconds from the start of the first step to the end of the last."""
        clock = _Clock()
        config = self.config
        arguments = TrainingArguments(
            output_dir=str(self.directory),
            per_device_train_batch_size=1,
            max_steps=len(batches),
            learning_rate=config.learning_rate,
            max_grad_norm=config.clip_norm,
            bf16=compute_dtype(config.precision) is torch.bfloat16,
            use_cpu=not torch.cuda.is_available(),
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        with _quiet():
            trainer = transformers.Trainer(
                self.model, arguments, train_dataset=_Ready(batches), data_collator=_only, callbacks=[clock]
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return clock.ended - clock.began


class _Ready(IterableDataset[Batch]):  # type: ignore[misc]
    """A data set that yields ready-made batches in order."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def _only(batches: Sequence[Batch]) -> Batch:
    (batch,) = batches
    return batch


class _Clock(TrainerCallback):  # type: ignore[misc]
    """A callback that records when the first step began and the last ended."""

    began = ended = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = self.began or time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended = time.perf_counter()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers' log, since Trainer warns that it has no tokenizer."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
