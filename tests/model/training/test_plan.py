"""The figures of a plan are those of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from colmlm.model.training.config import GPUS, RANDOM, Architecture, TrainConfig, preset
from colmlm.model.training.start import (
    QuestionRatio,
    TrainingPlan,
    llama_config,
    plan_run,
    saved_bytes,
    start,
)
from tests.tiny import byte_tokenizer

ARCHITECTURE = Architecture(layers=3, width=32, heads=4, kv_heads=2, ffn=48, context=128)


@pytest.fixture(scope="module")
def config(base: Path) -> TrainConfig:
    return TrainConfig(
        init=RANDOM, architecture=ARCHITECTURE, tokenizer=str(base), adapt="full", max_length=128, batch_rows=4,
        precision="fp32", steps=10, cooldown=0.0, ntp_fraction=1.0,
    )  # fmt: skip


def planned(config: TrainConfig, **options: object) -> TrainingPlan:
    return plan_run(config, Path(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("which", ["random", "full", "lora", "top layer"])
def test_parameters_are_those_of_the_model_that_is_trained(config: TrainConfig, base: Path, which: str):
    if which != "random":
        adapt = "full" if which == "full" else "lora"
        layers = 1 if which == "top layer" else None
        config = TrainConfig(init=str(base), adapt=adapt, lora_layers=layers, lora_rank=4, max_length=128)
    begin = start(replace(config, precision="fp32"), Path())
    real = list(begin.lm.parameters())
    counted = planned(config).parameters
    assert counted.trained == sum(p.numel() for p in real if p.requires_grad)
    frozen = sum(p.numel() for p in real if not p.requires_grad)
    assert counted.total - counted.trained == pytest.approx(
        frozen, rel=0.02
    )  # peft keeps frozen copies of a few rows


def test_memory_follows_its_formulas(config: TrainConfig):
    alone, many = planned(config), planned(config, gpus=4)
    trained = alone.parameters.trained
    kept = alone.memory["alone, activations kept"]
    assert (kept.weights, kept.gradients, kept.optimiser) == (4 * trained, 4 * trained, 8 * trained)
    assert many.memory["fsdp, activations kept"].optimiser == 8 * trained // 4
    assert many.memory["ddp, activations kept"].communication == 4 * trained
    assert alone.memory["alone, activations checkpointed"].activations < kept.activations / 2
    room = alone.most_rows["alone, activations kept"] * kept.activations + kept.fixed_bytes
    assert room <= GPUS["h100"].memory < room + kept.activations


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_layers_keep_grows_with_layers_and_tokens_alone(checkpointed: bool):
    llama = llama_config(ARCHITECTURE, byte_tokenizer())

    def kept(layers: int, tokens: int) -> int:
        return saved_bytes(llama, layers=layers, tokens=tokens, bf16=False, checkpointed=checkpointed)

    a_layer = ((kept(2, 64) - kept(1, 64)) - (kept(2, 32) - kept(1, 32))) / 32
    assert kept(4, 96) - kept(1, 96) == pytest.approx(3 * 96 * a_layer, rel=0.02)
    if checkpointed:
        assert a_layer == 4 * ARCHITECTURE.width  # each layer's input, in float32


def test_arithmetic_and_hours_follow_their_formulas(config: TrainConfig):
    made = planned(config, gpu="a100", mfu=0.5, gpus=2, ratios=QuestionRatio(questions=0.25))
    p = made.parameters
    assert p.matrices == 3 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) and p.head == 260 * 32
    assert (made.tokens_per_step, made.question_tokens_per_step, made.tokens) == (512, 128, 5120)
    step = 6 * p.matrices * 640 + 6 * p.head * 512 + 6 * 3 * 32 * 128 * 512
    assert made.flop == pytest.approx(10 * step)
    assert made.gpu_hours == pytest.approx(made.flop / (312e12 * 0.5) / 3600)
    assert made.days == pytest.approx(made.gpu_hours / 2 / 24)
    slower = planned(replace(config, micro_rows=1, checkpointing=True), ratios=QuestionRatio(questions=0.25))
    assert slower.flop - made.flop == pytest.approx(10 * 4 * p.matrices * 640)
    silent = planned(replace(config, method="standard", contrastive_weight=0.0))
    assert silent.question_tokens_per_step == 0


def test_a_preset_assumes_the_questions_of_its_corpus():
    shares = {
        name: QuestionRatio.of_preset(preset(name)).questions
        for name in ("co-lmlm-360m", "co-lmlm-360m-fw", "small")
    }
    assert shares["co-lmlm-360m"] == pytest.approx(240e6 * 13 / 3e9, rel=0.01)
    assert shares["co-lmlm-360m-fw"] == pytest.approx((2.2e9 - 240e6) * 13 / 90e9, rel=0.02)
    assert shares["small"] == 0.27
