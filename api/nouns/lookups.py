"""The verbs of lookups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

if TYPE_CHECKING:
    import numpy.typing as npt

    from colmlm.kb.answers.records import Answer, AnswerOptions, AnswerThreshold
    from colmlm.kb.log.records import OnRecord
    from colmlm.kb.lookup.options import LookupOptions
    from colmlm.kb.lookup.records import Lookup, LookupSpace

AnswerMode = Literal["read", "paper"]


@dataclass(frozen=True, slots=True)
class Calibrating:
    """How answers are calibrated: to which share of `wrong` ones, on how many questions at most, drawn by the seed;
    `corpora` are those whose facts have questions that people wrote, and `question_set` is a set of kept ones. A
    `dry_run` stores nothing.
    """

    wrong: float = 0.05
    sample: int = 300
    seed: int = 0
    corpora: tuple[str, ...] = ()
    dry_run: bool = False
    question_set: str | None = None


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
        as_of: int | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Answer:
        """Answers a question with a span of a document, or says that nothing stored answers it.

        The mode "read" has what is near read (`kb.answers.answering`), "paper" takes the fact with the nearest key.
        With `as_of` it reads the facts of that change, on the machine of the base alone; the answer is not stored.
        """
        ...

    def answer_threshold(self) -> AnswerThreshold:
        """Gives the score from which answers are given, and the calibration that chose it."""
        ...

    def calibrate_answers(
        self, questions: Path | None, how: Calibrating, **who: Unpack[OnRecord]
    ) -> dict[str, Any]:
        """Chooses that score for this base, by questions of a file and of corpora; without either by those of the last
        calibration's corpora. Gives what was measured. Raises `CalibrationRefused`.
        """
        ...

    def use_shipped_threshold(self, **who: Unpack[OnRecord]) -> AnswerThreshold:
        """Goes back to the score that comes with the reader."""
        ...

    def as_of(self, seq: int) -> FactFinder:
        """Gives lookups in the state after change `seq`."""
        ...

    def space(self) -> LookupSpace:
        """Describes the active keyset: its checkpoint, dimension and threshold, and the head of the log."""
        ...
