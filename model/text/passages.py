"""Passages found by BM25, which are put before a prompt as a baseline, and questions rewritten as statements.

The setting is the paper's (appendix A, RAG setting): passages of 100 words, the best four, and one prompt format for
all models. An index lives in memory only and is made from the documents as they are now, so that nothing erased
survives in it.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from colmlm.kb.corpus.format import AnnotatedDocument

WORDS = 100
TOP = 4
_INSTRUCTION = (
    "Answer the question or complete the prompt based on the given document. "
    "The following are given documents: \n {passages} \n\n "
)
_ENDING = " \n The answer is"


def passages_of(
    documents: Iterable[AnnotatedDocument], words: int = WORDS, *, titled: bool = True
) -> Iterator[str]:
    """Cut the documents' texts into passages of `words` words, each preceded by its document's title if `titled`."""
    for document in documents:
        lead = f"{document.title}: " if document.title and titled else ""
        said = document.text.split()
        for start in range(0, len(said), words):
            yield lead + " ".join(said[start : start + words])


def prompt_with_passages(prompt: str, passages: Sequence[str]) -> str:
    """Put the passages before the prompt; a prompt without passages stays unchanged."""
    return PassageChoice(len(passages)).prompt(prompt, passages, ()) if passages else prompt


@dataclass(frozen=True, slots=True)
class PassageChoice:
    """The settings by which passages are chosen and put before a prompt. The defaults are the paper's.

    `count` is the number of passages; 0 gives the paper's form without a passage. `best_last` puts the best passage
    next to the prompt, `no_titles` leaves titles out, and `at_random` takes passages that the search did not find.
    `no_instruction` leaves out the words around the passages, so that they and the prompt stand on separate lines, and
    `no_ending` those behind the prompt.
    """

    count: int = TOP
    best_last: bool = False
    no_titles: bool = False
    at_random: bool = False
    no_instruction: bool = False
    no_ending: bool = False

    def prompt(self, prompt: str, found: Sequence[str], every: Sequence[str]) -> str:
        """Put passages before the prompt: the first of `found`, or with `at_random` others of `every`."""
        chosen = list(found[: self.count])
        if self.at_random:
            others = [passage for passage in every if passage not in found]
            chosen = random.Random(prompt).sample(others, min(self.count, len(others)))
        if self.best_last:
            chosen.reverse()
        ending = "" if self.no_ending else _ENDING
        if self.no_instruction:
            return "\n".join((*chosen, prompt)) + ending
        if self.count and not chosen:
            return prompt
        return _INSTRUCTION.format(passages="\n".join(chosen)) + prompt + ending


def import_bm25s() -> Any:
    """Import bm25s and give the module. JAX is hidden from it.

    JAX takes three quarters of a GPU's memory when it is first used. Bm25s would only choose the best of a row of
    scores by it, which NumPy does as well.
    """
    hidden = "jax" not in sys.modules and "bm25s" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # an import of it fails, as where it is not installed
    try:
        import bm25s
    finally:
        if hidden:
            del sys.modules["jax"]
    return bm25s


class PassageIndex:
    """A BM25 index over passages, in memory."""

    def __init__(self, passages: Iterable[str]) -> None:
        bm25s = import_bm25s()
        self.passages = list(passages)
        self._bm25 = bm25s.BM25()
        tokens = bm25s.tokenize(self.passages, show_progress=False)
        self._is_empty = not tokens.vocab
        if not self._is_empty:
            self._bm25.index(tokens, show_progress=False)

    def search(self, queries: Sequence[str], k: int = TOP) -> list[list[str]]:
        """Give the k best passages of each query, best first, leaving out those that share no word with it."""
        return [[self.passages[n] for n in found] for found in self.nearest(queries, k)]

    def nearest(self, queries: Sequence[str], k: int = TOP) -> list[list[int]]:
        """Give for each query the indices in `passages` of what `search` gives."""
        if self._is_empty or not queries:
            return [[] for _ in queries]
        tokens = import_bm25s().tokenize(list(queries), return_ids=False, show_progress=False)
        found, scores = self._bm25.retrieve(tokens, k=min(k, len(self.passages)), show_progress=False)
        return [
            [n for n, score in zip(row, of, strict=True) if score > 0]
            for row, of in zip(found.tolist(), scores.tolist(), strict=True)
        ]


# The forms in which people ask: as a question, in keywords, or as a sentence that stops before its value.
#
# Sets of questions hold questions only; a model that saw nothing else would not know what to do with the other two.
# The rules are made for English. They give None where the result would be no sentence or would say too little.

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
    """Give a question's words without function words ("capital Peru"), or None if fewer than two are left."""
    said = [word for word in _WORD.findall(question) if word.lower() not in _STOP]
    return " ".join(said) if len(said) >= 2 else None


def statement_of(question: str) -> str | None:
    """Turn a question into a sentence that its answer completes ("the capital of Peru is"), or None if no rule fits."""
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
    """Give ``text[start:end]``, a sentence up to its value, with some early words dropped; None if few are left.

    Words are dropped since the passage has the same words before the value, and people seldom write the exact words of
    a text.
    """
    said = text[start:end].split()[-_MOST_WORDS:]
    early = [word for word in said[:-_KEPT] if rng.random() >= _DROPPED]
    return " ".join([*early, *said[-_KEPT:]]) if len(early) >= _LEAST_WORDS else None
