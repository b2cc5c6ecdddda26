"""Outcomes: judges an answer to a question whose answers are known, by its words, as SQuAD's script compares them."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROPPED = str.maketrans("", "", string.punctuation)

RIGHT = ("exact", "holds")


def normalised(text: str) -> str:
    """Normalises as SQuAD's script does: without case, punctuation, articles and runs of blanks."""
    return " ".join(ARTICLES.sub(" ", text.casefold().translate(_DROPPED)).split())


def outcome(said: str | None, golds: Sequence[str]) -> str:
    """Gives the outcome of an answer (None: it abstained) to a question that has these answers.

    It is "exact", "holds" where the answer holds one of them, "near" where one holds the answer, "wrong" or
    "abstained".
    """
    if said is None:
        return "abstained"
    value = normalised(said)
    wanted = [normalised(gold) for gold in golds]
    if value in wanted:
        return "exact"
    if any(gold and f" {gold} " in f" {value} " for gold in wanted):
        return "holds"
    return "near" if value and any(f" {value} " in f" {gold} " for gold in wanted) else "wrong"
