"""The settings that a reader is trained with, their presets, and the forms of asking that they weigh."""

from __future__ import annotations

import random
import re
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


# The forms in which people ask: as a question, in keywords, or as a sentence that stops before its value.
#
# Sets of questions hold questions only; a reader that saw nothing else would not know what to do with the other two.
# The rules are made for English. They give nothing (None) where the result would be no sentence or would say too
# little.

_GRAMMAR = """
    a about all also an and any are as at be been being by called can could did do does doing done during each for from
    had has have having he her his how i if in into is it its kind known many may me might much my name named of off on
    or other our out own part said she should so some such than that the their them then there these they this those to
    type under up use used was we were what what's when where which while who whom whose why will with would you your
"""
_STOP = frozenset(_GRAMMAR.split())
_WORD = re.compile(r"[^\W_]+(?:[-'’.,][^\W_]+)*")
_BE = "is|was|are|were"
_OPEN = re.compile(
    rf"(?:what|who)\s+(?P<be>{_BE})\s+(?P<rest>(?:the|its|his|her|their)\s.+|[A-Z].*['’]s\s.+)", re.I
)
_PLACED = re.compile(rf"(?P<wh>when|where)\s+(?P<be>{_BE})\s+(?P<rest>.+)", re.IGNORECASE)
_DONE = re.compile(
    r"\w{3,}ed|born|built|made|held|written|found|known|given|begun|won|sold|taken|seen|sent|set|lost|led|fought"
)
_ENDS_OPEN = re.compile(r"(?:for|by|of|in|to|from|with|on|at|as|about|called|named)$")
_LEAST_WORDS, _MOST_WORDS = 3, 25
_DROPPED, _KEPT = 0.25, 3


def keywords_of(question: str) -> str | None:
    """Give the question's words without grammar and question words: "capital Peru"."""
    said = [word for word in _WORD.findall(question) if word.lower() not in _STOP]
    return " ".join(said) if len(said) >= 2 else None


def statement_of(question: str) -> str | None:
    """Turn a question into the sentence that its answer would end: "The capital of Peru is"."""
    plain = question.strip().rstrip("?").rstrip()
    if (found := _OPEN.fullmatch(plain)) and not _ENDS_OPEN.search(found["rest"]):
        return f"{found['rest']} {found['be']}"
    if found := _PLACED.fullmatch(plain):
        words = found["rest"].split()
        done = next((n for n, word in enumerate(words) if n and _DONE.fullmatch(word)), None)
        if done is not None:
            said = [*words[:done], found["be"], *words[done:]]
            return " ".join([*said, "in"] if said[-1] != "in" else said)
    return None


def stopped_sentence(text: str, start: int, end: int, rng: random.Random) -> str | None:
    """Give ``text[start:end]``, the part of a sentence before its value, with some of its earlier words dropped.

    Words are dropped since the same words stand before the value in the passage too: what is written is seldom what is
    read, to the word.
    """
    said = text[start:end].split()[-_MOST_WORDS:]
    early = [word for word in said[:-_KEPT] if rng.random() >= _DROPPED]
    return " ".join([*early, *said[-_KEPT:]]) if len(early) >= _LEAST_WORDS else None
