"""Passages of documents in the knowledge base, against which a claim about a person is checked."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable

from colmlm.kb.corpus.format import AnnotatedDocument
from colmlm.model.baselines.passages import PassageIndex, passages_of
from colmlm.model.evaluate.answers import folded

PASSAGES = 5  # the number that FActScore takes


class Evidence:
    """The documents about people, found by the name as their title. Threads may share it."""

    def __init__(self, documents: Iterable[AnnotatedDocument]) -> None:
        self._of: dict[str, list[str]] = defaultdict(list)
        self._every: list[str] = []
        for document in documents:
            passages = list(passages_of([document]))
            self._every += passages
            self._of[folded(document.title or "")] += passages
        self._indices: dict[str | None, PassageIndex] = {}
        self._lock = threading.Lock()

    def covers(self, name: str) -> bool:
        """Tells whether there is a document about this person."""
        return folded(name) in self._of

    def passages(self, name: str, claim: str) -> list[str]:
        """Gives the passages most similar to the claim, from the documents of that name or, without any, from all."""
        own = folded(name) if self.covers(name) else None
        with self._lock:
            if own not in self._indices:
                self._indices[own] = PassageIndex(self._every if own is None else self._of[own])
            (found,) = self._indices[own].search([f"{name} {claim}"], PASSAGES)
        return found
