"""The runs by name, and the settings of those that train checkpoints."""

from __future__ import annotations

from dataclasses import replace

from colmlm.lab.half_hour.sizes import Sizes
from colmlm.model.training import presets
from colmlm.model.training.config import TrainConfig

READER, QUESTIONS, CO_LMLM, SMALL = "reader", "generator", "co-lmlm", "co-lmlm-small"
SCRATCH = ("scratch-co-lmlm", "scratch-standard")
SAVE_SECONDS = 120.0


def co_lmlm(sizes: Sizes) -> TrainConfig:
    """The run of all weights: thousands of pairs a step, all positions, many forms, half of the splices paraphrased."""
    return replace(
        presets.small(),
        preset="half-hour",
        adapt="full",
        steps=sizes.steps,
        max_seconds=sizes.train_minutes * 60,
        save_seconds=SAVE_SECONDS,
        warmup_steps=50 if sizes.steps > 50 else 1,
        learning_rate=3e-4,
        weight_decay=0.01,
        batch_documents=sizes.batch,
        block=min(4, sizes.batch),
        micro_documents=sizes.micro,
        qa_fraction=0.5,
        asking="many",
        paraphrase_fraction=0.5,
        ntp_fraction=1.0,
    )


def scratch(sizes: Sizes, preset: str) -> TrainConfig:
    """One of the two runs from random weights, on the tokens that `co_lmlm` reads."""
    like = co_lmlm(sizes)
    return replace(
        presets.preset(preset),
        architecture=sizes.scratch,
        steps=sizes.scratch_steps,
        max_seconds=sizes.scratch_minutes * 60,
        save_seconds=SAVE_SECONDS,
        warmup_steps=100 if sizes.scratch_steps > 100 else 0,
        cooldown_steps=None,
        batch_documents=sizes.scratch_batch,
        micro_documents=sizes.scratch_batch,
        learning_rate=1e-3,
        precision="auto",
        max_question_length=like.max_question_length,
        title_fraction=like.title_fraction,
        paraphrase_fraction=like.paraphrase_fraction,
    )
