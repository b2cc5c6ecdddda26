"""Training runs by name, as functions, and the GPUs and objectives of unlearning that go by name.

The values of the paper's tables are written here and nowhere else.

The paper's runs are those of appendix A (pre-training hyperparameters); its LMLM-Asker and standard models are trained
with the same values, without those of the contrastive loss. `scratch-co-lmlm` and `scratch-standard` ask the paper's
question of perplexity at a size that two CPU cores train.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from colmlm.model.text.markup import CO_LMLM, MARKUPS
from colmlm.model.training.config import RANDOM, Architecture, TrainConfig

SMOLLM2 = "smollm2-135m"  # all sizes of SmolLM2 share its tokenizer
PAPER_CONTEXT = 4096
SCRATCH_CONTEXT = (
    1024  # twice the longest sequence trained on: perplexity reads half a context, found values are longer
)


def smollm2_135m() -> Architecture:
    """Give SmolLM2-135M, with the paper's context length."""
    return Architecture(
        layers=30, width=576, heads=9, kv_heads=3, ffn=1536, context=PAPER_CONTEXT, spread=1 / 24
    )


def smollm2_360m() -> Architecture:
    """Give SmolLM2-360M, with the paper's context length."""
    return Architecture(layers=32, width=960, heads=15, kv_heads=5, ffn=2560, context=PAPER_CONTEXT)


def small() -> TrainConfig:
    """Give an adapter on SmolLM2-135M, trained on two CPU cores in an hour or two."""
    return TrainConfig(preset="small", init=SMOLLM2, tokenizer=SMOLLM2)


def scratch_co_lmlm() -> TrainConfig:
    """Give random weights of 12M, three quarters of them the vocabulary's, trained on two CPU cores in some hours.

    A step counts documents, not tokens: so every method reads the same texts in the same order, as long as none of them
    is cut, with its markup, at `max_length`.
    """
    return TrainConfig(
        preset="scratch-co-lmlm",
        init=RANDOM,
        architecture=Architecture(layers=6, width=192, heads=3, kv_heads=3, ffn=512, context=SCRATCH_CONTEXT),
        tokenizer=SMOLLM2,
        adapt="full",
        steps=3_000,
        warmup_steps=100,
        cooldown_steps=600,
        learning_rate=2e-3,
        weight_decay=0.1,
        batch_documents=16,
        micro_documents=8,
        block=1,
        max_length=SCRATCH_CONTEXT // 2,
        max_question_length=64,
        title_fraction=1.0,
        qa_fraction=0.0,
        ntp_fraction=1.0,
        precision="fp32",
    )


def co_lmlm_135m() -> TrainConfig:
    """Give the paper's 135M model on annotated Wikipedia."""
    return _paper("co-lmlm-135m", smollm2_135m(), stable=88_000, cooldown=10_000)


def co_lmlm_360m() -> TrainConfig:
    """Give the paper's 360M model on annotated Wikipedia."""
    return _paper("co-lmlm-360m", smollm2_360m(), stable=88_000, cooldown=10_000)


def co_lmlm_360m_fw() -> TrainConfig:
    """Give the paper's 360M model on annotated FineWeb-Edu, with an equal share of Wikipedia in the cooldown.

    The corpora must be given in this order.
    """
    config = _paper("co-lmlm-360m-fw", smollm2_360m(), stable=148_000, cooldown=20_000)
    return replace(config, mix=(1.0, 0.0), cooldown_mix=(1.0, 1.0))


def _paper(preset: str, architecture: Architecture, *, stable: int, cooldown: int) -> TrainConfig:
    """Give the values of the paper's table.

    A batch is 128 full rows of the context, from which the paper's "fewer than 100B tokens" of 170,000 steps follow.
    Documents begin with their title, as the paper's prompts for biographies do. `micro_rows` suits 80 GB of memory and
    changes nothing in what is learnt.
    """
    warmup = 2_000
    return TrainConfig(
        preset=preset,
        init=RANDOM,
        architecture=architecture,
        tokenizer=SMOLLM2,
        adapt="full",
        steps=warmup + stable + cooldown,
        warmup_steps=warmup,
        cooldown_steps=cooldown,
        learning_rate=5e-4,
        final_learning_rate=0.0,
        beta1=0.9,
        beta2=0.95,
        epsilon=1e-8,
        clip_norm=1.0,
        weight_decay=0.01,
        batch_rows=128,
        micro_rows=4,
        max_length=PAPER_CONTEXT,
        max_question_length=128,
        temperature=0.07,
        contrastive_weight=0.25,
        precision="bf16",
        layout="packed",
        block=1,
        title_fraction=1.0,
        qa_fraction=0.0,
        ntp_fraction=1.0,
    )


_CO_LMLM: dict[str, Callable[[], TrainConfig]] = {
    "small": small,
    "scratch-co-lmlm": scratch_co_lmlm,
    "co-lmlm-135m": co_lmlm_135m,
    "co-lmlm-360m": co_lmlm_360m,
    "co-lmlm-360m-fw": co_lmlm_360m_fw,
}


def names() -> tuple[str, ...]:
    """List the presets: the Co-LMLM runs, and each for the other methods (``asker-360m``, ``small-standard``)."""
    return tuple(_preset_name(run, method) for method in MARKUPS for run in _CO_LMLM)


def preset(name: str) -> TrainConfig:
    """Give the preset of this name. Raises ValueError if there is none."""
    for run, make in _CO_LMLM.items():
        for method in MARKUPS:
            if name == _preset_name(run, method):
                return make() if method == CO_LMLM.method else as_method(make(), method)
    raise ValueError(f"no preset {name!r}; there are {', '.join(names())}")


def as_method(config: TrainConfig, method: str) -> TrainConfig:
    """Give the same run for another method, without the settings of the contrastive loss."""
    if method not in MARKUPS:
        raise ValueError(f"method {method!r} is none of {', '.join(MARKUPS)}")
    changes: dict[str, Any] = {"method": method, "preset": _preset_name(config.preset, method)}
    if MARKUPS[method].key is None:
        changes |= {"contrastive_weight": 0.0, "qa_fraction": 0.0, "memory": 0, "hard_negatives": 0}
    return replace(config, **changes)


def shorten_run(config: TrainConfig, steps: int) -> TrainConfig:
    """Give the same run with another number of steps; warmup and cooldown are scaled if they would not fit."""
    share = steps / config.steps
    fixed = config.cooldown_steps
    if config.warmup_steps + (fixed or 0) <= steps:
        return replace(config, steps=steps)
    return replace(
        config,
        steps=steps,
        warmup_steps=int(config.warmup_steps * share),
        cooldown_steps=None if fixed is None else int(fixed * share),
    )


def _preset_name(run: str, method: str) -> str:
    if method == CO_LMLM.method:
        return run
    return run.replace(CO_LMLM.method, method) if CO_LMLM.method in run else f"{run}-{method}"


# Graphics processors that a plan knows.


@dataclass(frozen=True, slots=True)
class Gpu:
    """Peak of dense bf16 arithmetic in FLOP/s, and memory in bytes, as the vendor states them."""

    peak: float
    memory: int


GPUS = {
    "a100": Gpu(312e12, 80 * 10**9),
    "h100": Gpu(989e12, 80 * 10**9),
    "h200": Gpu(989e12, 141 * 10**9),
    "b200": Gpu(2250e12, 180 * 10**9),
}


# The objectives of unlearning, by name.

NPO, GRAD_ASCENT = "npo", "grad-ascent"
OBJECTIVES = (NPO, GRAD_ASCENT)
