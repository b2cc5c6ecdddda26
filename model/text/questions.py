"""The forms in which people ask: as a question, in keywords, or as a sentence that stops before its value.

Sets of questions hold questions only; a model that saw nothing else would not know what to do with the other two. The
rules are made for English. They give None where the result would be no sentence or would say too little.
"""

from __future__ import annotations

import random
import re

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
