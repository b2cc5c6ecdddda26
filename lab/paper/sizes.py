"""How much of the data each variant reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSizes:
    """The sizes of one variant; None is everything.

    The knowledge base holds `paragraphs` of SQuAD dev, at even distances, and the passages of `passages_of` questions
    of PopQA. `questions` of each set are asked, but `with_passages` of them by a model that reads passages with each.
    `articles` are read for perplexity, each up to `max_tokens`. `updated` is the number of CounterFact's records.
    """

    variant: str
    paragraphs: int | None
    passages_of: int | None
    questions: int
    with_passages: int
    articles: int | None
    max_tokens: int
    forgotten: int
    others: int
    radii: tuple[float, ...]
    updated: int | None


# In a minute one core gives about 500 answers of the 135M model, or 20 with passages; a command starts in ten seconds.
QUICK = VariantSizes(
    variant="quick",
    paragraphs=200,
    passages_of=100,
    questions=100,
    with_passages=40,
    articles=40,
    max_tokens=192,
    forgotten=20,
    others=80,
    radii=(0.75, 0.85, 0.95),
    updated=5,
)
FULL = VariantSizes(
    variant="full",
    paragraphs=None,
    passages_of=None,
    questions=500,
    with_passages=500,
    articles=None,
    max_tokens=1024,
    forgotten=200,
    others=600,
    radii=(0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
    updated=None,
)


def some(number: int | None, noun: str, how: str) -> str:
    """Describes an amount of data: "40 articles, the first", "all articles"."""
    return f"all {noun}" if number is None else f"{number} {noun}, {how}"
