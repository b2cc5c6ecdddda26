"""The records of kept questions, of the runs that asked them, and of what differs between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from colmlm.kb.answers.records import AnswerMode

Way = Literal["read", "paper", "words", "reader"]

NOT_HELD = "no fact holds it"
NOT_FOUND = "not found"
BELOW = "below the threshold"
CUT = "cut value"
ANOTHER = "another answer"
WITHHELD = "withheld"
REASONS = (NOT_HELD, NOT_FOUND, BELOW, CUT, ANOTHER, WITHHELD)


@dataclass(frozen=True, slots=True)
class DraftQuestion:
    """A question to keep, with the values that count as right; none of them where nothing should answer it."""

    question: str
    expected: tuple[str, ...] = ()


class TakenQuestion(TypedDict, total=False):
    """The question and the expected values that are kept in place of those of a stored output (None: the output's)."""

    question: str | None
    expected: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class KeptQuestion:
    """A question of a set. `fact_ids` are the facts of the output it was taken from, and those that answered it since.

    What was erased of it shows as U+2588.
    """

    question_id: int
    question: str
    expected: tuple[str, ...]
    fact_ids: tuple[int, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class QuestionRun:
    """One asking of a set. `asked` is the sum of `right`, `wrong` and `abstained`; `skipped` were erased in part.

    It is `right` to say nothing where nothing is expected. The run went from change `first_seq` of the log to `seq`.
    `how` is the mode of answers or the ranking of lookups, whose threshold was `threshold`. Where it was
    `accepted_only`, no proposed fact answered; where `corpora` are named, only what stands in these.
    """

    run_id: int
    question_set: str
    how: Way
    threshold: float
    keyset_id: int | None
    checkpoint_id: str | None
    reader: str | None
    first_seq: int
    seq: int
    asked: int
    right: int
    wrong: int
    abstained: int
    skipped: int
    actor: str
    at: datetime
    seconds: float
    accepted_only: bool = False
    corpora: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptSet:
    """A set of questions. Their answers should be in `corpus` (None: in any). `last_run` is the newest."""

    name: str
    corpus: str | None
    num_questions: int
    actor: str
    at: datetime
    last_run: QuestionRun | None = None


@dataclass(frozen=True, slots=True)
class AskedItem:
    """Record what came of one question in a run: the `value` that was said (None: nothing) and the fact that says most
    of it.

    `outcome` is "right", "wrong" or "abstained"; the `reason` of each that is not right is one of `REASONS`.
    `fact_ids` are all facts in the value, or the deleted ones that nothing was said for.
    """

    question: str
    expected: tuple[str, ...]
    value: str | None
    fact_id: int | None
    outcome: str
    reason: str | None
    score: float
    question_id: int
    fact_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangedItem:
    """A question whose value or outcome differs between two runs. One that a run did not ask is None there.

    `seqs` are the changes between the runs that touched its facts.
    """

    before: AskedItem | None
    after: AskedItem | None
    seqs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Record what differs between two runs of one set: the questions that came out otherwise, and what happened
    meanwhile.

    The log went from change `first_seq` to `last_seq`; `changes` counts its changes of each kind. `settings` are
    the names of what was asked with otherwise: "how", "threshold", "keyset_id", "checkpoint_id", "reader",
    "accepted_only" or "corpora".
    """

    before: QuestionRun
    after: QuestionRun
    same: int
    items: tuple[ChangedItem, ...]
    first_seq: int
    last_seq: int
    changes: dict[str, int]
    settings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskingSet:
    """Choose how a set is asked: in a `mode` of answers, or with a `ranking` of lookups; and with which `threshold`
    (None: the base's own). By the ranking "key" facts are found as in the mode "paper". With `accepted_only` no
    proposed fact answers, and of named `corpora` only what stands in these.
    """

    mode: AnswerMode = "read"
    ranking: Literal["key", "words", "reader"] | None = None
    threshold: float | None = None
    accepted_only: bool = False
    corpora: Sequence[str] = ()

    @property
    def way(self) -> Way:
        return self.mode if self.ranking is None else "paper" if self.ranking == "key" else self.ranking
