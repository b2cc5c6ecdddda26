"""Finds passages of the knowledge base's current documents for retrieval-augmented prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from colmlm.kb.service import KnowledgeBase

if TYPE_CHECKING:
    from colmlm.model.baselines.passages import PassageIndex


class LivePassages:
    """BM25 over the current documents of some corpora, in memory, rebuilt after every change of the log.

    So no passage holds an erased fact. It may hold a deleted one, whose document still says it.
    """

    def __init__(self, kb: KnowledgeBase, corpora: Sequence[str]) -> None:
        self.kb, self.corpora = kb, tuple(corpora)
        self._index: PassageIndex | None = None
        self._seq = -1

    def augment(self, prompts: Sequence[str]) -> list[str]:
        """Puts the passages that BM25 finds for it before each prompt."""
        from colmlm.model.baselines.passages import augmented

        found = self._current().search(prompts)
        return [augmented(prompt, passages) for prompt, passages in zip(prompts, found, strict=True)]

    def _current(self) -> PassageIndex:
        from colmlm.model.baselines.passages import PassageIndex, passages_of

        seq = self.kb.log.head_seq()  # before the texts: a change meanwhile is seen at the next call
        if self._index is None or seq != self._seq:
            documents = (document for corpus in self.corpora for document in self.kb.corpora.export(corpus))
            self._index, self._seq = PassageIndex(passages_of(documents)), seq
        return self._index
