"""The settings that an annotator is trained with; they are saved with it. `presets` has the paper's and small ones."""

from __future__ import annotations

from dataclasses import dataclass


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
        if self.batch < 1 or self.epochs <= 0 or self.max_length < 16:
            raise ValueError("batch and epochs must be positive and max_length at least 16")
        if not 0 <= self.warmup < 1 or not 0 <= self.final_learning_rate <= self.learning_rate:
            raise ValueError("warmup must be within [0, 1) and final_learning_rate at most learning_rate")
        if self.precision not in ("auto", "fp32", "bf16"):
            raise ValueError(f"precision {self.precision!r} is not auto, fp32 or bf16")


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
