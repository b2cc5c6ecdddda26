"""The records of answers to questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colmlm.kb.facts.records import Review, Source
from colmlm.kb.lookup.records import AskedQuery

Grain = Literal["span", "passage"]
SPAN: Grain = "span"
PASSAGE: Grain = "passage"
NO_SURE_ANSWER = "The knowledge base has no sure answer to this."

AnswerMode = Literal["read", "paper"]


@dataclass(frozen=True, slots=True)
class SaidFact:
    """A live fact that a passage or an answer says, in its version and with its review of now.

    In an answer, `entered_by` says who entered the value where its document says another, and `entered_seq` by which
    change.
    """

    fact_id: int
    version: int
    value: str
    review: Review = "accepted"
    entered_by: str | None = None
    entered_seq: int | None = None


@dataclass(frozen=True, slots=True)
class NearbyPassage:
    """A sentence near a question, with the one before it, as it says things now, and the live facts in it.

    What was deleted or erased shows as U+2588, and `source` is the stretch it stands for. `score` is that of the search
    for sentences; it orders passages of one question and says nothing beyond. From `likeliest_start` to
    `likeliest_end` the text says the likeliest words, whether they are sure enough to be an answer or not.
    """

    text: str
    source: Source | None
    score: float
    facts: tuple[SaidFact, ...]
    likeliest_start: int | None = None
    likeliest_end: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Record what the knowledge base says to a question.

    Its `grain` is "span", the words that answer, or "passage", the few lines that do, where the words are not sure or
    the question asks for more than a few.
    `answer` is None where nothing answers it: it abstained. Is a deleted fact the best place, `withheld` is true, and
    nothing else is said in its stead. `score` is the estimated probability that the answer is right, and `threshold`
    the least that one of its grain needed. `facts` are those
    that it overlaps, and `source` is where its document says it, None for a fact without a document. `seq` is the last
    change of the log before the answer was decided. `generation_id` is the output that it is stored as, None where
    answers are not kept. `why` says, in a sentence, why nothing is said.
    """

    question: str
    answer: str | None
    score: float
    threshold: float
    facts: tuple[SaidFact, ...]
    source: Source | None
    withheld: bool
    nearest: tuple[NearbyPassage, ...]
    seq: int
    generation_id: int | None = None
    grain: Grain = SPAN
    why: str | None = None

    @property
    def abstained(self) -> bool:
        return self.answer is None

    @property
    def unreviewed(self) -> tuple[int, ...]:
        """The facts in the answer that are only proposed."""
        return tuple(fact.fact_id for fact in self.facts if fact.review == "proposed")


@dataclass(frozen=True, slots=True)
class SaidPart:
    """A live fact in an answer: ``answer[start:end] == value[part_start:part_end]`` of its version.

    Its document has these words, or those before a correction, from `quoted_start` to `quoted_end` (None: no document).
    """

    fact_id: int
    version: int
    start: int
    end: int
    part_start: int
    part_end: int
    quoted_start: int | None = None
    quoted_end: int | None = None


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """An answer with what is stored with it: the query of the question, and the parts of facts in it, in order.

    `query` is None where nothing was encoded. `best` are the likeliest words, also if it abstains (None: there are
    none, or in the mode "paper" none above the threshold). `under` are the facts that they touch, or the deleted fact
    that was nearest. `asked_at` is the threshold of spans, if the answer is a passage.
    """

    answer: Answer
    query: AskedQuery | None = None
    parts: tuple[SaidPart, ...] = ()
    best: str | None = None
    under: tuple[int, ...] = ()
    asked_at: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerShares:
    """Record what the questions of a sample get at a threshold, as shares of those that something answers: the `right`
    answers, those that are `near`, and the `wrong` ones. `alarms` is the share of the others that get an answer.
    """

    threshold: float
    right: float
    near: float
    wrong: float
    alarms: float


@dataclass(frozen=True, slots=True)
class MeasuredAnswers:
    """The threshold that was chosen for a `rate` of wrong answers, and what the sample gets at it and at the shipped
    one.

    `most_wrong` and `most_alarms` are what the rates of wrong answers do not exceed, as far as so many questions tell.
    """

    here: AnswerShares
    shipped: AnswerShares
    rate: float
    most_wrong: float
    most_alarms: float
    answerable: int
    unanswerable: int


@dataclass(frozen=True, slots=True)
class AnswerCalibration:
    """A stored calibration: made as change `seq` with this reader, in this keyset, with questions of a file (`given`),
    of the set `question_set` and of `corpora`. It took so many seconds.
    """

    measured: MeasuredAnswers
    given: int
    corpora: tuple[str, ...]
    reader: str
    keyset_id: int | None
    question_keys: bool
    seconds: float
    seq: int
    question_set: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerThreshold:
    """The score from which answers are given: that of the `calibration` where it is `calibrated`, else the shipped one.

    `doubts` says, in sentences, why a calibration does not count, or may not fit any more.
    """

    threshold: float
    calibrated: bool
    shipped: float
    calibration: AnswerCalibration | None
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Calibrating:
    """The options of a calibration of answers: the share of `wrong` answers to keep to, and on how many questions at
    most, drawn by the seed. `corpora` are those whose facts have questions that people wrote, and `question_set` is a
    set of kept questions. A `dry_run` stores nothing.
    """

    wrong: float = 0.05
    sample: int = 300
    seed: int = 0
    corpora: tuple[str, ...] = ()
    dry_run: bool = False
    question_set: str | None = None
