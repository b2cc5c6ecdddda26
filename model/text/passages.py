"""Retrieval-augmented generation as a baseline: passages found by BM25 are put before the prompt.

The setting is the paper's (appendix A, RAG setting): passages of 100 words, the best four, and one prompt format for
all models. An index lives in memory only and is made from the documents as they are now, so that nothing erased
survives in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import bm25s

from colmlm.kb.corpus.format import AnnotatedDocument

WORDS = 100
TOP = 4
_FORM = (
    "Answer the question or complete the prompt based on the given document. "
    "The following are given documents: \n {passages} \n\n {prompt} \n The answer is"
)


def passages_of(documents: Iterable[AnnotatedDocument], words: int = WORDS) -> Iterator[str]:
    """Cut the texts into passages of so many words, each preceded by its document's title."""
    for document in documents:
        lead = f"{document.title}: " if document.title else ""
        said = document.text.split()
        for start in range(0, len(said), words):
            yield lead + " ".join(said[start : start + words])


def prompt_with_passages(prompt: str, passages: Sequence[str]) -> str:
    """Put the passages before the prompt; a prompt without passages stays unchanged."""
    return _FORM.format(passages="\n".join(passages), prompt=prompt) if passages else prompt


class PassageIndex:
    """A BM25 index over passages, in memory."""

    def __init__(self, passages: Iterable[str]) -> None:
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
        """Give the numbers of the passages that `search` gives."""
        if self._is_empty or not queries:
            return [[] for _ in queries]
        tokens = bm25s.tokenize(list(queries), return_ids=False, show_progress=False)
        found, scores = self._bm25.retrieve(tokens, k=min(k, len(self.passages)), show_progress=False)
        return [
            [n for n, score in zip(row, of, strict=True) if score > 0]
            for row, of in zip(found.tolist(), scores.tolist(), strict=True)
        ]
