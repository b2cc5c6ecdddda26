"""The settings that a reader is trained with, their presets, and the forms of asking that they weigh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from colmlm.model.annotate.config import MINILM, TunerConfig
from colmlm.model.lm.config import MPNET


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderConfig(TunerConfig):
    """The settings of a reader. `batch` counts examples; `max_length` counts the tokens of a passage's text.

    Where all weights are trained (no `lora_rank`), `freeze_embeddings` leaves the table of tokens as it is, which is
    half of a small encoder. `dropout` stands in place of the base's own. Each question comes `rounds` times in an
    epoch, every time with another window, and perhaps in another form. `none` is the share of the examples whose
    passage does not hold the answer: a share `neighbours` of them are from the same document, the others among the
    `nearest` windows of other documents by their words. `keywords` and `statements` are the shares of these forms of
    asking, `untitled` that of passages without title. `first` names a reader beside the released one that reads before
    it, and leaves it the `read_on` passages that it likes best.
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
        shares = (self.none, self.neighbours, self.keywords, self.statements, self.untitled)
        if not all(0 <= share < 1 for share in shares) or self.keywords + self.statements > 1:
            raise ValueError("none, neighbours, keywords, statements and untitled must be within [0, 1)")
        if self.rounds < 1 or self.nearest < 1:
            raise ValueError("rounds and nearest must be at least 1")


def minilm() -> ReaderConfig:
    """Give small settings: all weights of all-MiniLM-L6-v2 but those of its tokens."""
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
    """Give larger settings: LoRA on all-mpnet-base-v2, which reads what the small reader likes best."""
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


READER_PRESETS: dict[str, Callable[[], ReaderConfig]] = {"minilm": minilm, "mpnet": mpnet}
