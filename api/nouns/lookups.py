"""The verbs of lookups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

if TYPE_CHECKING:
    import numpy.typing as npt

    from colmlm.kb.answers.records import Answer
    from colmlm.kb.lookup.options import LookupOptions
    from colmlm.kb.lookup.records import Lookup, LookupSpace

AnswerMode = Literal["read", "paper"]


class FactFinder(Protocol):
    """Finds the nearest live facts, now or as of a change."""

    def find(
        self, queries_BD: npt.NDArray[Any], *, checkpoint_id: str, **options: Unpack[LookupOptions]
    ) -> Sequence[Lookup]:
        """Finds the best live facts of each query [B, d]."""
        ...


class LookupVerbs(FactFinder, Protocol):
    """What lookups can be asked for: the verbs of `kb.lookup.searchable.Lookups`, and questions as text."""

    def ask(
        self,
        question: str,
        *,
        as_of: int | None = None,
        **options: Unpack[LookupOptions],
    ) -> Lookup:
        """Finds the facts nearest to a question; with `as_of`, as the base was after that change."""
        ...

    def answer(
        self,
        question: str,
        *,
        mode: AnswerMode = "read",
        threshold: float | None = None,
        nearest: int = 3,
    ) -> Answer:
        """Answers a question with a span of a document, or says that nothing stored answers it.

        The mode "read" has what is near read (`kb.answers.answering`), "paper" takes the fact with the nearest key.
        `nearest` passages come with the answer.
        """
        ...

    def as_of(self, seq: int) -> FactFinder:
        """Gives lookups in the state after change `seq`."""
        ...

    def space(self) -> LookupSpace:
        """Describes the active keyset: its checkpoint, dimension and threshold, and the head of the log."""
        ...
